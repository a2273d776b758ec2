"""A mutex that a signal handler may enter again.

A signal handler runs in the middle of whatever the main thread is doing, perhaps inside a mutex. A handler that calls
`lease.release()` would wait for that mutex forever if it could not be entered twice. So every mutex that a call on a
lease or a `Locks` can reach is one of these, and what it protects must be valid between any two steps.

Take it with `with` and nothing else: its `__exit__` is not written in Python, so a handler that raises cannot skip it.
The `with` of a `threading.Condition` or the `set` of a `threading.Event` can be skipped: use `with` on the mutex of the
condition, and `runtime.wakeup` instead of an event.

Waiting and finishing in synchronous code: the blocking half of the runtime.

Nothing here suspends: each `async def` blocks its own thread and returns. An interrupt (Ctrl-C, or an exception that a
signal handler raises) can arrive between any two steps; places and clean-up are built so that it leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Coroutine
from threading import RLock as Mutex
from typing import Any

from holdfast.core.ports import Held
from holdfast.errors import Closed
from holdfast.flows.log import say
from holdfast.runtime.run_sync import run_now
from holdfast.types import NS

__all__ = ["Mutex"]


_log = logging.getLogger("holdfast")


caller_id = threading.get_ident


class _ThisThread(threading.local):
    """A mark that no other thread has. The ident of a thread that has ended is given to a new one; this is not."""

    def __init__(self) -> None:
        self.mark = object()


this_thread = _ThisThread()


class ThreadPlace:
    """One thread's place in line at one key. Whoever stands first is inside."""

    __slots__ = ("_gate", "_key", "_turn", "asked", "caller", "held")

    def __init__(self, gate: ThreadGate, key: str, caller: object) -> None:
        self._gate = gate
        self._key = key
        self._turn: threading.Lock | None = None  # once it stands in line
        self.asked: str | None = None
        self.caller = caller
        self.held: Held | None = None

    async def enter(self, timeout_ns: int | None) -> bool:
        """Wait for the turn."""
        with self._gate.mutex:
            # One step each, so that a signal handler that takes or releases the same lock here does no harm.
            line = self._gate.lines.setdefault(self._key, fresh := deque((self,)))
            if line is fresh:
                return True
            turn = self._turn
            if turn is None:
                if line and timeout_ns is not None and timeout_ns <= 0:
                    return False
                turn = self._turn = threading.Lock()
                turn.acquire()
                line.append(self)
                if line[0] is self:  # an interrupt left an empty line behind
                    return True
        turn.acquire(timeout=-1 if timeout_ns is None else min(timeout_ns / NS, threading.TIMEOUT_MAX))
        if self._gate.closed:
            raise Closed
        with self._gate.mutex:
            return line[0] is self

    @property
    def next(self) -> bool:
        """Whether this is the first of those who wait."""
        with self._gate.mutex:
            line = self._gate.lines.get(self._key)
            return line is not None and len(line) > 1 and line[1] is self

    def called(self) -> None:
        """It is this place's turn. Called by the one who leaves, under the gate's mutex; once more does no harm."""
        if self._turn is not None:
            with contextlib.suppress(RuntimeError):  # it has been called
                self._turn.release()

    def leave(self) -> None:
        """Step out of the line, and let in whoever is first now."""
        try:
            self._leave()
        except BaseException:
            self._leave()  # an interrupt struck in the middle; each step can be done again
            raise

    def _leave(self) -> None:
        self.held = None
        with self._gate.mutex:
            line = self._gate.lines.get(self._key)
            if line is None:
                return
            with contextlib.suppress(ValueError):  # it has left
                line.remove(self)
            if line:
                line[0].called()
                return
            self._gate.lines.pop(self._key, None)
            if line:  # a signal handler has stepped in meanwhile
                self._gate.lines.setdefault(self._key, line)


class ThreadGate:
    """The local mutexes of one synchronous `Locks`. A key that nobody wants takes no memory."""

    def __init__(self) -> None:
        self.mutex = Mutex()
        self.lines: dict[str, deque[ThreadPlace]] = {}
        self.closed = False

    def close(self) -> None:
        """Send everybody away who stands in line."""
        with self.mutex:
            self.closed = True
            for line in self.lines.values():
                for place in line:
                    place.called()

    def place(self, key: str, caller: object = None) -> ThreadPlace:
        """A place for one caller."""
        return ThreadPlace(self, key, caller)

    def inside(self, key: str) -> ThreadPlace | None:
        """The place of the caller who is inside."""
        with self.mutex:
            line = self.lines.get(key)
            return line[0] if line else None

    def waiting(self) -> int:
        """How many callers stand in line."""
        with self.mutex:
            return sum(len(line) - 1 for line in self.lines.values())


class ThreadRuntime:
    """Blocking waits for flows that are driven by `run_now`."""

    def __init__(self) -> None:
        self._gate = ThreadGate()
        self._unfinished: set[threading.Thread] = set()

    @property
    def gate(self) -> ThreadGate:
        """The local mutexes."""
        return self._gate

    def forked(self) -> None:
        """In a child process nobody is in line, and the mutex may have been held by a thread that is not here."""
        self._gate.mutex = Mutex()
        self._gate.lines.clear()
        self._unfinished = set()  # of the parent

    async def sleep(self, ns: int) -> None:
        """Block this thread for a while."""
        time.sleep(ns / NS)  # noqa: ASYNC251 - this is the blocking colour

    async def finish(self, work: Coroutine[Any, Any, None], limit_ns: int) -> None:
        """Run the work in a thread of its own, so that an interrupt of this one cannot cut it short."""
        worker = threading.Thread(target=self._finish, args=(work,), name="holdfast-finish", daemon=True)
        self._unfinished.add(worker)
        worker.start()
        until = time.monotonic() + limit_ns / NS
        interrupted: BaseException | None = None
        while worker.is_alive() and (left := until - time.monotonic()) > 0:
            try:
                worker.join(left)
            except BaseException as error:  # noqa: BLE001 - any interrupt is kept and raised when the work is done
                interrupted = error
        if interrupted is not None:
            raise interrupted

    def drain(self, limit_ns: int) -> None:
        """Wait for what is still being finished in the background."""
        until = time.monotonic() + limit_ns / NS
        for worker in list(self._unfinished):
            if worker.ident is not None:  # or its start was interrupted
                worker.join(max(0.0, until - time.monotonic()))

    def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            run_now(work)
        except Exception as error:  # noqa: BLE001 - clean-up is a best effort and must not raise into its caller
            say(_log, logging.WARNING, "clean-up failed; the key will expire by itself", error)
        finally:
            self._unfinished.discard(threading.current_thread())
