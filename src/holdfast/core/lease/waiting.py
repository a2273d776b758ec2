"""How long a waiter for a busy lock sleeps until its next attempt.

The back-off works even if every notification is lost. A waiter that listens for notifications polls in the slow half of
its back-off's range from the start; a fixed delay stays what it is. No waiter sleeps past the expiry of the present
holder's lease. The waiters that wake up then are spread a little, so that a crash does not cause a stampede.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.backoff import Backoff, Draw
from holdfast.types import MS

EXPIRY_SPREAD_NS = 25 * MS


class Waiter(NamedTuple):
    """A waiter between two attempts."""

    attempt: int = 0
    previous_ns: int = 0


def pause(
    waiter: Waiter, backoff: Backoff, holder_ns: int | None, left_ns: int | None, listening: bool, draw: Draw
) -> tuple[Waiter, int]:
    """The next state of the waiter, and how long it sleeps if nothing wakes it.

    `holder_ns`: time left of the holder's lease, by the store; `left_ns`: time until the caller's deadline.
    """
    if listening:
        longest = backoff.longest_ns()
        delay = longest - draw((longest - backoff.shortest_ns()) // 2 + 1)
    else:
        delay = backoff.delay_ns(waiter.attempt, waiter.previous_ns, draw)
    if holder_ns is not None and holder_ns < delay:
        delay = min(delay, holder_ns + MS + draw(min(EXPIRY_SPREAD_NS, delay + 1)))
    asleep = delay if left_ns is None else min(delay, left_ns)
    return Waiter(waiter.attempt + 1, delay), asleep
