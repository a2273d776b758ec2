"""How bunched lock-busy retries are: the number to compare before and after a change of the retry delay.

Retries are counted in buckets of 50 ms over the last minute: a tenth of the usual delay, because waves that are 500 ms
apart look perfectly even in buckets of 500 ms. *Peak to mean* is how much worse the worst bucket is
than an average one; the *Fano factor* (variance over mean) is 1 for retries that come at random, and far above 1 for
retries that come in waves. Both are 0 when nothing was counted. The clock is the caller's.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.types import MS

BUCKET_NS = 50 * MS
BUCKETS = 1200


class Burst(NamedTuple):
    """How bunched the events of the last minute were."""

    events: int
    peak_to_mean: float
    fano: float


class Burstiness:
    """Counts per bucket, in a ring. Writers may race: a lost count does not matter here."""

    __slots__ = ("_counts", "_first", "_newest")

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self._first: int | None = None
        self._newest = 0

    def note(self, now_ns: int) -> None:
        """One retry, now."""
        self._turn(now_ns)
        self._counts[self._newest % BUCKETS] += 1

    def read(self, now_ns: int, width_ns: int = BUCKET_NS) -> Burst:
        """The last minute, or as much of it as has passed since the first retry, in buckets of this width.

        A width that is a multiple of 50 ms; the rest of the oldest bucket is ignored.
        """
        self._turn(now_ns)
        if self._first is None:
            return Burst(0, 0.0, 0.0)
        size = min(BUCKETS, self._newest - self._first + 1)
        fine = [self._counts[(self._newest - age) % BUCKETS] for age in range(size)]
        each = max(1, width_ns // BUCKET_NS)
        whole = max(1, size // each)
        counts = [sum(fine[place * each : (place + 1) * each]) for place in range(whole)]
        events, size = sum(counts), whole
        if not events:
            return Burst(0, 0.0, 0.0)
        mean = events / size
        variance = sum((count - mean) ** 2 for count in counts) / size
        return Burst(events, max(counts) / mean, variance / mean)

    def _turn(self, now_ns: int) -> None:
        bucket = now_ns // BUCKET_NS
        if self._first is None:
            self._first = self._newest = bucket
        for skipped in range(min(bucket - self._newest, BUCKETS)):
            self._counts[(bucket - skipped) % BUCKETS] = 0
        self._newest = max(self._newest, bucket)
