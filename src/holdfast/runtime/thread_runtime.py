"""The blocking runtime: local mutexes, sleeping, background clean-up and wake-ups in synchronous code.

Nothing here suspends: each `async def` blocks its own thread and returns. An interrupt (Ctrl-C, or an exception that a
signal handler raises) can arrive between any two steps. Places and clean-up are built so that it leaves nothing behind.

`Mutex` is a mutex that a signal handler may enter again. A signal handler runs in the middle of the code of the main
thread, perhaps inside a mutex. A handler that calls `lease.release()` would wait forever for a mutex that cannot be
entered twice. So every mutex that a call on a lease or a `Locks` can reach is one of these, and the data that it
protects must be valid between any two steps. Take it with `with` only: its `__exit__` is not written in Python, so a
handler that raises cannot skip it. The `with` of a `threading.Condition` or the `set` of a `threading.Event` can be
skipped: use `with` on the mutex of the condition, and `Wakeup` instead of an event.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from threading import RLock as Mutex
from typing import Any

from holdfast.core.ports import Held
from holdfast.errors import Closed
from holdfast.flows.log import log_event
from holdfast.runtime.run_sync import run_now
from holdfast.types import NS

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
    log_event(_log, logging.ERROR, "a callback of the user raised; the lease is not affected by that", error)


class Wakeup:
    """Wakes one sleeping thread, from any thread and from signal handlers.

    Promises: `notify` is remembered until the next `wait`. An exception of a signal handler inside `notify` or `wait`
    leaves nothing locked. A `threading.Event` has a mutex that Python code releases, so a handler that raises there
    would leave it locked, and every later `set` would hang. Does not promise a count: several rings wake once.
    """

    __slots__ = ("_asleep",)

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def notify(self) -> None:
        """Wake the sleeper, or the next one."""
        try:
            self._asleep.release()
        except RuntimeError:
            return  # it was rung before, and has not been waited for since

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until it is rung (True) or the time is over (False). None: without limit."""
        limit = -1 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
        return self._asleep.acquire(timeout=limit)


__all__ = ["Mutex"]


_log = logging.getLogger("holdfast")


caller_id = threading.get_ident


class _ThisThread(threading.local):
    """A mark that no other thread has. The ident of a thread that has ended is given to a new one; this is not."""

    def __init__(self) -> None:
        self.mark = object()


this_thread = _ThisThread()


class ThreadEntry:
    """The entry of one thread in the queue of one key. The first entry is inside."""

    __slots__ = ("_key", "_mutexes", "_signal", "asked", "caller", "held")

    def __init__(self, mutexes: ThreadMutexes, key: str, caller: object) -> None:
        self._mutexes = mutexes
        self._key = key
        self._signal: threading.Lock | None = None  # set when it is queued
        self.asked: str | None = None
        self.caller = caller
        self.held: Held | None = None

    async def enter(self, timeout_ns: int | None) -> bool:
        """Wait until it is inside."""
        with self._mutexes.mutex:
            # One step each, so that a signal handler can acquire or release the same lock here.
            callers = self._mutexes.queues.setdefault(self._key, fresh := deque((self,)))
            if callers is fresh:
                return True
            signal = self._signal
            if signal is None:
                if callers and timeout_ns is not None and timeout_ns <= 0:
                    return False
                signal = self._signal = threading.Lock()
                signal.acquire()
                callers.append(self)
                if callers[0] is self:  # an interrupt left an empty queue behind
                    return True
        signal.acquire(timeout=-1 if timeout_ns is None else min(timeout_ns / NS, threading.TIMEOUT_MAX))
        if self._mutexes.closed:
            raise Closed
        with self._mutexes.mutex:
            return callers[0] is self

    @property
    def next(self) -> bool:
        """Whether this is the first waiting entry."""
        with self._mutexes.mutex:
            callers = self._mutexes.queues.get(self._key)
            return callers is not None and len(callers) > 1 and callers[1] is self

    def admit(self) -> None:
        """Let this caller in. Called by the one that leaves, with the mutex held; can be repeated."""
        if self._signal is not None:
            with contextlib.suppress(RuntimeError):  # it was admitted already
                self._signal.release()

    def leave(self) -> None:
        """Leave the queue, and let in the next caller."""
        try:
            self._leave()
        except BaseException:
            self._leave()  # interrupted in the middle; each step can be repeated
            raise

    def _leave(self) -> None:
        self.held = None
        with self._mutexes.mutex:
            callers = self._mutexes.queues.get(self._key)
            if callers is None:
                return
            try:  # noqa: SIM105 - three calls less for every lease
                callers.remove(self)
            except ValueError:
                pass  # it has left already
            if callers:
                callers[0].admit()
                return
            self._mutexes.queues.pop(self._key, None)
            if callers:  # a signal handler has entered meanwhile
                self._mutexes.queues.setdefault(self._key, callers)


class ThreadMutexes:
    """The local mutexes of one synchronous `Locks`. A key without callers takes no memory."""

    def __init__(self) -> None:
        self.mutex = Mutex()
        self.queues: dict[str, deque[ThreadEntry]] = {}
        self.closed = False

    def close(self) -> None:
        """Refuse all queued callers."""
        with self.mutex:
            self.closed = True
            for callers in self.queues.values():
                for entry in callers:
                    entry.admit()

    def entry(self, key: str, caller: object = None) -> ThreadEntry:
        """Make the entry of one caller. It is queued when it enters."""
        return ThreadEntry(self, key, caller)

    def inside(self, key: str) -> ThreadEntry | None:
        """The entry of the caller who is inside."""
        with self.mutex:
            callers = self.queues.get(key)
            return callers[0] if callers else None

    def waiting(self) -> int:
        """How many callers are queued."""
        with self.mutex:
            return sum(len(callers) - 1 for callers in self.queues.values())


class ThreadRuntime:
    """Blocking waits for flows that are driven by `run_now`."""

    def __init__(self) -> None:
        self.mutexes = ThreadMutexes()  # the local mutexes
        self._unfinished: set[threading.Thread] = set()

    def forked(self) -> None:
        """In a child process no caller is queued, and the mutex may be held by a thread that does not exist here."""
        self.mutexes.mutex = Mutex()
        self.mutexes.queues.clear()
        self._unfinished = set()  # of the parent

    async def sleep(self, ns: int) -> None:
        """Block this thread for a while."""
        time.sleep(ns / NS)  # noqa: ASYNC251 - this is the blocking runtime

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
            except BaseException as error:  # noqa: BLE001 - any interrupt is kept and raised after the work
                interrupted = error
        if interrupted is not None:
            raise interrupted

    def drain(self, limit_ns: int) -> None:
        """Wait for clean-up that still runs in the background."""
        until = time.monotonic() + limit_ns / NS
        for worker in list(self._unfinished):
            if worker.ident is not None:  # or its start was interrupted
                worker.join(max(0.0, until - time.monotonic()))

    def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            run_now(work)
        except Exception as error:  # noqa: BLE001 - clean-up is a best effort and must not raise into its caller
            log_event(_log, logging.WARNING, "clean-up failed; the key will expire", error)
        finally:
            self._unfinished.discard(threading.current_thread())
