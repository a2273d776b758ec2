"""Calls that come at about the same time are answered together: one transaction, one request, for many callers.

Promises: a caller that is alone is served at once, and nobody waits for company: what comes while a batch is under way
is the next batch. Answers go to those who asked, in their order; an error of one item is nobody else's. When a batch
falls as a whole for a reason that may be one item's (anything but trouble with a store), each is tried by itself, so
that every caller gets its own answer. A caller that was cancelled before its batch began is left out of it; after that
its item is done, and nobody is told. Nobody waits for ever: if something that a batch awaited was cancelled under it,
those in it are told that nobody knows what became of their items, and the next batch is served; if the serving itself
is cancelled, as at the end of an event loop, so is everybody who waits.

Does not promise an order between callers, beyond that of their batches. Belongs to one event loop at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

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
    """The answers to some items, whatever happens: trouble with a store is everybody's, other errors are one's own."""
    try:
        return await together(items)
    except (BackendError, Closed) as error:
        return [Failed(_copy(error)) for _ in items]
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # it is meant for us
        return [Failed(Timeout("what was asked for was cancelled on its way, and may have happened")) for _ in items]
    except Exception as error:  # noqa: BLE001 - it belongs to one of those who asked, and to nobody else
        if len(items) == 1:
            return [Failed(error)]
        return [answer for item in items for answer in await answered(together, [item])]


class Gathering(Generic[A, R]):
    """See the module."""

    def __init__(
        self, together: Together[A, R], *, apart: Callable[[A], Hashable] | None = None, most: int = MOST
    ) -> None:
        """`apart` names what an item is about: two of the same name are never in one batch, and keep their order."""
        self._together = together
        self._apart = apart
        self._most = most
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._serving: asyncio.Task[None] | None = None
        self.batches = 0
        self.items = 0

    async def ask(self, item: A) -> R:
        """Have one item answered, with whoever else asks now."""
        return await self._enter(item)

    async def ask_all(self, items: Sequence[A]) -> list[R | Failed]:
        """Have some items answered. An error of one of them is its answer."""
        futures = [self._enter(item) for item in items]
        answers: list[R | Failed] = []
        try:
            for future in futures:
                try:
                    answers.append(await future)
                except Exception as error:  # noqa: BLE001 - it is the answer
                    answers.append(Failed(error))
        finally:
            for future in futures[len(answers) :]:  # of those that nobody waits for any longer
                future.cancel()
        return answers

    def _enter(self, item: A) -> asyncio.Future[R]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        serving = self._serving
        if serving is None or serving.done() or serving.get_loop() is not loop:
            self._waiting = deque()
            # A task begins in the next turn of the loop: whoever asks in this one is with us.
            self._serving = loop.create_task(self._serve(self._waiting))
            self._serving.add_done_callback(partial(_leave, self._waiting))
        self._waiting.append((item, future))
        return future

    async def _serve(self, waiting: deque[tuple[A, asyncio.Future[R]]]) -> None:
        while waiting:
            batch = self._next(waiting)
            if batch:
                self.batches += 1
                self.items += len(batch)
                try:
                    await self._answer(batch)
                finally:  # also when the loop ends in the middle of it
                    _leave(batch)

    def _next(self, waiting: deque[tuple[A, asyncio.Future[R]]]) -> list[tuple[A, asyncio.Future[R]]]:
        """Those at the head of the line who can go together. Who was cancelled is left out."""
        batch: list[tuple[A, asyncio.Future[R]]] = []
        later: list[tuple[A, asyncio.Future[R]]] = []
        names: set[Hashable] = set()
        while waiting and len(batch) < self._most:
            each = waiting.popleft()
            if each[1].done():
                continue
            if self._apart is not None:
                name = self._apart(each[0])
                if name in names:
                    later.append(each)
                    continue
                names.add(name)
            batch.append(each)
        waiting.extendleft(reversed(later))
        return batch

    async def _answer(self, batch: Sequence[tuple[A, asyncio.Future[R]]]) -> None:
        answers = await answered(self._together, [item for item, _ in batch])
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Failed):
                future.set_exception(answer.error)
            else:
                future.set_result(answer)


def _leave(waiting: Iterable[tuple[A, asyncio.Future[R]]], _: asyncio.Task[None] | None = None) -> None:
    """Nobody is served any more: whoever still waits is not kept."""
    for _item, future in waiting:
        if not future.done():
            future.cancel()


def _copy(error: Exception) -> Exception:
    """An error of its own for each who is told: tracebacks grow, and are not to be shared between tasks."""
    copy = type(error).__new__(type(error))
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
