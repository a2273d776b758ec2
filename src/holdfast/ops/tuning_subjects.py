"""What can be tuned: every family of the plane with what is set for it and which key sets it, and any other by name.

The takeover bound of a family here is that of `plane.setting_rules.takeovers`, by a test: who tunes and who refuses
settings must not disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from holdfast.core.backoff import Backoff
from holdfast.core.looping import Mode
from holdfast.core.spread import Figure
from holdfast.core.tuning import Demand, Detection
from holdfast.plane import families
from holdfast.plane.families import FAMILIES, LockFamily
from holdfast.plane.setting_rules import LOOPS
from holdfast.plane.settings import KEYS, Settings
from holdfast.types import NS

ITEM_KEYS: Final = {
    families.SCHEDULER_JOB.name: "scheduler.job_ttl",
    families.WORKER_JOB.name: "worker.lease_ttl",
    families.WORKFLOW_RUN.name: "engine.run_ttl",
}
UNPROMISED: Final = frozenset({families.DEAD_LETTER_CLEANUP.name})
"""Nobody waits for it, so the takeover SLO does not speak of it."""


class Subject(NamedTuple):
    """One family."""

    family: str
    demand: Demand
    renewed: bool
    key: str | None  # the setting that decides its TTL
    factor: float  # the TTL is so many times that setting
    loop: str | None = None
    retry: Backoff | None = None  # after which a message whose lock was busy comes again
    patience: float = 0.0  # seconds that a caller waits before that

    @property
    def where(self) -> str:
        """Where its TTL is set, for people."""
        return self.key or f"no setting: {self.family}"

    def value(self, ttl_ns: int) -> float:
        """What the setting must be for a TTL: seconds."""
        return round(ttl_ns / NS / self.factor, 3)

    def takes(self, value: float) -> bool:
        """Whether the setting takes the value."""
        kind = None if self.key is None else KEYS[self.key].kind
        return kind is not None and getattr(kind, "low", 0) <= value <= getattr(kind, "high", value)


def subjects(
    settings: Settings, slo: Figure | None, seen: Iterable[str] = (), *, unrenewed: Iterable[str] = ()
) -> list[Subject]:
    """The families of the plane, then others that were seen. `slo` is said, or else the one of the settings."""
    promised = slo
    if promised is None and settings.takeover is not None:
        promised = Figure(round(settings.takeover * NS), f"takeover ({settings.origin('takeover')})")
    loose = set(unrenewed)
    others = sorted(set(seen) - set(FAMILIES))
    return [
        *_of_the_plane(settings, promised),
        *(Subject(name, Demand(slo=promised), name not in loose, None, 1.0) for name in others),
    ]


def _of_the_plane(settings: Settings, slo: Figure | None) -> Iterator[Subject]:
    loops = {family.name: loop for loop, family in LOOPS.items()}
    for family in FAMILIES.values():
        loop = loops.get(family.name)
        promised = None if family.name in UNPROMISED else slo
        yield _item(settings, family, promised) if loop is None else _loop(settings, family, loop, promised)


def _item(settings: Settings, family: LockFamily, slo: Figure | None) -> Subject:
    key = ITEM_KEYS.get(family.name)
    ttl: float = family.ttl if key is None else settings.value(key)
    scheduler = settings.scheduler
    again = scheduler.busy_delay + scheduler.busy_jitter
    detection = Detection(round(again * NS), None, f"a message comes again every {again:g} s (scheduler.busy_delay)")
    source = "fixed by the plane" if key is None else f"{key} ({settings.origin(key)})"
    demand = Demand(slo=slo, detection=detection, present=Figure(round(ttl * NS), source), interval_free=False)
    # A worker's lease is as long as its job, and a busy one means a copy of a message: nothing waits for its turn.
    retry = None if key is None or family is families.WORKER_JOB else scheduler.delays.busy
    return Subject(family.name, demand, True, key, 1.0, retry=retry, patience=family.acquire_timeout or 0.0)


def _loop(settings: Settings, family: LockFamily, loop: str, slo: Figure | None) -> Subject:
    key = f"{loop}.interval"
    factor = family.per_interval or 1.0
    ttl = family.ttl_for(settings.value(key))
    part = round(1000 / factor), 1000
    detection = Detection(None, part, f"others look every interval, {1 / factor:g} of the TTL")
    present = Figure(round(ttl * NS), f"{factor:g} x {key} ({settings.origin(key)})")
    demand = Demand(slo=slo, detection=detection, present=present, interval_free=False)
    renewed = settings.value(f"{loop}.lead") != Mode.ROTATING
    return Subject(family.name, demand, renewed, key, factor, loop=loop)
