"""Which delay a refused piece of work is sent back with: contention and store trouble are two classes, never one.

The bus that carries the work passes the delay through unchanged. Jitter for the busy class is off by default (exactly
500 ms). `SwitchableDelays` switches it while the delays are in use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from holdfast.core.backoff import Backoff, Draw, Fixed, Jittered, check_against, jittered
from holdfast.errors import BackendError, LockBusy, RetryLater
from holdfast.types import MS, NS


@dataclass(frozen=True, slots=True)
class RetryDelays:
    """The delay classes of a path that gives work back when it cannot have its lock."""

    busy: Backoff = Fixed(500 * MS)
    backend: Backoff = Fixed(NS)

    def with_jitter(self, spread_ns: int = 200 * MS) -> RetryDelays:
        """The same delays with bounded jitter on the busy class: 500 ms ± 200 ms."""
        base_ns = self.busy.base_ns if isinstance(self.busy, Fixed | Jittered) else self.busy.longest_ns()
        return replace(self, busy=jittered(base_ns / NS, spread_ns / NS))

    def without_jitter(self, delay_ns: int = 500 * MS) -> RetryDelays:
        """Back to the fixed delay."""
        return replace(self, busy=Fixed(delay_ns))

    def check(self, ttl_ns: int, median_hold_ns: int | None = None) -> None:
        """Refuse delays that do not fit the lock they are for."""
        check_against(self.busy, ttl_ns, median_hold_ns)

    def later(
        self, error: LockBusy | BackendError, draw: Draw, attempt: int = 0, text: str | None = None
    ) -> RetryLater:
        """The error to raise for work that could not have its lock."""
        backoff = self.busy if isinstance(error, LockBusy) else self.backend
        result = RetryLater(backoff.delay_ns(attempt, 0, draw) / NS, text or error)
        result.__cause__ = error
        return result


class SwitchableDelays:
    """Retry delays whose jitter is switched while they are in use: everything that was given this object follows."""

    def __init__(self, fixed: RetryDelays) -> None:
        """`fixed`: the delays without jitter."""
        self._fixed = fixed
        self._now = fixed

    @property
    def busy(self) -> Backoff:
        """For contention."""
        return self._now.busy

    @property
    def backend(self) -> Backoff:
        """For store trouble."""
        return self._now.backend

    def use_jitter(self, spread_ns: int) -> None:
        """Switch the jitter of the busy class, from the next delay on; 0: exactly the fixed delay."""
        self._now = self._fixed.with_jitter(spread_ns) if spread_ns else self._fixed

    def later(
        self, error: LockBusy | BackendError, draw: Draw, attempt: int = 0, text: str | None = None
    ) -> RetryLater:
        """See `RetryDelays.later`."""
        return self._now.later(error, draw, attempt, text)


AnyDelays: TypeAlias = RetryDelays | SwitchableDelays
"""The delays of a path: as they are, or switchable."""
