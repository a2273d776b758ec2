"""Wakes a sleeping thread, from any thread and from signal handlers.

Promises: `ring` is remembered until the next `wait`. An exception of a signal handler inside `ring` or `wait` leaves
nothing locked. That is why this is not a `threading.Event`: an event has a mutex that is released by Python code, and a
handler that raises there leaves it locked, so that every later `set` hangs.

Does not promise: a count (several rings wake once), or more than one waiting thread.
"""

from __future__ import annotations

import threading


class Wakeup:
    """One sleeper, any number of ringers."""

    __slots__ = ("_asleep",)

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def ring(self) -> None:
        """Wake the sleeper, or the next one."""
        try:
            self._asleep.release()
        except RuntimeError:
            return  # it was rung before, and has not been waited for since

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until it is rung (True) or the time is over (False). None: without limit."""
        limit = -1 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
        return self._asleep.acquire(timeout=limit)
