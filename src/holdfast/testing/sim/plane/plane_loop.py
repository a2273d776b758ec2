"""The virtual loop for programs that keep tasks and futures in sets, as a whole plane does.

The order of a set follows the hashes of what is in it, and by default that is an address: another one in every process.
Here tasks and futures are hashed by their number, so that whatever goes through such a set goes in the same order in
every process, and one seed stays one world.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from holdfast.testing.sim.environment.loop import SimLoop

T = TypeVar("T")


class _NumberedTask(asyncio.Task[T]):
    """A task whose place in a set does not depend on where it lies in memory."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], **settings: Any) -> None:
        self.number = number  # before the rest: making a task enters it into a set
        super().__init__(coro, **settings)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _NumberedFuture(asyncio.Future[T]):
    """The same for a future."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class PlaneLoop(SimLoop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._hashes = itertools.count(1)

    def create_future(self) -> asyncio.Future[Any]:
        """See `SimLoop`."""
        return _NumberedFuture(next(self._hashes), self)

    def create_task(
        self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], *, name: str | None = None, **settings: Any
    ) -> asyncio.Task[T]:
        """See `SimLoop`."""
        number = next(self._hashes)
        task: asyncio.Task[T] = _NumberedTask(number, coro, loop=self, name=name or f"task-{number}", **settings)
        if not task.done():
            self.tasks[task] = None
            task.add_done_callback(self._forget, context=_NOBODY)
        return task


_NOBODY = contextvars.Context()
