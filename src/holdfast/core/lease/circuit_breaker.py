"""A circuit breaker in front of the store: an outage costs a timeout now and then, and not one per attempt.

Closed: all requests pass. After `FAILURES_MAX` failures in a row it opens: callers are refused immediately. After the
cool-down one caller may probe. Its success closes the breaker; its failure doubles the cool-down (with jitter, up to a
cap). Times are readings of the host's monotonic clock.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.backoff import Draw
from holdfast.types import MS, NS

FAILURES_MAX = 3
COOL_MIN_NS = 500 * MS
COOL_MAX_NS = 15 * NS


class Breaker(NamedTuple):
    """The state of the breaker of one store."""

    failures: int = 0
    cool_ns: int = 0
    open_until_ns: int = 0
    probing_until_ns: int = 0

    @property
    def open(self) -> bool:
        """Whether the breaker is refusing callers (one probe at a time aside)."""
        return self.failures >= FAILURES_MAX


def admit(breaker: Breaker, now_ns: int, timeout_ns: int) -> tuple[Breaker, bool]:
    """Whether a caller may ask the store now. One probe runs at a time; it is forgotten after `timeout_ns`."""
    if not breaker.open:
        return breaker, True
    if now_ns < breaker.open_until_ns or now_ns < breaker.probing_until_ns:
        return breaker, False
    return breaker._replace(probing_until_ns=now_ns + timeout_ns), True


def succeeded(breaker: Breaker) -> Breaker:
    """The store answered."""
    return breaker if breaker.failures == 0 else Breaker()


def failed(breaker: Breaker, now_ns: int, draw: Draw) -> Breaker:
    """The store did not answer. While the breaker is open, only the failure of the probe counts."""
    if breaker.open and not breaker.probing_until_ns:
        return breaker
    failures = breaker.failures + 1
    if failures < FAILURES_MAX:
        return Breaker(failures)
    cool = min(COOL_MAX_NS, max(COOL_MIN_NS, breaker.cool_ns * 2))
    spread = cool // 5
    return Breaker(failures, cool, now_ns + cool - spread + draw(2 * spread + 1))
