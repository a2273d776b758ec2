"""The thread that does the blocking work of one event loop, one piece after the other, in the order it was requested.

Promises: a later call is ordered after an earlier one, also after one that was cancelled or timed out in mid-work, so
that undoing an acquire cannot overtake it. A call that was cancelled or timed out while it was still queued is not done
at all. The loop is never blocked, and is woken once for all answers that are ready.

Clock: the monotonic clock, for time limits only.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.errors import BackendError, Timeout
from holdfast.stores.sqlite.errors import FileBusy
from holdfast.types import NS

T = TypeVar("T")

_ANSWERS_MAX: Final = 32  # how many may wait for the loop to be woken
_GRACE_S: Final = 0.25  # by which a piece of work that has begun may overrun, on a disk that does not answer


class _Job(NamedTuple):
    work: Callable[[int], Any]
    future: asyncio.Future[Any]
    deadline_ns: int
    taken: threading.Lock  # by the thread that begins it, or by the caller whose time is over before that


class _Answer(NamedTuple):
    future: asyncio.Future[Any]
    result: Any
    error: BaseException | None


class LoopWorker:
    """The worker of one event loop. The thread starts with the first piece of work, and ends with `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._asked: list[_Job] = []  # in this turn of the loop
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[int], T], timeout_ns: int, *, anyway: bool = False) -> T:
        """Do the work, which gets what is left of its time. `anyway`: also if the caller is cancelled meanwhile."""
        if self._thread is None or not self._thread.is_alive():
            # A daemon: a program that forgot to close its store must still be able to end.
            self._thread = threading.Thread(target=self._serve, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()
        future: asyncio.Future[T] = self._loop.create_future()
        job = _Job(work, future, time.monotonic_ns() + timeout_ns, threading.Lock())
        self._ask(job)
        # Work that has begun keeps to its own time limit; queued work behind slow work does not.
        timer = self._loop.call_later(timeout_ns / NS, self._overdue, job)
        try:
            return await (asyncio.shield(future) if anyway else future)
        finally:
            timer.cancel()

    def _overdue(self, job: _Job) -> None:
        if not job.taken.acquire(blocking=False):  # it has begun: only a disk that does not answer keeps it
            self._loop.call_later(_GRACE_S, _give_up, job.future)
        elif not job.future.done():
            job.future.set_exception(_late())

    def post(self, work: Callable[[int], None], timeout_ns: int) -> None:
        """Do the work when its turn comes, without a result."""
        future: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(asyncio.Future.exception)  # or the loop would log that it was never retrieved
        self._ask(_Job(work, future, time.monotonic_ns() + timeout_ns, threading.Lock()))

    def _ask(self, job: _Job) -> None:
        """Enqueue a job. The thread is woken once for all jobs of one turn of the loop."""
        self._asked.append(job)
        if len(self._asked) == 1:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        if self._asked:
            asked, self._asked = self._asked, []
            self._jobs.put(asked)

    async def stop(self, last: Callable[[], None], timeout_ns: int) -> None:
        """End the thread after the queued jobs and `last`. Never raises; a thread that hangs is left behind."""
        try:
            await self.run(lambda _left: last(), timeout_ns)
        except BackendError:
            return
        finally:
            self._hand_over()
            self._jobs.put(None)
            self._thread, self._jobs = None, queue.SimpleQueue()

    def _serve(self, jobs: queue.SimpleQueue[list[_Job] | None]) -> None:
        while (asked := jobs.get()) is not None:
            for at in range(0, len(asked), _ANSWERS_MAX):
                self._deliver([each for job in asked[at : at + _ANSWERS_MAX] if (each := _done(job)) is not None])

    def _deliver(self, answers: list[_Answer]) -> None:
        if not answers:
            return
        try:
            self._loop.call_soon_threadsafe(_deliver, answers)
        except RuntimeError:
            return  # the loop is closed, and so are its waiters


def _done(job: _Job) -> _Answer | None:
    if job.future.done() or not job.taken.acquire(blocking=False):  # cancelled, or given up
        return None
    left = job.deadline_ns - time.monotonic_ns()
    if left <= 0:
        return _Answer(job.future, None, _late())
    try:
        return _Answer(job.future, job.work(left), None)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the one who asked
        return _Answer(job.future, None, error)


def _late() -> FileBusy:
    return FileBusy("the request was queued for all of its time; nothing was changed")


def _deliver(answers: list[_Answer]) -> None:
    for future, result, error in answers:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _give_up(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(Timeout("the file did not answer in time; the request may take effect yet"))
