"""What one `Locks` has counted and measured, by family: a snapshot for metrics, tuning and people.

Reading asks no store and waits for nobody. Families are named as in metrics: beyond a hundred they share one name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.core.histogram import NOTHING, Histogram, Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.runtime.recorder import Recorder


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


def measurements(recorder: Recorder, lease_records: Iterable[LeaseRecord]) -> Measurements:
    """A snapshot."""
    held: Counter[str] = Counter()
    degraded: Counter[str] = Counter()
    for lease_record in lease_records:
        if lease_record.recorded.live:
            family = recorder.label(lease_record.wish.family)
            held[family] += 1
            degraded[family] += lease_record.degraded
    waiting = recorder.waiters()
    counts: dict[str, Counter[EventKind]] = {}
    for (kind, family), count in list(recorder.counts.items()):
        counts.setdefault(family, Counter())[kind] = count
    labelled = {
        kind: _by_family(recorder.by_reason() if kind is EventKind.LOST else recorder.by_risk(kind))
        for kind in (EventKind.LOST, EventKind.FELL_BACK, EventKind.EXERCISED, EventKind.DENIED)
    }
    measured: dict[tuple[Measure, str], dict[MeasuredOutcome, Histogram]] = {}
    for (measure, family, outcome), found in recorder.measures().items():
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


def _by_family(counted: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (family, label), count in counted.items():
        found.setdefault(family, {})[label] = count
    return found
