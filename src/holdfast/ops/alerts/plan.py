"""What a plane is told, as alert rules need it: which locks and loops there are, with their times, and how to look."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.lease import timing
from holdfast.core.lease.circuit_breaker import FAILURES_MAX
from holdfast.core.lease.timing import Timing
from holdfast.errors import BadInput
from holdfast.ops.alerts.model import lasting
from holdfast.ops.alerts.promql import PROCESS, Queries
from holdfast.ops.alerts.thresholds import DEBT_SHARE, SCRAPE_S, Pace
from holdfast.plane.locks.registry import FAMILIES, Scope
from holdfast.plane.process.plane import PARTS, check_parts
from holdfast.plane.settings.consistency import takeovers
from holdfast.plane.settings.inventory import inventory
from holdfast.plane.settings.lock_times import LOOPS
from holdfast.plane.settings.settings import Settings

BEAT_SPREAD: Final = 1.2  # a heartbeat may come so many intervals after the one before
SCRAPE_MAX_S: Final = 120.0  # beyond this, Prometheus takes a series for gone between two scrapes now and then
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OWN: Final = {"severity", "alertname", "job", "instance", "le"}


@dataclass(frozen=True, slots=True)
class WatchedLoop:
    """One periodic task."""

    name: str
    family: str
    interval_s: float
    takeover_s: float  # until another has its work, as promised, or else as computed
    because: str

    @property
    def minor(self) -> bool:
        """Whether it can wait until the morning: what is forgotten later does no harm."""
        return self.name == "cleanup"


@dataclass(frozen=True, slots=True)
class WatchedTakeover:
    """The jobs of a part that died, until another has them."""

    part: str
    bound_s: float  # of what is measured, as promised, or else as computed
    because: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One plane that is to be watched."""

    settings: Settings = field(default_factory=Settings)
    parts: Collection[str] = PARTS
    scrape_s: float = SCRAPE_S
    match: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not check_parts(self.parts):
            raise BadInput("parts", "none is named", f"use some of {', '.join(PARTS)}")
        if not 1.0 <= self.scrape_s <= SCRAPE_MAX_S:
            raise BadInput("scrape", f"{self.scrape_s:g} s cannot be watched", f"use 1 to {SCRAPE_MAX_S:g} seconds")
        for name, value in self.match.items():
            if not _LABEL.fullmatch(name) or name in _OWN:
                raise BadInput("match", f"{name!r:.60} is no label that tells planes apart", "use plane=blue")
            if not value or not value.isprintable() or set(value) & set('"\\'):
                raise BadInput("match", f"{value!r:.60} is no value of a label", "use letters and digits")

    @property
    def pace(self) -> Pace:
        """How long to look."""
        return Pace(self.scrape_s)

    @property
    def queries(self) -> Queries:
        """Writes expressions."""
        return Queries(self.match)

    def store_was_down(self, window_s: float) -> str:
        """Whether the store was down at any time in a window, as an expression without labels.

        A short outage can fall between two scrapes, and a breaker with it; the attempts that failed do not.
        """
        failed = self.queries.increase("lock_store_errors_total", window_s, by=PROCESS)
        opened = f"max_over_time({self.queries.series('store_breaker_open')}[{lasting(window_s)}])"
        return f"(max({failed}) >= {FAILURES_MAX}) or (max({opened}) == 1)"

    @property
    def ttl_s(self) -> Mapping[str, float]:
        """Of every family, as configured."""
        return {line.family: line.ttl for line in inventory(self.settings)}

    @property
    def renewed(self) -> Mapping[str, Timing]:
        """The families whose leases are renewed while they are held."""
        return {
            line.family: timing.settle(ttl=line.ttl, renew_every=line.renew_every, failures=line.failures)
            for line in inventory(self.settings)
            if line.renew_every is not None
        }

    @property
    def shortest(self) -> tuple[str, Timing]:
        """The family that feels a late renewal first."""
        return min(self.renewed.items(), key=lambda each: each[1].ttl_ns)

    @property
    def envelopes(self) -> Mapping[str, float]:
        """How long callers wait for a lock at most, where they wait at all."""
        return {name: each.acquire_timeout for name, each in FAMILIES.items() if each.acquire_timeout}

    @property
    def debt(self) -> int:
        """How many jobs left over are no accident any more."""
        return max(1, round(DEBT_SHARE * self.settings.scheduler.concurrency))

    @property
    def loop_families(self) -> tuple[str, ...]:
        """The locks of periodic tasks: whoever does not lead waits for them for ever, and that is as it should be."""
        return tuple(name for name, each in FAMILIES.items() if each.scope is Scope.LOOP)

    @property
    def takeovers(self) -> tuple[WatchedTakeover, ...]:
        """The parts that have jobs in their hands, and how soon others have those if they die."""
        bounds = {each.key: each for each in takeovers(self.settings) if each.what.startswith("a job that a ")}
        beat = BEAT_SPREAD * self.settings.worker.heartbeat
        since = f"; it is measured from its last heartbeat, up to {beat:g} s before"
        found = []
        for part, keys, more_s, more in (
            ("scheduler", ("scheduler.job_ttl", "scheduler.ack_wait"), 0.0, ""),
            ("worker", ("worker.lease_ttl",), beat, since),
        ):
            bound = next(bounds[key] for key in keys if key in bounds)
            promised = self.settings.takeover
            because = bound.because if promised is None else f"takeover = {promised:g} is promised"
            found.append(WatchedTakeover(part, (promised or bound.seconds) + more_s, because + more))
        return tuple(each for each in found if each.part in self.parts)

    @property
    def loops(self) -> tuple[WatchedLoop, ...]:
        """The periodic tasks that the plane has."""
        bounds = {each.what: each for each in takeovers(self.settings)}
        found = []
        for name, family in LOOPS.items():
            bound = bounds[f"the {name} loop"]
            promised = None if name == "cleanup" else self.settings.takeover
            because = bound.because if promised is None else f"takeover = {promised:g} is promised"
            interval: float = self.settings.value(f"{name}.interval")
            found.append(WatchedLoop(name, family.name, interval, promised or bound.seconds, because))
        return tuple(each for each in found if each.name in self.parts)
