"""How a waiter that met a busy lock spends the time until its next attempt.

The back-off is the floor: it works when every hint is lost. A waiter that listens for wake-ups polls at the slow end of
its back-off from the start. Whatever the back-off says, nobody sleeps past the moment at which the present holder's
time runs out, and the waiters that wake then are spread a little, so that a crash does not become a herd.
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

    `holder_ns` is what the store said the holder has left; `left_ns` what the caller is still willing to wait.
    """
    if listening:
        longest = backoff.longest_ns()
        delay = longest - draw(longest // 2 + 1)
    else:
        delay = backoff.delay_ns(waiter.attempt, waiter.previous_ns, draw)
    if holder_ns is not None and holder_ns < delay:
        delay = holder_ns + MS + draw(min(EXPIRY_SPREAD_NS, delay + 1))
    asleep = delay if left_ns is None else min(delay, left_ns)
    return Waiter(waiter.attempt + 1, delay), asleep
