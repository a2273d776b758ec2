"""Stalls of this process: garbage collections and blocked event loops, for the diagnosis of a lost lease.

Both are watched only as far as it costs next to nothing. Each garbage collection is timed with two readings of the
clock; only those of a millisecond and more are remembered. The renewer asks the event loop for an answer before each
round of renewals, by a call that the loop makes as soon as it can. So a loop that is blocked only between two renewals
is not noticed. A blocked loop alone costs no lease, because the renewer has threads of its own.

`LoopSampler` watches a loop ten times a second from inside. While the loop is blocked, other threads see the overdue
sample. A block that is shorter than the sampling interval may be missed, or seen in part.

Clock: the monotonic clock, and the timers of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Mapping
from time import monotonic_ns
from typing import Any, Final

from holdfast.core.ports import Clock
from holdfast.core.rolling_max import RollingMax
from holdfast.runtime.thread_runtime import Mutex
from holdfast.types import MS, NS


class GarbageCollections:
    """How long the garbage collector has stopped this process."""

    def __init__(self) -> None:
        self._longest = RollingMax()
        self._began_ns = 0

    def longest_ns(self, since_ns: int) -> int:
        """The longest collection that was over after the moment."""
        return self._longest.since(since_ns)

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """A collection begins or is over. Called by the interpreter, for one collection at a time."""
        now = monotonic_ns()
        if phase == "start":
            self._began_ns = now
        elif now - self._began_ns >= MS:
            self._longest.note(now, now - self._began_ns)


_collections = GarbageCollections()
_mutex = Mutex()


def garbage_collections() -> GarbageCollections:
    """Those of this process, which are timed from the first call on."""
    with _mutex:
        if _collections not in gc.callbacks:
            gc.callbacks.append(_collections)
    return _collections


class LoopWatch:
    """Whether an event loop still comes round. Asked from any thread, never waits for the answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._longest = RollingMax()
        self._asked_ns: int | None = None

    def ask(self) -> None:
        """Have the loop give a sign of life, unless it owes one already."""
        if self._asked_ns is None:
            self._asked_ns = self._clock.now().mono
            with contextlib.suppress(RuntimeError):  # it is closed, and owes this one forever
                self._loop.call_soon_threadsafe(self._answer)

    def lag_ns(self, since_ns: int) -> int:
        """How long it took at most to answer after the moment, or has not answered."""
        now, asked = self._clock.now().mono, self._asked_ns
        return max(self._longest.since(since_ns), 0 if asked is None else now - asked)

    def _answer(self) -> None:
        now, asked = self._clock.now().mono, self._asked_ns
        if asked is not None:
            self._asked_ns = None
            self._longest.note(now, now - asked)


class Stalls:
    """What has kept this process from running: garbage collections, and the event loop that uses the locks."""

    def __init__(self, collections: GarbageCollections | None) -> None:
        self._collections = collections
        self._loop: LoopWatch | None = None

    def watch(self, loop: LoopWatch | None) -> None:
        """Watch the event loop that uses these locks. None: it will be closed, and a closed loop never answers."""
        self._loop = loop

    def collection_ns(self, since_ns: int) -> int | None:
        """The longest garbage collection since a moment of the monotonic clock. None: they are not timed."""
        return None if self._collections is None else self._collections.longest_ns(since_ns)

    def loop_lag_ns(self, since_ns: int) -> int | None:
        """How long the event loop took at most to answer. None: there is no loop."""
        return None if self._loop is None else self._loop.lag_ns(since_ns)

    def ask_loop(self) -> None:
        """Have the event loop answer, which `loop_lag_ns` measures later. Does not wait."""
        if self._loop is not None:
            self._loop.ask()


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
