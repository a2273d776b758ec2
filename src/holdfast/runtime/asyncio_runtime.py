"""Waiting and finishing on asyncio: the other half of the runtime.

Every object here belongs to one event loop. What other threads may call (`leave`, from the alarm) hops onto that loop.
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

from holdfast.core.lease.states import State
from holdfast.core.ports import Held
from holdfast.errors import Closed
from holdfast.flows.log import say
from holdfast.runtime.callbacks import guarded
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.types import NS

_log = logging.getLogger("holdfast")


def on_loop(loop: asyncio.AbstractEventLoop, thread_id: int, act: Callable[[], None]) -> None:
    """Do something on the loop's thread: now if this is it, soon otherwise, never if the loop is closed."""
    if threading.get_ident() == thread_id:
        act()
        return
    try:
        loop.call_soon_threadsafe(act)
    except RuntimeError:
        _log.debug("the event loop is closed; nothing is left to tell it")


class LoopPlace:
    """One task's place in line at one key."""

    __slots__ = ("_gate", "_key", "_turn", "asked", "caller", "held", "inside")

    def __init__(self, gate: LoopGate, key: str, caller: object) -> None:
        self._gate = gate
        self._key = key
        self._turn: asyncio.Future[None] | None = None  # once it stands in line
        self.inside = False
        self.asked: str | None = None
        self.caller = caller
        self.held: Held | None = None

    async def enter(self, timeout_ns: int | None) -> bool:
        """Wait for the turn."""
        line = self._gate.lines.get(self._key)
        if line is None:
            self._gate.lines[self._key] = deque((self,))
            self.inside = True
        if self.inside:
            return True
        if self._turn is None:
            if timeout_ns is not None and timeout_ns <= 0:
                return False
            self._gate.lines[self._key].append(self)
        turn = self._turn = self._gate.loop.create_future()
        timer = None if timeout_ns is None else self._gate.loop.call_later(timeout_ns / NS, _resolve, turn)
        try:
            await turn
        finally:
            if timer is not None:
                timer.cancel()
        if self._gate.closed:
            raise Closed
        return self.inside

    @property
    def next(self) -> bool:
        """Whether this is the first of those who wait."""
        line = self._gate.lines.get(self._key)
        return line is not None and len(line) > 1 and line[1] is self

    def called(self) -> None:
        """It is this place's turn."""
        self.inside = True
        if self._turn is not None:
            _resolve(self._turn)

    def sent_away(self) -> None:
        """It will never be this place's turn."""
        if self._turn is not None:
            _resolve(self._turn)

    def leave(self) -> None:
        """Let the next one in, or step out of the line."""
        on_loop(self._gate.loop, self._gate.thread_id, self._leave)

    def _leave(self) -> None:
        self.held = None
        line = self._gate.lines.get(self._key)
        if line is None or not (self.inside or self._turn):
            return
        first = line[0]
        with contextlib.suppress(ValueError):  # it has left
            line.remove(self)
        self.inside = False
        if not line:
            del self._gate.lines[self._key]
        elif line[0] is not first:
            line[0].called()


def _resolve(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class LoopGate:
    """The local mutexes of one asynchronous `Locks`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread_id = threading.get_ident()
        self.lines: dict[str, deque[LoopPlace]] = {}
        self.closed = False

    def close(self) -> None:
        """Send everybody away who stands in line."""
        self.closed = True
        for line in self.lines.values():
            for place in line:
                place.sent_away()

    def place(self, key: str, caller: object = None) -> LoopPlace:
        """A place for one caller."""
        return LoopPlace(self, key, caller)

    def inside(self, key: str) -> LoopPlace | None:
        """The place of the caller who is inside."""
        line = self.lines.get(key)
        return line[0] if line else None

    def waiting(self) -> int:
        """How many callers stand in line."""
        return sum(len(line) - 1 for line in self.lines.values())


class LoopRuntime:
    """Waits of asyncio for the same flows."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._gate = LoopGate(loop)
        self._loop = loop
        self._unfinished: dict[asyncio.Task[None], None] = {}

    @property
    def gate(self) -> LoopGate:
        """The local mutexes."""
        return self._gate

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

        on_loop(self._loop, self._gate.thread_id, act)

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

    def told(self, ended: LeaseRecord) -> None:
        """The lease has ended; called from whichever thread noticed, which may be the body's own.

        The cancellation always comes from the loop, never from the body itself: a task that cancels itself while it
        runs and ends the block before its next await could not take that back on Python 3.11 and 3.12.
        """
        if ended.recorded.state is State.LOST:
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
        say(_log, logging.WARNING, "clean-up failed; the key will expire by itself", error)
