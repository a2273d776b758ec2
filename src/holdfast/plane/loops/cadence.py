"""When a periodic task ticks, and when other replicas try to lead. Pure: no clock and no randomness of its own.

Promises: ticks lie on a grid of one interval from the moment at which leadership began, each moved by a jitter that is
never negative and never more than `spread_ns`; so the rate is exactly one for each interval, however long it continues,
and two ticks are never closer than the interval less the spread. After a tick that took longer than that, the next is
at the next point of the grid; missed ticks are counted, and not repeated. A replica waits at most one interval between
two attempts to lead.

`draw(n)` returns a uniform integer in [0, n). Times are nanoseconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from holdfast.core.backoff import Draw
from holdfast.plane.jobs.rules import StateLimits
from holdfast.plane.model.job_states import JobState
from holdfast.types import NS

SPREAD_SHARE: Final = 10  # the jitter is at most this part of the interval


class Mode(StrEnum):
    """How the one replica that runs a loop is chosen."""

    STICKY = "sticky"  # a leader keeps its lease and renews it, until it stops or dies
    ROTATING = "rotating"  # a hold of two intervals that is never released, so that expiry rotates it


class Due(NamedTuple):
    """The next tick: its number on the grid, when it is due, and how many were missed before it."""

    number: int
    at_ns: int
    missed: int


@dataclass(frozen=True, slots=True)
class Cadence:
    """The schedule of one loop."""

    interval_ns: int

    @property
    def spread_ns(self) -> int:
        """How far jitter may move a tick."""
        return self.interval_ns // SPREAD_SHARE

    def phase_ns(self, draw: Draw) -> int:
        """The delay of the first attempt to lead, so that replicas that start together do not stay in step."""
        return draw(max(1, self.interval_ns))

    def next_due(self, began_ns: int, number: int, now_ns: int, draw: Draw) -> Due:
        """The tick after number `number` of a leadership that began at `began_ns`."""
        passed = (now_ns - began_ns - self.spread_ns) // self.interval_ns + 1
        coming = max(number + 1, passed)
        at_ns = began_ns + coming * self.interval_ns + draw(self.spread_ns + 1)
        return Due(coming, max(now_ns, at_ns), coming - number - 1)

    def retry_ns(self, draw: Draw) -> int:
        """How long a replica that does not lead waits for its next attempt: a little less than an interval."""
        return self.interval_ns - draw(self.spread_ns + 1)

    def after_window_ns(self, left_ns: int, draw: Draw, *, own: bool) -> int:
        """How long to wait for the end of a hold that has `left_ns` left.

        The replica that had it comes last, so that another one gets it.
        """
        half = self.spread_ns // 2
        return left_ns + (half if own else 0) + draw(half + 1)

    @property
    def longest_wait_ns(self) -> int:
        """The longest time between two ticks of one leader without delays."""
        return self.interval_ns + self.spread_ns


def replay_problems(limits: StateLimits, interval_ns: int, redispatch_ns: int) -> list[str]:
    """Why a replay would never happen: the time limit of a state is shorter than the interval of the replayer."""
    wait_ns = Cadence(interval_ns).longest_wait_ns
    seen = {
        JobState.PENDING: limits.replay_ns,
        JobState.SCHEDULED: limits.replay_ns,
        JobState.RETRYING: limits.replay_ns,
        JobState.DISPATCHED: redispatch_ns,
    }
    return (
        limits.problems()
        + [
            f"{state} is timed out after {limit / NS:g} s, but may be replayed only after {(age + wait_ns) / NS:g} s "
            f"({age / NS:g} s, and up to {wait_ns / NS:g} s until the replayer comes round)"
            for state, age in seen.items()
            if (limit := limits.limit_ns(state)) is not None and age < limit <= age + wait_ns
        ]
        + [
            f"{state} is timed out after {limit / NS:g} s, but replayed only after {age / NS:g} s"
            for state, age in seen.items()
            if state is JobState.DISPATCHED and (limit := limits.limit_ns(state)) is not None and limit <= age
        ]
    )
