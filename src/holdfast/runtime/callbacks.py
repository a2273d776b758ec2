"""Runs what users asked to be called on a loss or a warning, on threads of its own.

The alarm must never wait for a user's code, and the user's code may do anything: block, raise, take a lock. One thread
is enough as long as calls come back; a call that finds every thread busy gets another one, up to a limit, so that one
callback that blocks does not keep the news of other losses from their holders. Threads end when idle. Whatever a
callback raises is logged and goes no further.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from holdfast.flows.log import say

_log = logging.getLogger("holdfast")

IDLE_S = 5.0
THREADS_MAX = 32


class CallbackThreads:
    """A queue of calls and the threads that make them."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        # Each thread counts itself, in single steps of the interpreter: a signal handler may submit in the middle of
        # another submission, or raise there.
        self._threads: set[int] = set()
        self._idle: set[int] = set()

    def submit(self, call: Callable[[], object]) -> None:
        """Have it called soon."""
        self._calls.put(call)
        if self._calls.qsize() > len(self._idle) and len(self._threads) < THREADS_MAX:
            threading.Thread(target=self._run, name="holdfast-callbacks", daemon=True).start()

    def _run(self) -> None:
        me = threading.get_ident()
        self._threads.add(me)
        try:
            while (call := self._next(me)) is not None:
                try:
                    guarded(call)
                except BaseException as error:  # noqa: BLE001 - `sys.exit` in a callback must not cost us the thread
                    _say_raised(error)
        finally:
            self._threads.discard(me)

    def _next(self, me: int) -> Callable[[], object] | None:
        """The next call; None when nothing has come for a while."""
        self._idle.add(me)
        try:
            return self._calls.get(timeout=IDLE_S)
        except queue.Empty:
            pass
        finally:
            self._idle.discard(me)
        try:  # once more: a submission may have counted on this thread just before it did not wait any more
            return self._calls.get_nowait()
        except queue.Empty:
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
