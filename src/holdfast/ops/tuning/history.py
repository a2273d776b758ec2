"""Tuning data from an audit ledger: exact holds, round trips of grants, and pauses that lost a lease.

A grant records when its request was sent. So its round trip to the store is known, and stands for that of a renewal:
same store, same path. Pauses come from autopsies of losses, without host suspensions, which should lose a lease. Times
come from the wall clocks of the writers: impossible durations are skipped and counted.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.timing import TTL_MAX_NS
from holdfast.core.tuning.contention import ContentionReader
from holdfast.core.tuning.percentiles import SourcedDuration, of_durations
from holdfast.observe.ledger.reader import Findings, Wanted, read
from holdfast.ops.tuning.evidence import TuningData
from holdfast.ops.tuning.metrics import FALSE_REASONS

_ENDS: Final = frozenset({EventKind.RELEASED, EventKind.RELEASE_REFUSED, EventKind.RELEASE_FAILED, EventKind.LOST})
_PAUSES: Final = {
    "keeper_lag_ns": "the renewer was late",
    "starved_ns": "the process did not run",
    "collection_ns": "a garbage collection",
}
_SAMPLES_MAX: Final = 5_000_000  # of one kind; a ledger of half a gigabyte has fewer


class _HistoryReader:
    """The durations in the records."""

    def __init__(self) -> None:
        self.holds: dict[str, list[int]] = defaultdict(list)
        self.trips: list[int] = []
        self.pauses: dict[str, int] = {}
        self.lost: dict[str, int] = defaultdict(int)
        self.unanswered = 0
        self.strange = 0
        self._open: dict[tuple[str, int], tuple[str, int]] = {}

    def note(self, record: Record) -> None:
        """Add one record."""
        kind, fence = record.kind, record.fence
        if kind is EventKind.GRANTED and fence is not None:
            self._open[record.key, fence] = record.family, record.at_ns
            if record.began_ns is not None:
                self._keep(self.trips, record.at_ns - record.began_ns)
        elif kind is EventKind.UNCONFIRMED:
            self.unanswered += 1
        elif kind in _ENDS and fence is not None:
            begun = self._open.pop((record.key, fence), None)
            if begun is not None:
                self._keep(self.holds[begun[0]], record.at_ns - begun[1])
            if kind is EventKind.LOST:
                self._autopsy(record)

    def _autopsy(self, record: Record) -> None:
        if record.reason not in FALSE_REASONS:
            return
        self.lost[record.family] += 1
        facts: Any = record.facts or {}
        for name in _PAUSES:
            value = facts.get(name)
            if type(value) is int and 0 < value <= TTL_MAX_NS:
                self.pauses[name] = max(self.pauses.get(name, 0), value)

    def _keep(self, kept: list[int], ns: int) -> None:
        if not 0 <= ns <= TTL_MAX_NS or len(kept) >= _SAMPLES_MAX:
            self.strange += 1
        else:
            kept.append(ns)


def read_history(path: Path, *, family: str | None = None, since_ns: int | None = None) -> tuple[TuningData, Findings]:
    """The data of a ledger, and the findings of its reading."""
    findings = Findings()
    reading, contention = _HistoryReader(), ContentionReader()
    wanted = None if family is None and since_ns is None else Wanted(family=family, since_ns=since_ns)
    for record in read(path, wanted, findings):
        reading.note(record)
        contention.note(record)
    found = TuningData(str(path), contention=contention.found())
    for name, durations in reading.holds.items():
        if durations:
            found.holds[name, ""] = of_durations(durations, f"holds ({path.name})")
    if reading.trips:
        found.requests = of_durations(reading.trips, f"grants, from request to answer ({path.name})")
    found.unanswered = reading.unanswered
    found.lost = dict(reading.lost)
    found.pauses = [
        SourcedDuration(ns, f"{_PAUSES[name]}, by the autopsy of a loss") for name, ns in reading.pauses.items()
    ]
    if reading.strange:
        found.remarks.append(f"{reading.strange:,} durations in {path.name} were impossible and skipped")
    return found, findings
