"""Batches concurrent calls into one request or transaction.

Promises:

- A call that comes alone starts immediately. Calls that come during a batch form the next one.
- Each caller gets the results of its own items, in their order. An error of one item affects no other.
- If a batch fails as a whole, and the reason may be one item (anything but a failed store), each item is tried alone.
- A caller that is cancelled before its batch starts is left out of it. After that, its item is done without a result.
- No caller waits forever. If something that a batch awaits is cancelled, its callers get an error that says that the
  outcome is unknown, and the next batch starts. If the batcher's own task is cancelled, as at the end of an event loop,
  all waiting calls are cancelled.

Does not promise an order between callers, beyond that of their batches. Belongs to one event loop at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

from holdfast.errors import BackendError, Closed, Timeout

A = TypeVar("A")
R = TypeVar("R")

MOST: Final = 128  # items in one batch


class Failed:
    """The answer to an item that ended in an error."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


Together: TypeAlias = Callable[[Sequence[A]], Awaitable[Sequence[R | Failed]]]
"""Answers each of some items, in their order. What it raises is about all of them."""


async def answered(together: Together[A, R], items: Sequence[A]) -> Sequence[R | Failed]:
    """The results of some items in any case: a failed store fails all of them, other errors fail one."""
    try:
        return await together(items)
    except (BackendError, Closed) as error:
        return [Failed(copy_of(error)) for _ in items]
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # it is meant for us
        return [Failed(Timeout("what was asked for was cancelled on its way, and may have happened")) for _ in items]
    except Exception as error:  # noqa: BLE001 - it is the result of one item
        if len(items) == 1:
            return [Failed(error)]
        return [answer for item in items for answer in await answered(together, [item])]


class _PendingItem(Generic[A, R]):
    """The items of one call."""

    __slots__ = ("answers", "items")

    def __init__(self, items: Sequence[A], answers: asyncio.Future[Sequence[R | Failed]]) -> None:
        self.items = items
        self.answers = answers


class Batcher(Generic[A, R]):
    """See the module."""

    def __init__(
        self, together: Together[A, R], *, apart: Callable[[A], Hashable] | None = None, most: int = MOST
    ) -> None:
        """`apart` names what an item is about: two of the same name are never in one batch, and keep their order."""
        self._together = together
        self._apart = apart
        self._most = most
        self._waiting: deque[_PendingItem[A, R]] = deque()
        self._serving: asyncio.Task[None] | None = None
        self.batches = 0
        self.items = 0

    async def ask(self, item: A) -> R:
        """The result of one item, in a batch with concurrent ones."""
        (answer,) = await self._enter((item,))
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    async def ask_all(self, items: Sequence[A]) -> list[R | Failed]:
        """Have some items answered, in as few batches as can be. An error of one of them is its answer."""
        waiting = [self._enter(share) for share in self._shares(items)]
        answers: list[R | Failed] = []
        try:
            for each in waiting:
                answers += await each
        finally:
            for each in waiting:  # those that the caller no longer waits for
                each.cancel()
        return answers

    def _shares(self, items: Sequence[A]) -> Iterator[Sequence[A]]:
        """The items in as few groups as can be, of which each can be a part of one batch."""
        if self._apart is None:
            for at in range(0, len(items), self._most):
                yield items[at : at + self._most]
            return
        share: list[A] = []
        names: set[Hashable] = set()
        for item in items:
            name = self._apart(item)
            if name in names or len(share) == self._most:
                yield share
                share, names = [], set()
            share.append(item)
            names.add(name)
        if share:
            yield share

    def _enter(self, items: Sequence[A]) -> asyncio.Future[Sequence[R | Failed]]:
        loop = asyncio.get_running_loop()
        answers: asyncio.Future[Sequence[R | Failed]] = loop.create_future()
        serving = self._serving
        if serving is None or serving.done() or serving.get_loop() is not loop:
            self._waiting = deque()
            # A task starts in the next turn of the loop: calls of this turn are in the first batch.
            self._serving = loop.create_task(self._serve(self._waiting))
            self._serving.add_done_callback(partial(_leave, self._waiting))
        self._waiting.append(_PendingItem(items, answers))
        return answers

    async def _serve(self, waiting: deque[_PendingItem[A, R]]) -> None:
        while waiting:
            batch = self._next(waiting)
            if batch:
                try:
                    await self._answer(batch)
                finally:  # also when the loop ends in the middle of it
                    _leave(batch)

    def _next(self, waiting: deque[_PendingItem[A, R]]) -> list[_PendingItem[A, R]]:
        """Those at the head of the line who can go together. Who was cancelled is left out."""
        batch: list[_PendingItem[A, R]] = []
        later: list[_PendingItem[A, R]] = []
        names: set[Hashable] = set()
        room = self._most
        while waiting and len(waiting[0].items) <= room:
            each = waiting.popleft()
            if each.answers.done():
                continue
            if self._apart is not None:
                wanted = {self._apart(item) for item in each.items}
                # Apart from items of the next batch too: the first call is answered first.
                if not names.isdisjoint(wanted):
                    names |= wanted
                    later.append(each)
                    continue
                names |= wanted
            room -= len(each.items)
            batch.append(each)
        waiting.extendleft(reversed(later))
        return batch

    async def _answer(self, batch: Sequence[_PendingItem[A, R]]) -> None:
        items = batch[0].items if len(batch) == 1 else [item for each in batch for item in each.items]
        self.batches += 1
        self.items += len(items)
        answers = await answered(self._together, items)
        if len(answers) != len(items):
            raise RuntimeError(f"{len(items)} items were given, and {len(answers)} answers came")
        at = 0
        for each in batch:
            share = answers[at : at + len(each.items)]
            at += len(each.items)
            if not each.answers.done():
                each.answers.set_result(share)


def _leave(waiting: Iterable[_PendingItem[A, R]], _: asyncio.Task[None] | None = None) -> None:
    """Cancel the calls that still wait: no batch follows."""
    for each in waiting:
        if not each.answers.done():
            each.answers.cancel()


def copy_of(error: Exception) -> Exception:
    """An error of its own for each who is told: tracebacks grow, and are not to be shared between tasks."""
    copy = type(error).__new__(type(error))
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy


async def finished(work: Coroutine[Any, Any, None]) -> None:
    """Run the work to its end even if the caller is cancelled meanwhile, who sees that afterwards. It bounds itself."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and not task.cancelled() and task.exception() is None:
        raise cancelled
    task.result()
