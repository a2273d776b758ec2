"""How a store counts its fences: by its clock, and while the clock is behind, at the rate of the clock. Pure.

A fence is the store's wall clock in microseconds, so a store that has forgotten everything does not go back. But clocks
are set back, and then the count is *ahead*. Adding one to the last fence would do on one server. Across a failover it
does not: a replica that has missed the last grants continues from the same number as its lost primary did, and gives
the same fences to others. Guards accept an equal fence, because one grant may write many times. So no writer would be
refused, and an update would be lost. Three rules prevent that:

    ahead     the fence rises by three quarters of the time since the last one, so that a store that has missed
              grants and counts later is above all of them; and the count falls back to the clock within four times the
              lead that it has
    set back  when the clock is behind what it was at the last fence, the time that has passed is unknown; the fence
              rises by a random number up to a second, which comes from the secret of the grant
    limit     such a step is an hour at most, so that a clock which is set right after years does no harm

Promises: each count is above the one before it, whatever the clock reads. Two stores that go on from one count, each on
a clock that does not go back, never give out the same fence but by chance: two clocks that tell the same microsecond,
or one in 2^20 for grants right after the clock was set back. If both clocks have gone on since that count, and the
later grant is later by its clock, it has the higher fence, for as long as no more than an hour was missed.
So two fences of one count also say how far apart they were granted, by that one clock (`apart`): no two clocks have
to agree for it.
Does not promise an order where the clock was set back after the last fence that both know of, nor where one of two
clocks is behind the other by more than the time between the grants.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

STEP_MAX_US: Final = 3600 * 1_000_000
CHANCE_DIGITS: Final = 5  # hexadecimal: 2^20 µs, about a second


class Count(NamedTuple):
    """The last fence, and the store's clock when it was granted, in µs. Not equal: the count is ahead."""

    fence: int = 0
    clock: int = 0

    def next(self, now: int, secret: str) -> Count:
        """The count after a grant at this time. `secret`: no other grant has the same one."""
        passed = now - self.clock
        step = 1 + _chance(secret) if passed < 0 else max(1, min(passed * 3 // 4, STEP_MAX_US))
        return Count(max(now, self.fence + step), now)


def apart(earlier: int, later: int, ns: int) -> bool:
    """Whether two fences of one count may have been granted further apart than so many nanoseconds.

    Never False if it was more than four thirds of that, unless the store's clock was set back in between. Two fences
    that were counted otherwise, or by two clocks, may give either answer: it must then be one that does no harm.
    """
    return (later - earlier) * 1000 > ns


def _chance(secret: str) -> int:
    """A number below 2^20 that differs from grant to grant. Redis scripts have no random numbers, but SHA-1."""
    return int(hashlib.sha1(secret.encode(), usedforsecurity=False).hexdigest()[:CHANCE_DIGITS], 16)
