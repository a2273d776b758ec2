"""The line in which works wait for a thread: tasks of one event loop stand in it, threads serve it.

Promises: a work is begun once or not at all, and a caller that is told that nothing happened can rely on it: beginning
a work and giving it up exclude each other. A work that was cancelled, or waited for all of its patience, before its
turn is never begun. The line is bounded: when it is full, callers wait for room, no longer than their patience. All
that was in line when it was closed is still served. The loop is woken once for all answers of a group.

Clock: the event loop's, for time limits only.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.errors import Closed, Timeout, Unavailable
from holdfast.plane.db.ports import Work
from holdfast.types import NS

T = TypeVar("T")

CLOSED: Final = "this database is closed; open it again"
_ANSWER_LIMIT_NS: Final = 60 * NS  # after which a disk that does not answer is given up


class QueuedWork:
    """One queued work, and the future of the task that waits for it."""

    __slots__ = ("begun", "future", "given_up", "lasting", "work")

    def __init__(self, work: Work[Any], future: asyncio.Future[Any], *, lasting: bool) -> None:
        self.work = work
        self.future = future
        self.lasting = lasting  # it waits until it is safe, too
        self.begun = False
        self.given_up = False


class Answer(NamedTuple):
    """What became of an entry."""

    entry: QueuedWork
    result: Any = None
    error: BaseException | None = None


class WorkQueue:
    """See the module. `ask` and `close` belong to the loop, everything else to the threads that serve."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, room: int, patience_ns: int, limit_ns: int = _ANSWER_LIMIT_NS
    ) -> None:
        self._loop = loop
        self._room = asyncio.Semaphore(room)
        self._patience_s = patience_ns / NS
        self._limit_s = limit_ns / NS
        self._waiting: deque[QueuedWork] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, work: Work[T], *, lasting: bool = True) -> T:
        """Queue a work, and wait for its result; `lasting`: until it is safe, where that comes later."""
        end = self._loop.time() + self._patience_s
        await self._enter()
        try:
            entry = QueuedWork(work, self._loop.create_future(), lasting=lasting)
            with self._changed:
                if self._closed:
                    raise Closed(CLOSED)
                self._waiting.append(entry)
                self._changed.notify()
            timer = self._loop.call_at(end, self._patience_is_over, entry)
            try:
                result: T = await entry.future
            except asyncio.CancelledError:
                self._give_up(entry)
                raise
            finally:
                timer.cancel()
            return result
        finally:
            self._room.release()

    async def _enter(self) -> None:
        if not self._room.locked():
            await self._room.acquire()  # does not suspend
            return
        try:
            async with asyncio.timeout(self._patience_s):
                await self._room.acquire()
        except TimeoutError:
            raise Unavailable("too many requests are queued; nothing was changed") from None

    def _patience_is_over(self, entry: QueuedWork) -> None:
        if entry.future.done():
            return
        if self._give_up(entry):
            entry.future.set_exception(
                Unavailable(
                    f"waited for {self._patience_s:g} s: another process holds the write lock of the file, or the line "
                    "is too long; nothing was changed"
                )
            )
        else:
            self._loop.call_later(self._limit_s, _no_answer, entry)

    def _give_up(self, entry: QueuedWork) -> bool:
        """Whether it had not begun, and so never will."""
        with self._changed:
            if entry.begun:
                return False
            entry.given_up = True
            # From the middle of a long line this is slow, and rare: it needs a cancellation or an overload.
            with contextlib.suppress(ValueError):
                self._waiting.remove(entry)
            return True

    def close(self) -> None:
        """Accept no more work. The threads end when the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # For the threads.

    def wait(self) -> bool:
        """Block until work is queued. False: none is, and none will be."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return bool(self._waiting)

    def begin(self, most: int) -> list[QueuedWork]:
        """Take those at the head out of the line. From here on they are done, whatever their tasks do."""
        with self._changed:
            entries = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            for entry in entries:
                entry.begun = True
            return entries

    def answer(self, answers: Sequence[Answer], also: Callable[[], None] | None = None) -> None:
        """Tell the tasks, and call `also` on the loop."""
        self.call(_deliver, answers, also)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function on the loop. If the loop is closed, no caller waits any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)


def _deliver(answers: Sequence[Answer], also: Callable[[], None] | None) -> None:
    for entry, result, error in answers:
        if entry.future.done():
            continue
        if error is None:
            entry.future.set_result(result)
        else:
            entry.future.set_exception(error)
    if also is not None:
        also()


def _no_answer(entry: QueuedWork) -> None:
    if not entry.future.done():
        entry.future.set_exception(Timeout("the file did not answer in time; the change may take effect yet"))
