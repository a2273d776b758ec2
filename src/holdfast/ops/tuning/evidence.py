"""Tuning data in one shape for all sources, and the evidence about one family.

Sources (`tuning.metrics`, `tuning.prometheus`, `tuning.history`) fill a `TuningData`; several can be combined. It and
the settings give the evidence for `core.tuning.ttl`. Missing data is reported with a fix and never filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.histogram import LADDER_NS, NOTHING, Histogram
from holdfast.core.lease.timing import Timing, drift_ns
from holdfast.core.tuning.contention import Contention
from holdfast.core.tuning.percentiles import ENOUGH, SourcedDuration, Spread, of_counts, shown
from holdfast.core.tuning.ttl import FamilyEvidence

RENEWED_LATE: Final = "a late renewal"


@dataclass(slots=True)
class TuningData:
    """All data of one source, or of several."""

    source: str
    holds: dict[tuple[str, str], Spread] = field(default_factory=dict)  # family and job class; "" is all of them
    left: dict[str, Histogram] = field(default_factory=dict)  # time left at renewals
    requests: Spread | None = None  # answered requests to the store
    unanswered: int = 0
    tail: SourcedDuration | None = None  # as a process reports it
    pauses: list[SourcedDuration] = field(default_factory=list)
    ticks: dict[str, SourcedDuration] = field(default_factory=dict)  # the longest of each loop
    lost: dict[str, int] = field(default_factory=dict)  # leases that ended before they were released, by family
    contention: Mapping[str, Contention] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def families(self) -> list[str]:
        """The families with any data."""
        return sorted({family for family, _ in self.holds} | set(self.left))

    def classes(self, family: str) -> dict[str, Spread]:
        """The holds of a family: all of them (""), and by job class."""
        return {name: spread for (of, name), spread in sorted(self.holds.items()) if of == family}


def spreads(counts: Mapping[tuple[str, str], Histogram], noun: str, source: str) -> dict[tuple[str, str], Spread]:
    """Spreads of counts, without empty ones."""
    return {key: of_counts(each, f"{noun} ({source})") for key, each in counts.items() if each.number}


def evidence(
    gathered: TuningData, family: str, *, renewed: bool, present: Timing | None, loop: str | None
) -> FamilyEvidence:
    """The evidence about one family. `present`: the times in effect.

    `loop`: the loop that takes the lock; without renewal it is held for a whole tick.
    """
    hold, no_hold = _hold(gathered, family)
    if loop is not None and not renewed:
        hold, no_hold = gathered.ticks.get(loop), f"no tick of the {loop} loop was seen"
    tail, no_tail = _tail(gathered)
    pauses = tuple(gathered.pauses)
    if renewed and present is not None:
        late = lateness(gathered.left.get(family, NOTHING), present.ttl_ns, present.renew_every_ns)
        pauses += () if late is None else (late,)
    return FamilyEvidence(
        family,
        renewed,
        hold=hold,
        no_hold=no_hold,
        tail=tail,
        no_tail=no_tail,
        pauses=pauses,
        requests=gathered.requests,
        unanswered=gathered.unanswered,
    )


def lateness(left: Histogram, ttl_ns: int, every_ns: int) -> SourcedDuration | None:
    """How late the latest renewal was confirmed, from the time left at renewals. None: unknown.

    A timely renewal leaves the whole TTL but one interval. Values in the same bucket as that are indistinguishable
    from it.
    """
    usual = ttl_ns - drift_ns(ttl_ns) - every_ns
    place = next((place for place, count in enumerate(left.counts) if count), None)
    if place is None or place >= len(LADDER_NS) or LADDER_NS[place] >= usual:
        return None
    least = LADDER_NS[place - 1] if place else 0
    span = f"between {shown(least)} and {shown(LADDER_NS[place])} were left of {shown(ttl_ns)}"
    return SourcedDuration(usual - least, f"{RENEWED_LATE}: {span}, one of {left.number:,}")


def too_few(number: int, what: str, family: str = "") -> str:
    """The sentence that there is not enough data."""
    of = f" of {family}" if family else ""
    return f"not enough data: {number:,} {what}{of}, at least {ENOUGH} are needed for a p99"


def _hold(gathered: TuningData, family: str) -> tuple[SourcedDuration | None, str]:
    """The p99 of the job class with the longest, of those with enough; else of all together."""
    found = gathered.classes(family)
    enough = {name: each for name, each in found.items() if each.enough}
    worst = max(enough.items(), key=lambda item: (item[1].p99_ns, bool(item[0])), default=None)
    if worst is None:
        return None, too_few(max((each.number for each in found.values()), default=0), "holds", family)
    name, spread = worst
    if spread.open and spread.p99_ns >= LADDER_NS[-1]:
        return None, f"the p99 of its holds lies beyond {shown(LADDER_NS[-1])}, where metrics do not distinguish them"
    figure = spread.p99()
    return (figure._replace(source=f"{figure.source}, job class {name}") if name else figure), ""


def _tail(gathered: TuningData) -> tuple[SourcedDuration | None, str]:
    requests = gathered.requests
    if requests is None or not requests.enough:
        return None, too_few(0 if requests is None else requests.number, "requests to the store")
    if requests.exact:
        seen = SourcedDuration(requests.longest_ns, f"the slowest of {requests.number:,} {requests.source}")
    else:
        top = next((bound for bound in LADDER_NS if requests.beyond(bound) * 1000 <= requests.number), LADDER_NS[-1])
        seen = SourcedDuration(top, f"99.9 % of {requests.number:,} {requests.source} took at most that long")
    told = gathered.tail
    return (told if told is not None and told.ns > seen.ns else seen), ""
