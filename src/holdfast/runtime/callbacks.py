"""Runs what users asked to be called on a loss or a warning, on threads of its own.

The alarm must never wait for a user's code, and the user's code may do anything: block, raise, take a lock. One thread
is enough as long as calls come back; a call that finds every thread busy gets another one, up to a limit, so that one
callback that blocks does not keep the news of other losses from their holders. Threads end when idle. Whatever a
callback raises is logged and goes no further.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from holdfast.flows.saying import say

_log = logging.getLogger("holdfast")

IDLE_S = 5.0
THREADS_MAX = 32


class CallbackThreads:
    """A queue of calls and the threads that make them."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._wake = threading.Condition(threading.Lock())
        self._threads = 0
        self._idle = 0

    def submit(self, call: Callable[[], object]) -> None:
        """Have it called soon."""
        with self._wake:
            self._calls.append(call)
            if self._idle >= len(self._calls):
                self._wake.notify()
            elif self._threads < THREADS_MAX:
                threading.Thread(target=self._run, name="holdfast-callbacks", daemon=True).start()
                self._threads += 1

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                guarded(call)
            except BaseException as error:  # noqa: BLE001 - `sys.exit` in a callback must not cost us the thread
                _say_raised(error)

    def _next(self) -> Callable[[], object] | None:
        """The next call; None when nothing has come for a while."""
        with self._wake:
            self._idle += 1
            self._wake.wait_for(lambda: self._calls, IDLE_S)
            self._idle -= 1
            if self._calls:
                return self._calls.popleft()
            self._threads -= 1
            return None


def guarded(call: Callable[[], object]) -> object:
    """Call it; log what it raises."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - it is the user's, and may raise anything
        _say_raised(error)
        return None


def _say_raised(error: BaseException) -> None:
    say(_log, logging.ERROR, "a callback of the user raised; the lease is not affected by that", error)
