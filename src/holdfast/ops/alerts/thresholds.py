"""When a number is worth waking somebody for: the thresholds of alert rules, each from a setting and a reason. Pure.

Nothing here is a round number that somebody liked. What a lock or a loop can stand follows from its times
(`core.lease.timing`, `plane.loops.cadence`); how long to look follows from how often the numbers are read; and what may
go wrong without anybody being told is one budget, the share that TTLs are computed for.

The rule behind all ratios: an alert has to hold for longer than the shortest window that it looks at. So one burst,
however large, has left the window before anybody is woken. Only what goes on pages, and a failover does not.

Lengths of time are seconds, because rules are; leases are counted in nanoseconds, as everywhere.
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
"""How often numbers are read, unless something else is said: what Prometheus does when nobody has told it."""

SAMPLES: Final = 5
"""A rate wants four samples to bridge a counter that began anew, and one more for a scrape that failed."""

WINDOW_S: Final = 300.0
"""What operators look at first: the five minutes of every query that they know."""

BUDGET: Final = 0.01
"""The share that may go wrong as designed: a TTL is computed from the 99th percentile, so one hold in a hundred may
outlive its lease."""

VOLUME: Final = math.ceil(1 / BUDGET)
"""With fewer than this, one single event is more than the budget: a ratio says nothing."""

QUANTILE: Final = 1 - BUDGET

BLIP_S: Final = 30.0
"""An outage of a store that nobody is woken for: about a failover of Redis, and the shortest that drills rehearse."""

COOL_S: Final = COOL_MAX_NS * 6 / 5 / NS
"""How long a process may go on taking a store to be down that is back: the breaker's longest pause, with its jitter."""

ENVELOPE_SHARE: Final = 0.5
"""Of the time that callers wait at most: once the slowest take half of it, a doubling makes them give up."""

FASTER: Final = 1.5
"""A trend accelerates when one window adds half as much again as the one before: it doubles in less than two."""

FLOOR_SHARE: Final = 0.1
"""Of what can be stood: below a tenth of it a trend is watched and nobody is told."""

DEBT_SHARE: Final = 0.25
"""Of what one scheduler handles at once: as many jobs as are left over by one that dies on a busy day."""

WAVE: Final = 10
"""Retries that arrive together once for each delay. Fewer are neighbours by chance on any busy lock."""


class Burn(NamedTuple):
    """How fast a budget may be used up, and over which windows that is looked at.

    Both windows must show it: the long one that it matters, the short one that it still goes on.
    """

    times: float  # the budget
    long_s: float
    short_s: float

    @property
    def hold_s(self) -> float:
        """For how long it must be so: longer than the short window, so that no single burst can do it."""
        return 2 * self.short_s

    def limit(self, budget: float = BUDGET) -> float:
        """The ratio above which it is."""
        return self.times * budget


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to look, given how often numbers are read."""

    scrape_s: float = SCRAPE_S

    @property
    def window_s(self) -> float:
        """Over which a rate is taken."""
        return max(WINDOW_S, SAMPLES * self.scrape_s)

    @property
    def hold_s(self) -> float:
        """How long something must go on that is seen in one window: longer than that."""
        return 2 * self.window_s

    @property
    def hard_s(self) -> float:
        """How long one single event is shown: long enough to be seen on the page after a pager rang."""
        return 3 * self.window_s

    @property
    def seen_s(self) -> float:
        """Until two scrapes have said the same."""
        return 2 * self.scrape_s

    @property
    def settle_s(self) -> float:
        """What heals by itself has healed, and is seen to have: a short outage, the breaker's pause, two scrapes."""
        return BLIP_S + COOL_S + self.seen_s

    @property
    def fast(self) -> Burn:
        """A fiftieth of a month's budget in an hour: somebody should get up."""
        return Burn(14.4, 3600.0, self.window_s)

    @property
    def slow(self) -> Burn:
        """More than the budget for hours, and still: somebody should look in the morning."""
        return Burn(1.0, 6 * 3600.0, 6 * self.window_s)


def thin_ns(timing: Timing) -> int:
    """What a lease had left at a renewal that came too late for comfort: no more than when its holder is warned.

    A bound of the ladder on which it is measured, so that the share below it is counted and not estimated.
    """
    warned_ns = timing.valid_ns() - timing.warn_age_ns()
    return LADDER_NS[max(0, bisect_right(LADDER_NS, warned_ns) - 1)]


def slow_renewal_ns(ttl_ns: int) -> int:
    """Renewals that take longer than half the guard make the guard grow, and that is taken from the lease."""
    return guard_ns(ttl_ns) // 2


def overdue_s(interval_s: float, takeover_s: float, scrape_s: float) -> float:
    """The age of a loop's last good tick when its leader has died just before the next one, and all went as promised.

    The longest time between two ticks, the takeover, one interval for the tick itself, and the scrape that shows it.
    """
    longest_s = Cadence(round(interval_s * NS)).longest_wait_ns / NS
    return longest_s + takeover_s + interval_s + scrape_s


def bound_above(seconds: float) -> int | None:
    """The least bound of the ladder that is not below a length of time: the share above it is counted, not estimated.

    None: it is longer than anything that is told apart.
    """
    place = bisect_left(LADDER_NS, round(seconds * NS))
    return LADDER_NS[place] if place < len(LADDER_NS) else None


def wave_fano(delay_s: float, bucket_s: float) -> float | None:
    """The Fano factor of `WAVE` retries that come together once for each delay, counted in buckets.

    One bucket in `delay / bucket` has all of them: variance over mean is then WAVE x (1 - bucket / delay). None: the
    delay is so short that waves fill every other bucket, and cannot be told from a steady stream.
    """
    return None if delay_s < 2 * bucket_s else WAVE * (1 - bucket_s / delay_s)
