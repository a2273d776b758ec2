"""What keeps a process from running: its garbage collector, and code that keeps its event loop to itself.

Both are watched only as far as that costs next to nothing. Each collection of the interpreter is timed (two readings of
the clock; only those of a millisecond and more are remembered). An event loop is asked for a sign of life whenever the
keeper renews leases, by a call that the loop makes as soon as it can; so a loop that is blocked between two renewals
and free at both is not noticed. A blocked loop costs no lease by itself: the keeper has threads of its own.

Clock: the monotonic clock of the system.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Mapping
from time import monotonic_ns
from typing import Any

from holdfast.core.ports import Clock
from holdfast.core.rolling_max import Longest
from holdfast.runtime.mutex import Mutex
from holdfast.types import MS


class GarbageCollections:
    """How long the garbage collector has stopped this process."""

    def __init__(self) -> None:
        self._longest = Longest()
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
        self._longest = Longest()
        self._asked_ns: int | None = None

    def ask(self) -> None:
        """Have the loop give a sign of life, unless it owes one already."""
        if self._asked_ns is None:
            self._asked_ns = self._clock.now().mono
            with contextlib.suppress(RuntimeError):  # it is closed, and owes this one for ever
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
