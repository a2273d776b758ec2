"""The families that can be tuned: all of the plane with their settings, and any other by name.

The takeover bound of a family here is that of `plane.settings.consistency.takeovers`, by a test: tuning and validation
of settings must not disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from holdfast.core.backoff import Backoff
from holdfast.core.tuning.drift import SettingNames
from holdfast.core.tuning.percentiles import SourcedDuration
from holdfast.core.tuning.ttl import Detection, FamilyDemand
from holdfast.plane.locks import registry as families
from holdfast.plane.locks.registry import FAMILIES
from holdfast.plane.settings.lock_times import FAMILY_KEYS, FamilyKeys, family_in_effect, is_renewed
from holdfast.plane.settings.settings import KEYS, Settings
from holdfast.types import NS

UNPROMISED: Final = frozenset({families.DEAD_LETTER_CLEANUP.name})
"""No process waits for it, so the takeover SLO does not apply."""
RETRIED: Final = frozenset({families.SCHEDULER_JOB.name, families.WORKFLOW_RUN.name})
"""The families whose messages are retried. A busy worker lease means a duplicate message; people retry themselves."""


class TuningSubject(NamedTuple):
    """One family."""

    family: str
    demand: FamilyDemand
    renewed: bool
    keys: FamilyKeys | None = None  # the settings that decide its times
    retry: Backoff | None = None  # after which a message whose lock was busy is redelivered
    patience: float = 0.0  # seconds that a caller waits before that

    @property
    def names(self) -> SettingNames:
        """The settings of its times, as text."""
        if self.keys is None:
            return SettingNames(f"no setting: {self.family}")
        return SettingNames(self.keys.ttl, self.keys.renew_every, self.keys.failures)

    @property
    def loop(self) -> str | None:
        """The loop that takes it, if any."""
        return None if self.keys is None else self.keys.loop


def takes(key: str, value: float) -> bool:
    """Whether a setting accepts the value."""
    kind = KEYS[key].kind
    return bool(getattr(kind, "low", 0) <= value <= getattr(kind, "high", value))


def subjects(
    settings: Settings, slo: SourcedDuration | None, seen: Iterable[str] = (), *, unrenewed: Iterable[str] = ()
) -> list[TuningSubject]:
    """The families of the plane, then others in the data. `slo` overrides the one of the settings."""
    promised = slo
    if promised is None and settings.takeover is not None:
        promised = SourcedDuration(round(settings.takeover * NS), f"takeover ({settings.origin('takeover')})")
    loose = set(unrenewed)
    others = sorted(set(seen) - set(FAMILIES))
    return [
        *_of_the_plane(settings, promised),
        *(TuningSubject(name, FamilyDemand(slo=promised), name not in loose) for name in others),
    ]


def _of_the_plane(settings: Settings, slo: SourcedDuration | None) -> Iterator[TuningSubject]:
    for declared in FAMILIES.values():
        family, keys = family_in_effect(settings, declared), FAMILY_KEYS[declared.name]
        times = f"{keys.factor:g} x {keys.ttl}" if keys.loop else keys.ttl
        demand = FamilyDemand(
            slo=None if family.name in UNPROMISED else slo,
            detection=_detection(settings, keys),
            present=SourcedDuration(round(family.ttl * NS), f"{times} ({settings.origin(keys.ttl)})"),
            every=None
            if family.renewal is None
            else SourcedDuration(
                round(family.renewal * NS), f"{keys.renew_every} ({settings.origin(keys.renew_every)})"
            ),
            failures=family.failures,
        )
        retry = settings.scheduler.delays.busy if family.name in RETRIED else None
        patience = 0.0 if keys.loop else family.acquire_timeout or 0.0
        yield TuningSubject(family.name, demand, is_renewed(settings, declared), keys, retry, patience)


def _detection(settings: Settings, keys: FamilyKeys) -> Detection:
    """How the next owner notices: messages are redelivered, and loops try once in an interval."""
    if keys.loop is not None:
        part = round(1000 / keys.factor), 1000
        return Detection(None, part, f"others try every interval, {1 / keys.factor:g} of the TTL")
    again = settings.scheduler.busy_delay + settings.scheduler.busy_jitter
    return Detection(round(again * NS), None, f"a message is redelivered every {again:g} s (scheduler.busy_delay)")
