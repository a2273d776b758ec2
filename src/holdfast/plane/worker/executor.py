"""Running one function, on the event loop or in a thread, so that it can be asked to stop.

Promises: an interruption reaches an `async def` as a cancellation and a `def` as a flag that it can look at; whoever
waits gets an answer within the grace period, whatever the function does, and sooner if it is to hasten; a function that
does not stop is never killed behind anybody's back: it is `Unfinished`, and `ending` says when it has ended after all.
Does not promise that a function stops: Python cannot end a thread, so its writes are kept out by the fence, not by
force.
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

from holdfast.flows.log import say
from holdfast.plane.app import JobFunction
from holdfast.plane.worker.context import AnyContext
from holdfast.types import NS

_log: Final = logging.getLogger("holdfast.plane.worker")


class Interruption(StrEnum):
    """Why a function is asked to stop."""

    TIME_LIMIT = "time limit"  # it has run for as long as it may
    STALLED = "stalled"  # it has reported no progress for too long
    STOPPED = "stopped"  # the scheduler has ended the attempt
    LOST = "lease lost"  # somebody else may run it by now
    DRAINED = "worker ending"  # the worker goes away, and another will run it


@dataclass(frozen=True, slots=True)
class Returned:
    """The function came to its end."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The function ended in an error, which may be the cancellation that it was sent."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The function was asked to stop, and has not within the grace period."""


Ended: TypeAlias = Returned | Raised


class Crew:
    """Threads for functions that block. As many as there are calls at once; the caller bounds those.

    They are daemons: a function that never returns must not keep the process from ending, once everybody was told.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._line: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._idle = 0
        self._made = 0
        self._closed = False

    def call(self, work: Callable[[], None]) -> None:
        """Do the work in a thread that has nothing to do, or in a new one. The work must not raise."""
        with self._mutex:
            if self._closed:
                raise RuntimeError("the crew was sent home")
            spare = self._idle > 0
            self._idle -= spare
            self._made += not spare
            number = self._made
        if not spare:
            threading.Thread(target=self._live, name=f"{self._name}-{number}", daemon=True).start()
        self._line.put(work)

    def close(self) -> None:
        """Send home those who have nothing to do, and the others when they are done. Waits for nobody."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._line.put(None)

    def _live(self) -> None:
        while (work := self._line.get()) is not None:
            work()
            del work  # an idle thread must not keep the payload of its last job
            with self._mutex:
                if self._closed:
                    return
                self._idle += 1


class Execution:
    """One call of one function. Belongs to the event loop on which it was made."""

    def __init__(self, crew: Crew, context: AnyContext, grace_ns: int) -> None:
        self._crew = crew
        self._context = context
        self._grace_s = grace_ns / NS
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()  # it has ended, or was asked to stop
        self._late: asyncio.Future[None] | None = None  # nobody waits for it any longer; while somebody does
        self._given_up = False
        self._task: asyncio.Task[Ended] | None = None
        self.ending: asyncio.Future[Ended] = self._loop.create_future()
        self.begun = False
        self.why: Interruption | None = None

    def interrupt(self, why: Interruption, reason: str) -> None:
        """Ask it to stop. The first reason counts; one that has ended already is left alone."""
        if self.why is not None or self.ending.done():
            return
        self.why = why
        self._context.cancelled.set(reason)
        if self._task is not None:
            self._task.cancel(reason)
        if not self._over.done():
            self._over.set_result(None)

    def hasten(self, within_ns: int) -> None:
        """Whoever waits does so for no longer than that from now, also if it was asked to stop before."""
        self._loop.call_later(within_ns / NS, self._give_up)

    async def run(self, job: JobFunction, payload: Any) -> Ended | Unfinished:
        """Call the function and wait until it has ended, or until the grace period after an interruption is over."""
        if self.why is not None:
            return Raised(asyncio.CancelledError(str(self.why)))
        self._begin(job.call(payload, self._context), job)
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
            self._crew.call(partial(contextvars.copy_context().run, self._in_thread, call, job.judged))

    def _task_ended(self, task: asyncio.Task[Ended]) -> None:
        # Cancelled before its first step: the function was never entered.
        self._end(Raised(asyncio.CancelledError(str(self.why))) if task.cancelled() else task.result())

    def _in_thread(self, call: Callable[[], Any], judged: Callable[[Any], Any]) -> None:
        ended: Ended
        try:
            ended = Returned(judged(call()))
        except BaseException as error:  # noqa: BLE001 - whatever it is, also SystemExit, it is how this attempt ended
            ended = Raised(error)
        try:
            self._loop.call_soon_threadsafe(self._end, ended)
        except RuntimeError:
            say(_log, logging.WARNING, "a function ended after its worker had", job=self._context.job)

    def _give_up(self) -> None:
        self._given_up = True
        if self._late is not None and not self._late.done():
            self._late.set_result(None)

    def _end(self, ended: Ended) -> None:
        if not self.ending.done():
            self.ending.set_result(ended)
        if not self._over.done():
            self._over.set_result(None)


async def _awaited(call: Callable[[], Any], judged: Callable[[Any], Any]) -> Ended:
    try:
        return Returned(judged(await call()))
    except GeneratorExit:  # the loop is being torn down
        raise
    except BaseException as error:  # noqa: BLE001 - a job that calls sys.exit() must not end the worker of all others
        return Raised(error)
