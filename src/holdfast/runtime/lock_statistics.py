"""What the locks of one process say for metrics: each family by itself, and what all of them share.

A count that appears together with its first event has no rate yet, so families, reasons and risk classes that are known
beforehand begin at zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from holdfast.core.histogram import NOTHING, MeasuredOutcome
from holdfast.core.history.events import EventKind
from holdfast.core.metric_reading import Reading, Value
from holdfast.runtime.lease_manager import LeaseManager
from holdfast.runtime.statistics import FamilyMeasurements
from holdfast.types import MS, NS, LossReason

LATELY_NS: Final = 15 * NS  # what was worst in it is shown: whoever scrapes that often misses nothing
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
    """The locks of one `Locks`. `families` and `risks`: those that are known beforehand."""
    known = tuple(risks)
    found = manager.measurements()
    for name in sorted({*families, *found.families}):
        yield Reading("lock", dict(_family(found.families.get(name, _NEVER), known)), {"family": name})
    for bucket, width_ns in BUCKETS.items():
        burst = manager.recorder.busy_burst(width_ns)
        yield Reading("burst", {"peak_to_mean": burst.peak_to_mean, "fano": burst.fano}, {"bucket": bucket})
    since_ns = manager.clock.now().mono - LATELY_NS
    lag_ns = manager.loop_lag_ns(since_ns)
    manager.ask_loop()  # for who asks next; where the loop is sampled besides, it changes nothing
    yield Reading(
        "leases",
        {
            "renewals": {str(each): found.renewals.get(each, NOTHING) for each in _ANSWERS},
            "keeper_lag_ns": manager.keeper.lag_ns(),
            "renew_tail_ns": manager.tail.value_ns,
            "breaker_open": manager.health.open,
            "loop_lag_ns": lag_ns,
            "collection_ns": manager.collection_ns(since_ns),
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
