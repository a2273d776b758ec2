"""How late an event loop is: seen by the loop itself, ten times a second, for as long as somebody wants to know.

A loop that is blocked cannot say so; afterwards it is late for what it had planned, and by how much is how long it was
kept. While it is blocked, other threads see it too: what is overdue counts. What blocks it for less than the time
between two looks may be missed, or seen in part.

Clock: the monotonic clock of whoever asks, and the loop's own timers.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.core.ports import Clock
from holdfast.runtime.pauses import LoopWatch
from holdfast.types import MS, NS

EVERY_NS: Final = 100 * MS


class LoopSampler(LoopWatch):
    """Watches one event loop from inside. `start` and `stop` on the loop; read from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, every_ns: int = EVERY_NS) -> None:
        super().__init__(loop, clock)
        self._every_ns = every_ns
        self._due_ns: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look from now on."""
        self._due_ns = self._clock.now().mono + self._every_ns
        self._timer = self._loop.call_later(self._every_ns / NS, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._due_ns = self._timer = None

    def lag_ns(self, since_ns: int) -> int:
        """By how much it was late at most after the moment, or is late now."""
        due = self._due_ns
        return max(super().lag_ns(since_ns), 0 if due is None else self._clock.now().mono - due)

    def _look(self) -> None:
        now, due = self._clock.now().mono, self._due_ns
        if due is not None:
            self._longest.note(now, max(0, now - due))
            self.start()
