"""The parts of the settings that alert rules need: locks and loops with their times, and evaluation windows."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.lease import timing
from holdfast.core.lease.circuit_breaker import FAILURES_MAX
from holdfast.core.lease.timing import Timing
from holdfast.errors import BadInput
from holdfast.ops.alerts.model import RUNBOOKS, lasting
from holdfast.ops.alerts.promql import PROCESS, Queries
from holdfast.ops.alerts.thresholds import DEBT_SHARE, SCRAPE_S, EvaluationWindows
from holdfast.ops.http_client import check_url
from holdfast.plane.locks.registry import FAMILIES, Scope
from holdfast.plane.process.plane import PARTS, check_parts
from holdfast.plane.settings.consistency import takeovers
from holdfast.plane.settings.inventory import inventory
from holdfast.plane.settings.lock_times import LOOPS
from holdfast.plane.settings.settings import Settings

BEAT_SPREAD: Final = 1.2  # a heartbeat may arrive this many intervals after the previous one
SCRAPE_MAX_S: Final = 120.0  # beyond this, Prometheus sometimes treats a series as stale between two scrapes
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OWN: Final = {"severity", "alertname", "job", "instance", "le"}


@dataclass(frozen=True, slots=True)
class WatchedLoop:
    """One periodic task."""

    name: str
    family: str
    interval_s: float
    takeover_s: float  # until another process leads it: promised, else computed
    because: str

    @property
    def minor(self) -> bool:
        """Whether it can wait until the morning: late cleanup does no harm."""
        return self.name == "cleanup"


@dataclass(frozen=True, slots=True)
class WatchedTakeover:
    """The jobs of a crashed component, until another process takes them over."""

    part: str
    bound_s: float  # of the measured takeover time: promised, else computed
    because: str


@dataclass(frozen=True, slots=True)
class AlertPlan:
    """One plane to watch."""

    settings: Settings = field(default_factory=Settings)
    parts: Collection[str] = PARTS
    scrape_s: float = SCRAPE_S
    match: Mapping[str, str] = field(default_factory=dict)
    page: str = RUNBOOKS  # the address of the page of runbooks

    def __post_init__(self) -> None:
        if not check_parts(self.parts):
            raise BadInput("parts", "is empty", f"use some of {', '.join(PARTS)}")
        if not 1.0 <= self.scrape_s <= SCRAPE_MAX_S:
            raise BadInput("scrape", f"{self.scrape_s:g} s is out of range", f"use 1 to {SCRAPE_MAX_S:g} seconds")
        if self.page != RUNBOOKS:
            check_url("runbook-url", self.page)
        for name, value in self.match.items():
            if not _LABEL.fullmatch(name) or name in _OWN:
                raise BadInput("match", f"{name!r:.60} is no label that tells planes apart", "use plane=blue")
            if not value or not value.isprintable() or set(value) & set('"\\'):
                raise BadInput("match", f"{value!r:.60} is no value of a label", "use letters and digits")

    @property
    def windows(self) -> EvaluationWindows:
        """The evaluation windows."""
        return EvaluationWindows(self.scrape_s)

    @property
    def queries(self) -> Queries:
        """Writes expressions."""
        return Queries(self.match)

    def store_was_down(self, window_s: float) -> str:
        """Whether the store was down at any time in a window, as an expression without labels.

        A short outage, and an open breaker, can fall between two scrapes; the failed attempts are still counted.
        """
        failed = self.queries.increase("lock_store_errors_total", window_s, by=PROCESS)
        opened = f"max_over_time({self.queries.series('store_breaker_open')}[{lasting(window_s)}])"
        return f"(max({failed}) >= {FAILURES_MAX}) or (max({opened}) == 1)"

    @property
    def ttl_s(self) -> Mapping[str, float]:
        """The TTL of each family, as configured."""
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
        """The family that notices a late renewal first."""
        return min(self.renewed.items(), key=lambda each: each[1].ttl_ns)

    @property
    def envelopes(self) -> Mapping[str, float]:
        """The acquire deadline of each family that waits."""
        return {name: each.acquire_timeout for name, each in FAMILIES.items() if each.acquire_timeout}

    @property
    def debt(self) -> int:
        """The number of overdue jobs that is no longer an accident."""
        return max(1, round(DEBT_SHARE * self.settings.scheduler.concurrency))

    @property
    def loop_families(self) -> tuple[str, ...]:
        """The locks of loops. Every process that does not lead a loop waits for its lock forever, by design."""
        return tuple(name for name, each in FAMILIES.items() if each.scope is Scope.LOOP)

    @property
    def takeovers(self) -> tuple[WatchedTakeover, ...]:
        """The components that hold jobs, and how soon other processes take the jobs over after a crash."""
        bounds = {each.key: each for each in takeovers(self.settings) if each.what.startswith("a job that a ")}
        beat = BEAT_SPREAD * self.settings.worker.heartbeat
        since = f"; measured from its last heartbeat, up to {beat:g} s earlier"
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
        """The loops of the plane."""
        bounds = {each.what: each for each in takeovers(self.settings)}
        found = []
        for name, family in LOOPS.items():
            bound = bounds[f"the {name} loop"]
            promised = None if name == "cleanup" else self.settings.takeover
            because = bound.because if promised is None else f"takeover = {promised:g} is promised"
            interval: float = self.settings.value(f"{name}.interval")
            found.append(WatchedLoop(name, family.name, interval, promised or bound.seconds, because))
        return tuple(each for each in found if each.name in self.parts)
