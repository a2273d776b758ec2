"""The thresholds of alert rules, each derived from a setting with a reason. Pure.

No threshold is an arbitrary round number. The tolerance of a lock or a loop follows from its times
(`core.lease.timing`, `plane.loops.cadence`). Windows follow from the scrape interval. The tolerated error share is one
budget: the share that TTLs are computed for.

The rule behind all ratios: an alert has to hold for longer than its shortest window. So a burst, however large, has
left the window before the alert fires. Only lasting problems page, and a failover does not.

Durations are seconds, as in rules; leases are counted in nanoseconds, as everywhere.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.core.histogram import LADDER_NS
from holdfast.core.lease.circuit_breaker import COOL_MAX_NS
from holdfast.core.lease.timing import Timing, guard_ns
from holdfast.plane.loops.cadence import Cadence
from holdfast.types import NS

SCRAPE_S: Final = 60.0
"""The default scrape interval of Prometheus."""

SAMPLES: Final = 5
"""A rate wants four samples to bridge a counter restart, and one more for a failed scrape."""

WINDOW_S: Final = 300.0
"""The five-minute window that operators know from most queries."""

BUDGET: Final = 0.01
"""The share that may go wrong by design: a TTL is computed from the 99th percentile, so one hold in a hundred may
outlive its lease."""

VOLUME: Final = math.ceil(1 / BUDGET)
"""With fewer events than this, a single event exceeds the budget: a ratio says nothing."""

QUANTILE: Final = 1 - BUDGET

BLIP_S: Final = 30.0
"""A store outage that does not page: about a failover of Redis, and the shortest outage that drills rehearse."""

COOL_S: Final = COOL_MAX_NS * 6 / 5 / NS
"""How long a process may consider a recovered store down: the breaker's longest pause, with its jitter."""

ENVELOPE_SHARE: Final = 0.5
"""Share of the acquire deadline: once the slowest callers wait for half of it, a doubling makes them give up."""

FASTER: Final = 1.5
"""A trend accelerates when one window adds half as much again as the one before: it doubles in less than two."""

FLOOR_SHARE: Final = 0.1
"""Share of the tolerance: below a tenth of it, a trend fires no alert."""

DEBT_SHARE: Final = 0.25
"""Share of a scheduler's concurrency: the jobs that a crashed scheduler leaves behind on a busy day."""

WAVE: Final = 10
"""Retries that arrive together once for each delay. Fewer coincide by chance on any busy lock."""


class Burn(NamedTuple):
    """How fast a budget may be used up, and over which windows.

    Both windows must show it: the long one that it matters, the short one that it still continues.
    """

    times: float  # multiples of the budget
    long_s: float
    short_s: float

    @property
    def hold_s(self) -> float:
        """How long the condition must hold: longer than the short window, so that no single burst fires it."""
        return 2 * self.short_s

    def limit(self, budget: float = BUDGET) -> float:
        """The ratio above which it fires."""
        return self.times * budget


@dataclass(frozen=True, slots=True)
class EvaluationWindows:
    """Evaluation windows, derived from the scrape interval."""

    scrape_s: float = SCRAPE_S

    @property
    def window_s(self) -> float:
        """The window of a rate."""
        return max(WINDOW_S, SAMPLES * self.scrape_s)

    @property
    def hold_s(self) -> float:
        """How long a condition that one window shows must hold: longer than that window."""
        return 2 * self.window_s

    @property
    def hard_s(self) -> float:
        """How long a single event stays visible: long enough for the person who was paged."""
        return 3 * self.window_s

    @property
    def seen_s(self) -> float:
        """Until two scrapes agree."""
        return 2 * self.scrape_s

    @property
    def settle_s(self) -> float:
        """Until a short outage has recovered and is seen to: the outage, the breaker's pause, two scrapes."""
        return BLIP_S + COOL_S + self.seen_s

    @property
    def fast(self) -> Burn:
        """A fiftieth of a month's budget in an hour: page."""
        return Burn(14.4, 3600.0, self.window_s)

    @property
    def slow(self) -> Burn:
        """More than the budget for hours, and still: ticket."""
        return Burn(1.0, 6 * 3600.0, 6 * self.window_s)


def thin_ns(timing: Timing) -> int:
    """The time left at a renewal that came too late: no more than when the holder is warned.

    A bucket bound of the histogram, so that the share below it is counted and not estimated.
    """
    warned_ns = timing.valid_ns() - timing.warn_age_ns()
    return LADDER_NS[max(0, bisect_right(LADDER_NS, warned_ns) - 1)]


def slow_renewal_ns(ttl_ns: int) -> int:
    """Renewals that take longer than half the safety margin make the margin grow, which shortens the lease."""
    return guard_ns(ttl_ns) // 2


def overdue_s(interval_s: float, takeover_s: float, scrape_s: float) -> float:
    """The maximum age of a loop's last good tick if its leader crashed just before the next one.

    The longest time between two ticks, the takeover, one interval for the tick, and the scrape that shows it.
    """
    longest_s = Cadence(round(interval_s * NS)).longest_wait_ns / NS
    return longest_s + takeover_s + interval_s + scrape_s


def bound_above(seconds: float) -> int | None:
    """The smallest bucket bound that is not below a duration: the share above it is counted, not estimated.

    None: it is longer than all bounds.
    """
    place = bisect_left(LADDER_NS, round(seconds * NS))
    return LADDER_NS[place] if place < len(LADDER_NS) else None


def wave_fano(delay_s: float, bucket_s: float) -> float | None:
    """The Fano factor of `WAVE` retries that come together once for each delay, counted in buckets.

    One bucket in `delay / bucket` has all of them: variance over mean is then WAVE x (1 - bucket / delay). None: the
    delay is so short that waves fill every other bucket, and look like a steady stream.
    """
    return None if delay_s < 2 * bucket_s else WAVE * (1 - bucket_s / delay_s)
