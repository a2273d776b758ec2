"""The threshold lines in the panels: TTLs, acquire deadlines and bounds, from the lock registry and the settings.

The arithmetic is that of the alerts, so that a value crosses a line when its alert becomes pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.lease import timing
from holdfast.core.tuning.burstiness import BUCKET_NS
from holdfast.ops.alerts import thresholds
from holdfast.plane.locks.registry import FAMILIES, Scope
from holdfast.plane.settings.inventory import LockEntry, inventory
from holdfast.plane.settings.lock_times import LOOPS
from holdfast.plane.settings.settings import Settings
from holdfast.types import NS


@dataclass(frozen=True, slots=True)
class PanelLimits:
    """Thresholds of panels. Durations are seconds."""

    ttl: Mapping[str, float]  # of every family
    items: tuple[LockEntry, ...]  # the locks for single items of work
    envelope: float  # the shortest time for which a caller waits for a lock
    loss_share: float  # the share of its TTL that a lease has left when its holder must stop
    renew_every: float  # the shortest interval between renewals
    takeover: float  # of a loop, in intervals: by then another process leads it
    overdue: float  # in intervals: by then another process has ended a tick
    slow_renewal: float  # above it safety margins grow, which shortens leases
    wave: float | None  # the Fano factor of retries that come together; None: not measurable
    fallback_rate: float  # per second: above it the policy should be switched
    fallback_window: float
    busy_delay: float  # after which a message whose lock was busy is redelivered

    @classmethod
    def of(cls, settings: Settings) -> PanelLimits:
        """The thresholds that follow from the settings."""
        lines = inventory(settings)
        ttl = {line.family: line.ttl for line in lines}
        takeover = max(1 + (family.per_interval or 0) for family in LOOPS.values())
        return cls(
            ttl=ttl,
            items=tuple(line for line in lines if line.scope is Scope.ITEM),
            envelope=min(each.acquire_timeout for each in FAMILIES.values() if each.acquire_timeout),
            loss_share=max(_loss_share(each) for each in ttl.values()),
            renew_every=min(line.renew_every for line in lines if line.renew_every is not None),
            takeover=takeover,
            overdue=thresholds.overdue_s(1.0, takeover, 0.0),
            slow_renewal=thresholds.slow_renewal_ns(round(min(ttl.values()) * NS)) / NS,
            wave=thresholds.wave_fano(settings.scheduler.busy_delay, BUCKET_NS / NS),
            fallback_rate=settings.escalation.rate,
            fallback_window=settings.escalation.window,
            busy_delay=settings.scheduler.busy_delay,
        )


def _loss_share(ttl: float) -> float:
    settled = timing.settle(ttl=ttl)
    return 1 - settled.usual_loss_ns / NS / ttl
