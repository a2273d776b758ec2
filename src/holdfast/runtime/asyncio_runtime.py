"""The asyncio runtime: local mutexes, sleeping and background clean-up on an event loop.

Every object here belongs to one event loop. Methods that other threads call (`leave`, by the timer thread) are moved to
that loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from holdfast.core.lease.states import LeasePhase
from holdfast.core.ports import Held
from holdfast.errors import Closed
from holdfast.flows.log import log_event
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.runtime.thread_runtime import guarded
from holdfast.types import NS

_log = logging.getLogger("holdfast")


def on_loop(loop: asyncio.AbstractEventLoop, thread_id: int, act: Callable[[], None]) -> None:
    """Call a function in the thread of the loop: now if this is that thread, else soon; never if the loop is closed."""
    if threading.get_ident() == thread_id:
        act()
        return
    try:
        loop.call_soon_threadsafe(act)
    except RuntimeError:
        _log.debug("the event loop is closed; there is no waiter to notify")


class LoopEntry:
    """The entry of one task in the queue of one key."""

    __slots__ = ("_key", "_mutexes", "_signal", "asked", "caller", "held", "inside")

    def __init__(self, mutexes: LoopMutexes, key: str, caller: object) -> None:
        self._mutexes = mutexes
        self._key = key
        self._signal: asyncio.Future[None] | None = None  # set when it is queued
        self.inside = False
        self.asked: str | None = None
        self.caller = caller
        self.held: Held | None = None

    async def enter(self, timeout_ns: int | None) -> bool:
        """Wait until it is inside."""
        callers = self._mutexes.queues.get(self._key)
        if callers is None:
            self._mutexes.queues[self._key] = deque((self,))
            self.inside = True
        if self.inside:
            return True
        if self._signal is None:
            if timeout_ns is not None and timeout_ns <= 0:
                return False
            self._mutexes.queues[self._key].append(self)
        signal = self._signal = self._mutexes.loop.create_future()
        timer = None if timeout_ns is None else self._mutexes.loop.call_later(timeout_ns / NS, _resolve, signal)
        try:
            await signal
        finally:
            if timer is not None:
                timer.cancel()
        if self._mutexes.closed:
            raise Closed
        return self.inside

    @property
    def next(self) -> bool:
        """Whether this is the first waiting entry."""
        callers = self._mutexes.queues.get(self._key)
        return callers is not None and len(callers) > 1 and callers[1] is self

    def admit(self) -> None:
        """Let this caller in."""
        self.inside = True
        if self._signal is not None:
            _resolve(self._signal)

    def refuse(self) -> None:
        """Wake up this caller without letting it in: the `Locks` is closed."""
        if self._signal is not None:
            _resolve(self._signal)

    def leave(self) -> None:
        """Leave the queue, and let in the next caller."""
        on_loop(self._mutexes.loop, self._mutexes.thread_id, self._leave)

    def _leave(self) -> None:
        self.held = None
        callers = self._mutexes.queues.get(self._key)
        if callers is None or not (self.inside or self._signal):
            return
        first = callers[0]
        with contextlib.suppress(ValueError):  # it has left already
            callers.remove(self)
        self.inside = False
        if not callers:
            del self._mutexes.queues[self._key]
        elif callers[0] is not first:
            callers[0].admit()


def _resolve(signal: asyncio.Future[None]) -> None:
    if not signal.done():
        signal.set_result(None)


class LoopMutexes:
    """The local mutexes of one asynchronous `Locks`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread_id = threading.get_ident()
        self.queues: dict[str, deque[LoopEntry]] = {}
        self.closed = False

    def close(self) -> None:
        """Refuse all queued callers."""
        self.closed = True
        for callers in self.queues.values():
            for entry in callers:
                entry.refuse()

    def entry(self, key: str, caller: object = None) -> LoopEntry:
        """Make the entry of one caller. It is queued when it enters."""
        return LoopEntry(self, key, caller)

    def inside(self, key: str) -> LoopEntry | None:
        """The entry of the caller who is inside."""
        callers = self.queues.get(key)
        return callers[0] if callers else None

    def waiting(self) -> int:
        """How many callers are queued."""
        return sum(len(callers) - 1 for callers in self.queues.values())


class LoopRuntime:
    """Waits of asyncio for the same flows."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.mutexes = LoopMutexes(loop)  # the local mutexes
        self._loop = loop
        self._unfinished: dict[asyncio.Task[None], None] = {}

    def here(self) -> bool:
        """Whether this belongs to the loop that is running, or may still run if none is."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return not self._loop.is_closed()

    async def sleep(self, ns: int) -> None:
        """Let others run for a while."""
        await asyncio.sleep(ns / NS)

    async def finish(self, work: Coroutine[Any, Any, None], limit_ns: int) -> None:
        """Run the work in a task of its own; cancellations of the caller wait until it is done or the limit is over."""
        task = self._loop.create_task(_finish(work))
        self._unfinished[task] = None
        task.add_done_callback(self._unfinished.pop)
        until = self._loop.time() + limit_ns / NS
        cancelled: asyncio.CancelledError | None = None
        while not task.done() and (left := until - self._loop.time()) > 0:
            try:
                await asyncio.wait([task], timeout=left)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def call(self, function: Callable[[Any], object], argument: object) -> None:
        """Call a user's function on the loop, from any thread. What it raises is logged; a coroutine becomes a task."""

        def act() -> None:
            result = guarded(partial(function, argument))
            if asyncio.iscoroutine(result):
                task = self._loop.create_task(_finish(result))
                self._unfinished[task] = None
                task.add_done_callback(self._unfinished.pop)

        on_loop(self._loop, self.mutexes.thread_id, act)

    async def drain(self, limit_ns: int) -> None:
        """Wait for what is still being finished in the background."""
        if self._unfinished:
            await asyncio.wait(list(self._unfinished), timeout=limit_ns / NS)


class Body:
    """The body of one `async with`: cancelled when its lease is lost, so that the loss stops the work.

    The cancellation is ours, so it is taken back at the end of the block and becomes `LeaseLost` there. A cancellation
    that came from outside as well stays one.
    """

    __slots__ = ("_cancelled", "_inside", "_loop", "_outer", "_task")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an async lock can only be entered inside a task")
        self._task = task
        self._outer = task.cancelling()
        self._inside = True
        self._cancelled = False

    def on_end(self, ended: LeaseRecord) -> None:
        """The lease has ended; called from whichever thread noticed, which may be the body's own.

        The cancellation always comes from the loop, never from the body itself: a task that cancels itself while it
        runs and ends the block before its next await could not take that back on Python 3.11 and 3.12.
        """
        if ended.recorded.phase is LeasePhase.LOST:
            try:
                self._loop.call_soon_threadsafe(self._cancel)
            except RuntimeError:
                _log.debug("the event loop is closed; no body is left to cancel")

    def _cancel(self) -> None:
        if self._inside and not self._cancelled:
            self._cancelled = True
            self._task.cancel("the lease was lost")

    def left(self, error: BaseException | None) -> bool:
        """The body is over. True when what propagates is our own cancellation, and nothing else."""
        self._inside = False
        if not self._cancelled:
            return False
        others = self._task.uncancel()
        return others <= self._outer and isinstance(error, asyncio.CancelledError)


caller_task = asyncio.current_task


def this_task() -> object:
    """A mark of the running task. It does not keep the task alive: a task may have its own lease as its result."""
    task = asyncio.current_task()
    return None if task is None else weakref.ref(task)


running_loop = asyncio.get_running_loop


async def off_loop(work: Callable[[], None]) -> None:
    """Do something that may block for a moment without blocking the loop, even if the caller is cancelled meanwhile."""
    await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(work)))


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - clean-up is a best effort and must not raise into its caller
        log_event(_log, logging.WARNING, "clean-up failed; the key will expire", error)
