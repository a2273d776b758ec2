"""How long things take, as counts in fixed buckets: cheap enough for every acquisition, and the same for every reader.

One ladder of bounds serves waits, holds, renewals and what is left at a renewal, from a millisecond to an hour. A lock
that is waited for at most two seconds has bounds on both sides of that, so nothing that ends at a limit is lost in the
last bucket. Quantiles are estimated inside a bucket, as Prometheus does, and are never below what was observed by more
than the width of one bucket.

Observing takes no lock: a list item is raised in one step of the interpreter. Nothing here reads a clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from holdfast.core.str_enum import TextEnum
from holdfast.types import MS, NS

LADDER_NS: Final[tuple[int, ...]] = (
    *(ms * MS for ms in (1, 2, 5, 10, 25, 50, 100, 250, 500)),
    *(s * NS for s in (1, 2, 3, 5, 8, 10, 15, 20, 30, 45, 60, 120, 300, 900, 3600)),
)


class Measure(TextEnum):
    """What is measured."""

    WAIT = "wait"  # from asking for a lock until it was had, or was not; by outcome
    HOLD = "hold"  # from the grant until the lease ended; by how it ended
    RENEW = "renew"  # one request that renewed leases together; by whether it was answered
    LEFT = "left"  # what a lease still had when its renewal was confirmed


class MeasuredOutcome(TextEnum):
    """How a wait, a hold or a request ended."""

    GRANTED = "granted"
    DEGRADED = "degraded"  # had without the store, because the policy allows it
    BUSY = "busy"
    FAILED = "failed"  # the store did not answer, or the policy refused to run without it
    GIVEN_UP = "given_up"  # the caller was cancelled or interrupted
    RELEASED = "released"
    LOST = "lost"
    ANSWERED = "answered"
    UNANSWERED = "unanswered"


class Histogram(NamedTuple):
    """What was observed up to now: how many in each bucket (the last one is beyond the ladder), and their sum."""

    counts: tuple[int, ...]
    total_ns: int

    @property
    def number(self) -> int:
        """How many were observed."""
        return sum(self.counts)

    def plus(self, other: Histogram) -> Histogram:
        """Both together."""
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return Histogram(counts, self.total_ns + other.total_ns)

    def quantile_ns(self, share: float) -> int | None:
        """About what this share of all observations did not exceed. None: nothing was observed.

        Beyond the ladder the last bound is all that is known.
        """
        wanted, passed = share * self.number, 0
        if not self.number:
            return None
        for place, count in enumerate(self.counts[:-1]):
            if count and passed + count >= wanted:
                low = LADDER_NS[place - 1] if place else 0
                return low + round((LADDER_NS[place] - low) * max(0.0, wanted - passed) / count)
            passed += count
        return LADDER_NS[-1]

    @classmethod
    def of(cls, durations_ns: Iterable[int]) -> Self:
        """Of durations that are at hand."""
        made = Distribution()
        for ns in durations_ns:
            made.observe(ns)
        return cls(*made.read())


NOTHING: Final = Histogram((0,) * (len(LADDER_NS) + 1), 0)


class Distribution:
    """A histogram in the making."""

    __slots__ = ("_counts", "_total_ns")

    def __init__(self) -> None:
        self._counts = [0] * (len(LADDER_NS) + 1)
        self._total_ns = 0

    def observe(self, ns: int) -> None:
        """One more. A bucket holds what is at most its bound."""
        self._counts[bisect_left(LADDER_NS, ns)] += 1
        self._total_ns += ns

    def read(self) -> Histogram:
        """What was observed up to now."""
        return Histogram(tuple(self._counts), self._total_ns)
