"""How long something took, over many times: the few numbers that decisions are made from, each with where it is from.

A spread is exact when it was made of durations (a history file) and estimated inside a bucket when it was made of
counts (metrics); `source` tells which. Values beyond the ladder of buckets are unknown, and `open` marks them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.core.histogram import LADDER_NS, Histogram
from holdfast.types import MS, NS

ENOUGH: Final = 100
"""Observations below which there is no p99: with fewer, one of them in a hundred has not been seen even once."""


class SourcedDuration(NamedTuple):
    """A length of time, and where it came from."""

    ns: int
    source: str


class Spread(NamedTuple):
    """Many durations of one kind."""

    counts: Histogram
    p50_ns: int
    p95_ns: int
    p99_ns: int
    longest_ns: int  # of counts: the bound of the last bucket that has any
    source: str
    exact: bool

    @property
    def number(self) -> int:
        """How many there were."""
        return self.counts.number

    @property
    def enough(self) -> bool:
        """Whether a p99 means anything."""
        return self.number >= ENOUGH

    @property
    def open(self) -> bool:
        """Whether some lay beyond the last bucket, so that the longest is not known."""
        return not self.exact and self.counts.counts[-1] > 0

    def beyond(self, ns: int) -> int:
        """How many took longer, at most: all of a bucket that reaches beyond it."""
        tops: list[float] = [*LADDER_NS, math.inf]
        if self.exact:
            tops = [min(top, self.longest_ns) for top in tops]
        return sum(count for count, top in zip(self.counts.counts, tops, strict=True) if top > ns)

    def p99(self) -> SourcedDuration:
        """The p99 with its source."""
        how = "" if self.exact else f", estimated between {shown(_below(self.p99_ns))} and {shown(_above(self.p99_ns))}"
        return SourcedDuration(self.p99_ns, f"p99 of {self.number:,} {self.source}{how}")


def of_counts(counts: Histogram, source: str) -> Spread:
    """A spread of counts in buckets."""
    last = max((place for place, count in enumerate(counts.counts) if count), default=0)
    return Spread(
        counts,
        counts.quantile_ns(0.5) or 0,
        counts.quantile_ns(0.95) or 0,
        counts.quantile_ns(0.99) or 0,
        LADDER_NS[min(last, len(LADDER_NS) - 1)] if counts.number else 0,
        source,
        exact=False,
    )


def of_durations(durations_ns: Sequence[int], source: str) -> Spread:
    """A spread of durations that are at hand."""
    found = sorted(max(0, each) for each in durations_ns)
    return Spread(
        Histogram.of(found),
        _at(found, 50),
        _at(found, 95),
        _at(found, 99),
        found[-1] if found else 0,
        source,
        exact=True,
    )


def shown(ns: int) -> str:
    """A length of time for people: milliseconds below a second, else seconds to the hundredth."""
    return f"{ns / MS:.4g} ms" if 0 < abs(ns) < NS else f"{round(ns / NS, 2):.12g} s"


def _at(found: Sequence[int], percent: int) -> int:
    """The smallest that this share of all did not exceed."""
    return found[max(0, -(-len(found) * percent // 100) - 1)] if found else 0


def _below(ns: int) -> int:
    return max((bound for bound in LADDER_NS if bound < ns), default=0)


def _above(ns: int) -> int:
    return next((bound for bound in LADDER_NS if bound >= ns), LADDER_NS[-1])
