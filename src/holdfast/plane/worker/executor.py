"""Runs one function, on the event loop or in a thread, so that it can be asked to stop.

Promises: an interruption reaches an `async def` as a cancellation and a `def` as a flag that it can check. The caller
gets an answer within the grace period, whatever the function does, and sooner after `limit_wait`. A function that does
not stop is never killed: it is `Unfinished`, and `ending` is done when it ends after all.

Does not promise that a function stops: Python cannot end a thread, so the fence keeps its writes out.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeAlias

from holdfast.flows.log import log_event
from holdfast.plane.app import JobFunction
from holdfast.plane.worker.context import AnyContext
from holdfast.types import NS

_log: Final = logging.getLogger("holdfast.plane.worker")


class Interruption(StrEnum):
    """Why a function is asked to stop."""

    TIME_LIMIT = "time limit"  # it has run for as long as it may
    STALLED = "stalled"  # it has reported no progress for too long
    STOPPED = "stopped"  # the scheduler has ended the attempt
    LOST = "lease lost"  # another worker may run it by now
    DRAINED = "worker ending"  # the worker ends, and another will run it


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised an error, which may be its cancellation."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The function was asked to stop, and has not within the grace period."""


Ended: TypeAlias = Returned | Raised


class JobThreads:
    """Threads for functions that block. One for each concurrent call; the caller bounds those.

    They are daemons: a function that never returns must not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Taken on the loop and in these threads, so no signal handler meets it. An exception of a handler releases it.
        self._mutex = threading.Lock()
        self._idle = 0
        self._made = 0
        self._closed = False

    def call(self, work: Callable[[], None]) -> None:
        """Do the work in an idle thread, or in a new one. The work must not raise."""
        with self._mutex:
            if self._closed:
                raise RuntimeError("the threads of the worker were closed")
            spare = self._idle > 0
            self._idle -= spare
            self._made += not spare
            number = self._made
        if not spare:
            threading.Thread(target=self._run, name=f"{self._name}-{number}", daemon=True).start()
        self._queue.put(work)

    def close(self) -> None:
        """End idle threads, and the others when their work is done. Does not wait."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # an idle thread must not keep the payload of its last job
            with self._mutex:
                if self._closed:
                    return
                self._idle += 1


class Execution:
    """One call of one function. Belongs to the event loop on which it was made."""

    def __init__(self, threads: JobThreads, context: AnyContext, grace_ns: int) -> None:
        self._threads = threads
        self._context = context
        self._grace_s = grace_ns / NS
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()  # it has ended, or was asked to stop
        self._late: asyncio.Future[None] | None = None  # the caller waits no longer; set while it waits
        self._given_up = False
        self._task: asyncio.Task[Ended] | None = None
        self.ending: asyncio.Future[Ended] = self._loop.create_future()
        self.begun = False
        self.why: Interruption | None = None

    def interrupt(self, why: Interruption, reason: str) -> None:
        """Ask it to stop. The first reason counts; nothing happens if it has ended."""
        if self.why is not None or self.ending.done():
            return
        self.why = why
        self._context.cancelled.set(reason)
        if self._task is not None:
            self._task.cancel(reason)
        if not self._over.done():
            self._over.set_result(None)

    def limit_wait(self, within_ns: int) -> None:
        """From now on, `run` waits no longer than that for a function that was asked to stop."""
        self._loop.call_later(within_ns / NS, self._give_up)

    async def run(self, job: JobFunction, payload: Any) -> Ended | Unfinished:
        """Call the function. Return when it has ended, or when the grace period after an interruption is over."""
        if self.why is not None:
            return Raised(asyncio.CancelledError(str(self.why)))
        self._begin(partial(job.call, payload, self._context), job)
        try:
            await self._over
            if not self.ending.done() and not self._given_up:
                self._late = self._loop.create_future()
                ends = (self.ending, self._late)
                await asyncio.wait(ends, timeout=self._grace_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.interrupt(Interruption.DRAINED, "its worker was ended")
            raise
        return self.ending.result() if self.ending.done() else Unfinished()

    def _begin(self, call: Callable[[], Any], job: JobFunction) -> None:
        self.begun = True
        if job.asynchronous:
            self._task = self._loop.create_task(_awaited(call, job.judged), name=f"job {self._context.job}")
            self._task.add_done_callback(self._task_ended)
        else:
            self._threads.call(partial(contextvars.copy_context().run, self._in_thread, call, job.judged))

    def _task_ended(self, task: asyncio.Task[Ended]) -> None:
        # Cancelled before its first step: the function was never entered.
        self._end(Raised(asyncio.CancelledError(str(self.why))) if task.cancelled() else task.result())

    def _in_thread(self, call: Callable[[], Any], judged: Callable[[Any], Any]) -> None:
        ended: Ended
        try:
            ended = Returned(judged(call()))
        except BaseException as error:  # noqa: BLE001 - whatever it is, even SystemExit, this attempt has ended with it
            ended = Raised(error)
        try:
            self._loop.call_soon_threadsafe(self._end, ended)
        except RuntimeError:
            log_event(_log, logging.WARNING, "a function ended after its worker had", job=self._context.job)

    def _give_up(self) -> None:
        self._given_up = True
        if self._late is not None and not self._late.done():
            self._late.set_result(None)

    def _end(self, ended: Ended) -> None:
        if not self.ending.done():
            self.ending.set_result(ended)
        if not self._over.done():
            self._over.set_result(None)


class StallTimer:
    """Interrupts an execution that reports no progress for too long. It checks when it is due, so reports are cheap."""

    def __init__(self, after_ns: int, execution: Execution, context: AnyContext) -> None:
        self._after_ns = after_ns
        self._execution = execution
        self._context = context
        self._timer = asyncio.get_running_loop().call_later(after_ns / NS, self._check)

    def cancel(self) -> None:
        """Check no more."""
        self._timer.cancel()

    def _check(self) -> None:
        left_ns = self._after_ns - self._context.idle_ns()
        if left_ns > 0:
            self._timer = asyncio.get_running_loop().call_later(left_ns / NS, self._check)
        else:
            self._execution.interrupt(Interruption.STALLED, f"it reported no progress for {self._after_ns / NS:g} s")


async def _awaited(call: Callable[[], Any], judged: Callable[[Any], Any]) -> Ended:
    try:
        return Returned(judged(await call()))
    except GeneratorExit:  # the loop is being torn down
        raise
    except BaseException as error:  # noqa: BLE001 - a job that calls sys.exit() must not end the worker of all others
        return Raised(error)
