"""A breaker in front of the store, so that an outage costs one timeout in a while and not one per attempt.

Closed: everything passes. After `FAILURES_MAX` failures in a row it opens: callers are refused at once. When the
cool-down is over one caller may probe; its success closes the breaker, its failure doubles the cool-down (with jitter,
up to a cap). Times are the host's monotonic clock.
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


def admit(breaker: Breaker, now_ns: int, patience_ns: int) -> tuple[Breaker, bool]:
    """May a caller go to the store now? One probe is out at a time; it is forgotten after `patience_ns`."""
    if not breaker.open:
        return breaker, True
    if now_ns < breaker.open_until_ns or now_ns < breaker.probing_until_ns:
        return breaker, False
    return breaker._replace(probing_until_ns=now_ns + patience_ns), True


def succeeded(breaker: Breaker) -> Breaker:
    """The store answered."""
    return breaker if breaker.failures == 0 else Breaker()


def failed(breaker: Breaker, now_ns: int, draw: Draw) -> Breaker:
    """The store did not answer. When the breaker is open only the probe's failure counts: others were late already."""
    if breaker.open and not breaker.probing_until_ns:
        return breaker
    failures = breaker.failures + 1
    if failures < FAILURES_MAX:
        return Breaker(failures)
    cool = min(COOL_MAX_NS, max(COOL_MIN_NS, breaker.cool_ns * 2))
    spread = cool // 5
    return Breaker(failures, cool, now_ns + cool - spread + draw(2 * spread + 1))
