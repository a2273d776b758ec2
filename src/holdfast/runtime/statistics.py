"""Statistics and health of one `Locks`: totals, measurements by family, readings for metrics, and a health probe.

Reading asks no store and waits for nothing. Families are named as in metrics: beyond a hundred they share one name. A
count that appears together with its first event has no rate yet, so families, reasons and risk classes that are known
beforehand begin at zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.core.histogram import NOTHING, Histogram, Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind
from holdfast.core.lease.latency import Tail
from holdfast.core.metric_reading import Reading, Value
from holdfast.core.ports import CircuitBreaker
from holdfast.runtime.recorder import Recorder
from holdfast.runtime.renewer import Renewer
from holdfast.types import MS, NS, LossReason

if TYPE_CHECKING:
    from holdfast.runtime.lease_manager import LeaseManager  # which is made of these


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of one `Locks`, for metrics, consoles and tests. All counts are since it was connected."""

    held: int
    waiting: int
    degraded: int
    granted: int
    busy: int
    busy_peak_to_mean: float  # of the lock-busy retries of the last minute, per 50 ms
    busy_fano: float  # likewise: about 1 at random, far above 1 in waves
    timed_out: int
    store_errors: int
    renewed: int
    renew_requests: int
    unconfirmed: int
    lost: int
    released: int
    not_owned: int
    release_failures: int
    compensated: int
    fallbacks: int
    exercised: int  # also granted without the store, because an exercise pretended a store error
    promotions: int
    denied: int
    keeper_lag: float
    renew_tail: float
    breaker_open: bool


@dataclass(frozen=True, slots=True)
class FamilyMeasurements:
    """The locks of one family. Counts are since the `Locks` was connected."""

    held: int
    degraded: int  # of those held: without the store
    waiting: int
    counts: Mapping[EventKind, int]
    lost: Mapping[str, int]  # by reason
    fallbacks: Mapping[str, int]  # by risk class; "" is none
    exercised: Mapping[str, int]
    denied: Mapping[str, int]
    wait: Mapping[MeasuredOutcome, Histogram]
    hold: Mapping[MeasuredOutcome, Histogram]
    left: Histogram  # what leases still had when a renewal was confirmed

    @property
    def held_for(self) -> Histogram:
        """All holds, however they ended."""
        found = NOTHING
        for each in self.hold.values():
            found = found.plus(each)
        return found


@dataclass(frozen=True, slots=True)
class Measurements:
    """All families of one `Locks`, and the requests that renewed leases of all of them together."""

    families: Mapping[str, FamilyMeasurements]
    renewals: Mapping[MeasuredOutcome, Histogram]


class LeaseStatistics:
    """Reads the counters of the parts behind one `Locks`."""

    def __init__(self, recorder: Recorder, renewer: Renewer, breaker: CircuitBreaker, tail: Tail) -> None:
        self._recorder = recorder
        self._renewer = renewer
        self._breaker = breaker
        self._tail = tail

    def snapshot(self, waiting: int) -> Statistics:
        """Totals and gauges. `waiting`: how many callers are queued at the local mutexes."""
        lease_records = self._renewer.lease_records()
        total, burst = self._recorder.total, self._recorder.busy_burst()
        return Statistics(
            held=sum(lease_record.recorded.live for lease_record in lease_records),
            waiting=waiting,
            degraded=sum(lease_record.degraded for lease_record in lease_records),
            granted=total(EventKind.GRANTED),
            busy=total(EventKind.BUSY),
            busy_peak_to_mean=burst.peak_to_mean,
            busy_fano=burst.fano,
            timed_out=total(EventKind.TIMED_OUT),
            store_errors=total(EventKind.FAILED),
            renewed=self._renewer.renewed,
            renew_requests=self._renewer.requests,
            unconfirmed=total(EventKind.UNCONFIRMED),
            lost=total(EventKind.LOST),
            released=total(EventKind.RELEASED),
            not_owned=total(EventKind.RELEASE_REFUSED),
            release_failures=total(EventKind.RELEASE_FAILED),
            compensated=total(EventKind.COMPENSATED),
            fallbacks=total(EventKind.FELL_BACK),
            exercised=total(EventKind.EXERCISED),
            promotions=total(EventKind.PROMOTED),
            denied=total(EventKind.DENIED),
            keeper_lag=self._renewer.lag_ns() / NS,
            renew_tail=self._tail.value_ns / NS,
            breaker_open=self._breaker.open,
        )

    def measurements(self) -> Measurements:
        """Counts and measured times, by family."""
        held: Counter[str] = Counter()
        degraded: Counter[str] = Counter()
        for lease_record in self._renewer.lease_records():
            if lease_record.recorded.live:
                family = self._recorder.label(lease_record.spec.family)
                held[family] += 1
                degraded[family] += lease_record.degraded
        waiting = self._recorder.waiters()
        counts: dict[str, Counter[EventKind]] = {}
        for (kind, family), count in list(self._recorder.counts.items()):
            counts.setdefault(family, Counter())[kind] = count
        labelled = {
            kind: _by_family(self._recorder.by_reason() if kind is EventKind.LOST else self._recorder.by_risk(kind))
            for kind in (EventKind.LOST, EventKind.FELL_BACK, EventKind.EXERCISED, EventKind.DENIED)
        }
        measured: dict[tuple[Measure, str], dict[MeasuredOutcome, Histogram]] = {}
        for (measure, family, outcome), found in self._recorder.measures().items():
            measured.setdefault((measure, family), {})[outcome] = found
        names = {*held, *waiting, *counts, *(family for _, family in measured if family)}
        return Measurements(
            {
                name: FamilyMeasurements(
                    held=held[name],
                    degraded=degraded[name],
                    waiting=waiting[name],
                    counts=counts.get(name, {}),
                    lost=labelled[EventKind.LOST].get(name, {}),
                    fallbacks=labelled[EventKind.FELL_BACK].get(name, {}),
                    exercised=labelled[EventKind.EXERCISED].get(name, {}),
                    denied=labelled[EventKind.DENIED].get(name, {}),
                    wait=measured.get((Measure.WAIT, name), {}),
                    hold=measured.get((Measure.HOLD, name), {}),
                    left=measured.get((Measure.LEFT, name), {}).get(MeasuredOutcome.ANSWERED, NOTHING),
                )
                for name in sorted(names)
            },
            measured.get((Measure.RENEW, ""), {}),
        )


@dataclass(frozen=True, slots=True)
class Health:
    """Whether leases are being renewed."""

    ok: bool
    problems: tuple[str, ...]
    stalled: bool = False  # leases are held and not renewed; a restart helps here, but not against a failing store

    def __bool__(self) -> bool:
        return self.ok


class LeaseHealth:
    """A probe that fails when this process holds leases and has stopped renewing them, or when the store fails."""

    def __init__(self, renewer: Renewer, breaker: CircuitBreaker) -> None:
        self._renewer = renewer
        self._breaker = breaker

    def report(self) -> Health:
        """Return the health at this moment."""
        problems = []
        lag = self._renewer.stalled_ns()
        shortest = min((each.timing.renew_every_ns for each in self._renewer.lease_records()), default=None)
        stalled = shortest is not None and lag > shortest
        if shortest is not None and stalled:
            problems.append(f"renewal is {lag / NS:.3f} s behind, more than a renewal interval ({shortest / NS:.3f} s)")
        if self._breaker.open:
            problems.append("the store has been failing; the breaker is open")
        return Health(not problems, tuple(problems), stalled)


def _by_family(counted: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (family, label), count in counted.items():
        found.setdefault(family, {})[label] = count
    return found


LATELY_NS: Final = 15 * NS  # the worst value in it is shown, so a scrape every 15 s misses nothing
BUCKETS: Final[Mapping[str, int]] = {"50ms": 50 * MS, "500ms": 500 * MS}
COUNTED: Final[Mapping[str, EventKind]] = {
    "granted": EventKind.GRANTED,
    "busy": EventKind.BUSY,
    "timed_out": EventKind.TIMED_OUT,
    "store_errors": EventKind.FAILED,
    "unconfirmed": EventKind.UNCONFIRMED,
    "released": EventKind.RELEASED,
    "not_owned": EventKind.RELEASE_REFUSED,
    "release_failures": EventKind.RELEASE_FAILED,
    "compensated": EventKind.COMPENSATED,
    "promoted": EventKind.PROMOTED,
    "forced": EventKind.FORCED,
}
_ANSWERS: Final = (MeasuredOutcome.ANSWERED, MeasuredOutcome.UNANSWERED)
_NEVER: Final = FamilyMeasurements(0, 0, 0, {}, {}, {}, {}, {}, {}, {}, NOTHING)


def of_locks(manager: LeaseManager, families: Iterable[str] = (), risks: Iterable[str] = ()) -> Iterator[Reading]:
    """Readings of one `Locks`. `families` and `risks`: those that are known beforehand."""
    known = tuple(risks)
    found = manager.statistics.measurements()
    for name in sorted({*families, *found.families}):
        yield Reading("lock", dict(_family(found.families.get(name, _NEVER), known)), {"family": name})
    for bucket, width_ns in BUCKETS.items():
        burst = manager.recorder.busy_burst(width_ns)
        yield Reading("burst", {"peak_to_mean": burst.peak_to_mean, "fano": burst.fano}, {"bucket": bucket})
    since_ns = manager.clock.now().mono - LATELY_NS
    lag_ns = manager.stalls.loop_lag_ns(since_ns)
    manager.stalls.ask_loop()  # for the next reading; it changes nothing where the loop is also sampled
    yield Reading(
        "leases",
        {
            "renewals": {str(each): found.renewals.get(each, NOTHING) for each in _ANSWERS},
            "keeper_lag_ns": manager.renewer.lag_ns(),
            "renew_tail_ns": manager.tail.value_ns,
            "breaker_open": manager.breaker.open,
            "loop_lag_ns": lag_ns,
            "collection_ns": manager.stalls.collection_ns(since_ns),
            "busy_groups": manager.recorder.busy_groups(),
            "policy_switches": manager.recorder.total(EventKind.POLICY),
        },
    )


def _family(found: FamilyMeasurements, risks: Iterable[str]) -> Iterator[tuple[str, Value]]:
    for field, kind in COUNTED.items():
        yield field, found.counts.get(kind, 0)
    by_risk = dict.fromkeys(risks, 0)
    yield from (("held", found.held), ("degraded", found.degraded), ("waiting", found.waiting))
    yield "lost", {**{str(reason): 0 for reason in LossReason}, **found.lost}
    yield "abandoned", found.lost.get(LossReason.UNCONFIRMED, 0)
    yield "fallbacks", {**by_risk, **found.fallbacks}
    yield "exercised", found.exercised
    yield "denied", {**by_risk, **found.denied}
    yield (
        "wait_ns",
        {str(outcome): each for outcome, each in found.wait.items()} or {str(MeasuredOutcome.GRANTED): NOTHING},
    )
    yield (
        "hold_ns",
        {str(outcome): each for outcome, each in found.hold.items()} or {str(MeasuredOutcome.RELEASED): NOTHING},
    )
    yield "left_ns", found.left
    yield "renewed", found.left.number
