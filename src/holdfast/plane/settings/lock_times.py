"""The settings for the keys and times of each lock family, and the families with these settings applied.

The code that acquires, lists or tunes locks and that computes takeover times uses these values, so they agree about
keys, TTLs, renewal intervals and failure budgets. Pure. Does not check that the times work together, see `consistency`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from holdfast.plane.locks import registry as families
from holdfast.plane.locks.registry import FAMILIES, LockFamily, Retries
from holdfast.plane.loops.cadence import Mode


class Values(Protocol):
    """The part of the settings that is needed here."""

    def value(self, name: str) -> Any:
        """The value of a key, such as `scheduler.job_ttl`."""
        ...


class FamilyKeys(NamedTuple):
    """The settings of one family."""

    ttl: str
    renew_every: str  # None: a third of the TTL
    failures: str
    factor: float = 1.0  # of the TTL to its setting
    loop: str | None = None
    jitter: str | None = None  # of the delay between two attempts to get the lock

    @property
    def lead(self) -> str | None:
        """The setting for how replicas share the loop, if it is one."""
        return None if self.loop is None else f"{self.loop}.lead"


LOOPS: Final = {
    "reconciler": families.RECONCILER,
    "replayer": families.REPLAYER,
    "snapshot": families.SNAPSHOT_WRITER,
    "cleanup": families.DEAD_LETTER_CLEANUP,
    "runs": families.WORKFLOW_RECONCILER,
    "delays": families.WORKFLOW_DELAYS,
    "schedules": families.SCHEDULES,
}

_ITEMS: Final = {
    families.SCHEDULER_JOB: "scheduler.job",
    families.WORKER_JOB: "worker.lease",
    families.WORKFLOW_RUN: "engine.run",
    families.APPROVAL: "approvals.lock",
}

_JITTERS: Final = {families.APPROVAL: "approvals.lock_jitter"}

FAMILY_KEYS: Final[Mapping[str, FamilyKeys]] = {
    **{
        family.name: FamilyKeys(f"{stem}_ttl", f"{stem}_renew_every", f"{stem}_failures", jitter=_JITTERS.get(family))
        for family, stem in _ITEMS.items()
    },
    **{
        family.name: FamilyKeys(
            f"{loop}.interval", f"{loop}.renew_every", f"{loop}.failures", family.per_interval or 1.0, loop
        )
        for loop, family in LOOPS.items()
    },
}


def family_in_effect(settings: Values, family: LockFamily) -> LockFamily:
    """The family with the keys and times of the settings."""
    keys = FAMILY_KEYS[family.name]
    timed = family.timed(
        ttl=settings.value(keys.ttl) * keys.factor,
        renew_every=settings.value(keys.renew_every),
        failures=settings.value(keys.failures),
    ).spread(settings.value(keys.jitter) if keys.jitter else 0.0)
    return replace(timed.under(settings.value("names.keys")), retries=_retries(settings))


def _retries(settings: Values) -> Retries:
    busy, jitter = _length(settings.value("scheduler.busy_delay")), settings.value("scheduler.busy_jitter")
    spread = f" ± {_length(jitter)}" if jitter else ""
    return Retries(busy + spread, _length(settings.value("scheduler.backend_delay")))


def _length(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{1000 * seconds:g} ms"


def is_renewed(settings: Values, family: LockFamily) -> bool:
    """Whether its leases are renewed automatically: rotating ones are not."""
    lead = FAMILY_KEYS[family.name].lead
    return lead is None or settings.value(lead) != Mode.ROTATING


def families_in_effect(settings: Values) -> Mapping[str, LockFamily]:
    """All families with the settings, in the order of their declaration."""
    return {name: family_in_effect(settings, family) for name, family in FAMILIES.items()}
