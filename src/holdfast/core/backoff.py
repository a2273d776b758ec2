"""How long to wait before trying again, as pure functions of the attempt, the last delay and a draw.

A shared fixed delay makes contenders retry in phase; spreading them is a throughput control, not a nicety. Each shape
here is bounded: it never returns less than zero or more than its cap, whatever the attempt number. Nothing keeps state:
the caller passes the previous delay back in, so one description can serve any number of concurrent waiters.

`draw(n)` returns a uniform integer in [0, n). Delays are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.errors import BadInput
from holdfast.types import MS, NS, Duration, duration_ns

Draw: TypeAlias = Callable[[int], int]

_ATTEMPTS_MAX = 64  # past this every exponential has long reached its cap; keeps the powers small


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same delay: simple, testable, and prone to synchronised retries."""

    base_ns: int

    def delay_ns(self, attempt: int, previous_ns: int, draw: Draw) -> int:
        """The delay before retry number `attempt` (0 is the first)."""
        return self.base_ns

    def longest_ns(self) -> int:
        """The longest delay that can ever come out."""
        return self.base_ns

    def shortest_ns(self) -> int:
        """The shortest delay that can ever come out."""
        return self.base_ns


@dataclass(frozen=True, slots=True)
class Jittered:
    """A base with a bounded uniform offset in [-spread, +spread): 500 ms and 200 ms give 300 to 700 ms."""

    base_ns: int
    spread_ns: int

    def delay_ns(self, attempt: int, previous_ns: int, draw: Draw) -> int:
        """The delay before retry number `attempt` (0 is the first)."""
        return self.base_ns - self.spread_ns + (draw(2 * self.spread_ns) if self.spread_ns else 0)

    def longest_ns(self) -> int:
        """The longest delay that can ever come out."""
        return self.base_ns + max(0, self.spread_ns - 1)

    def shortest_ns(self) -> int:
        """The shortest delay that can ever come out."""
        return self.base_ns - self.spread_ns


@dataclass(frozen=True, slots=True)
class Exponential:
    """Full jitter: uniform in [0, min(cap, base x factor^attempt)]. The strongest protection against herds."""

    base_ns: int
    cap_ns: int
    factor: float = 2.0

    def delay_ns(self, attempt: int, previous_ns: int, draw: Draw) -> int:
        """The delay before retry number `attempt` (0 is the first)."""
        ceiling = min(float(self.cap_ns), self.base_ns * self.factor ** min(attempt, _ATTEMPTS_MAX))
        return draw(int(ceiling) + 1)

    def longest_ns(self) -> int:
        """The longest delay that can ever come out."""
        return self.cap_ns

    def shortest_ns(self) -> int:
        """The shortest delay that can ever come out."""
        return 0


@dataclass(frozen=True, slots=True)
class Decorrelated:
    """Uniform in [base, 3 x previous], capped: spreads like full jitter, but rarely retries immediately."""

    base_ns: int
    cap_ns: int

    def delay_ns(self, attempt: int, previous_ns: int, draw: Draw) -> int:
        """The delay before retry number `attempt` (0 is the first)."""
        ceiling = min(self.cap_ns, max(self.base_ns, previous_ns * 3))
        return self.base_ns + draw(ceiling - self.base_ns + 1)

    def longest_ns(self) -> int:
        """The longest delay that can ever come out."""
        return self.cap_ns

    def shortest_ns(self) -> int:
        """The shortest delay that can ever come out."""
        return self.base_ns


@dataclass(frozen=True, slots=True)
class Grpc:
    """The connection back-off shape of gRPC: base x multiplier^attempt, capped, then ± jitter."""

    base_ns: int
    cap_ns: int
    multiplier: float = 1.6
    jitter: float = 0.2

    def delay_ns(self, attempt: int, previous_ns: int, draw: Draw) -> int:
        """The delay before retry number `attempt` (0 is the first)."""
        middle = int(min(float(self.cap_ns), self.base_ns * self.multiplier ** min(attempt, _ATTEMPTS_MAX)))
        spread = int(middle * self.jitter)
        return min(self.cap_ns, middle - spread + draw(2 * spread + 1))

    def longest_ns(self) -> int:
        """The longest delay that can ever come out."""
        return self.cap_ns

    def shortest_ns(self) -> int:
        """The shortest delay that can ever come out."""
        return int(self.base_ns * (1 - self.jitter))


Backoff: TypeAlias = Fixed | Jittered | Exponential | Decorrelated | Grpc


def fixed(delay: Duration) -> Fixed:
    """The same delay every time."""
    return Fixed(duration_ns("delay", delay, low_ns=1))


def jittered(base: Duration = 0.5, spread: Duration = 0.2) -> Jittered:
    """A bounded jitter around a base; the spread must be smaller than the base, so that the delay stays positive."""
    base_ns = duration_ns("base", base, low_ns=1)
    spread_ns = duration_ns("spread", spread)
    if spread_ns >= base_ns:
        raise BadInput(
            "spread", f"{spread_ns / NS:g} s is not below the base of {base_ns / NS:g} s", "use a smaller spread"
        )
    return Jittered(base_ns, spread_ns)


def exponential(base: Duration = 0.025, cap: Duration = 1.0, factor: float = 2.0) -> Exponential:
    """Full-jitter exponential back-off."""
    if not 1.0 < factor <= 10.0:
        raise BadInput("factor", f"{factor!r} does not make the delay grow sensibly", "give more than 1, at most 10")
    return Exponential(*_base_and_cap(base, cap), factor)


def decorrelated(base: Duration = 0.025, cap: Duration = 1.0) -> Decorrelated:
    """Decorrelated jitter."""
    return Decorrelated(*_base_and_cap(base, cap))


def grpc(base: Duration = 1.0, cap: Duration = 120.0, multiplier: float = 1.6, jitter: float = 0.2) -> Grpc:
    """The gRPC shape."""
    if not 1.0 < multiplier <= 10.0:
        raise BadInput(
            "multiplier", f"{multiplier!r} does not make the delay grow sensibly", "give more than 1, at most 10"
        )
    if not 0.0 <= jitter < 1.0:
        raise BadInput("jitter", f"{jitter!r} is not a share", "give at least 0 and less than 1")
    return Grpc(*_base_and_cap(base, cap), multiplier, jitter)


def for_ttl(ttl_ns: int) -> Exponential:
    """What a waiter uses by default: full jitter, capped at a second and at one renewal period."""
    return Exponential(min(25 * MS, ttl_ns // 40), min(NS, ttl_ns // 3))


def check_against(backoff: Backoff, ttl_ns: int, median_hold_ns: int | None = None) -> None:
    """The guardrails for retry delays of one lock (R158), refused with the arithmetic.

    The spread must stay below one renewal period of the lock, else a retry may sleep through a whole turn of the
    holder. The delay must lie above the median hold, if that is known, else the retry meets the same holder again.
    """
    spread = backoff.longest_ns() - backoff.shortest_ns()
    budget = ttl_ns // 3
    if spread > budget:
        raise BadInput(
            "retry",
            f"delays range over {spread / NS:g} s, more than the safety budget ttl / 3 = {budget / NS:g} s",
            "use a smaller spread or cap, or a longer ttl",
        )
    if median_hold_ns is not None and _typical_ns(backoff) <= median_hold_ns:
        raise BadInput(
            "retry",
            f"the usual delay of {_typical_ns(backoff) / NS:g} s is not above the median hold of "
            f"{median_hold_ns / NS:g} s, so a retry would collide with the same holder again",
            "use a longer delay",
        )


def _typical_ns(backoff: Backoff) -> int:
    return (backoff.longest_ns() + backoff.shortest_ns()) // 2


def _base_and_cap(base: Duration, cap: Duration) -> tuple[int, int]:
    base_ns, cap_ns = duration_ns("base", base, low_ns=1), duration_ns("cap", cap, low_ns=1)
    if cap_ns < base_ns:
        raise BadInput(
            "cap", f"{cap_ns / NS:g} s is below the base of {base_ns / NS:g} s", "give a cap at or above the base"
        )
    return base_ns, cap_ns
