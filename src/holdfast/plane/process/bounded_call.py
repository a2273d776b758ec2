"""Asking a store that may not answer, so that whoever waits has an answer in time.

A time limit that cancels a request is not enough: a driver may take longer to give it up than the request had. psycopg
tells the server to stop what it does, and where the server hangs it waits for that answer too, for ten seconds and
more; `asyncio.timeout` waits with it. So the request is a task that is left behind when its time is over.

Promises: `within` returns, or raises, about when its time is over, whatever the store does. There is one request at a
time: who asks while an earlier one is still being given up waits for that first, so that a store which hangs does not
collect requests. Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Asking:
    """One question that is put again and again."""

    def __init__(self) -> None:
        self._last: asyncio.Task[Any] | None = None

    async def within(self, limit_s: float, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer, or what `ask` raises; `TimeoutError` when there was none in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        while self._last is not None and not self._last.done():
            await self._wait(self._last, until - loop.time())
        asked: asyncio.Task[T] = loop.create_task(ask())
        self._last = asked
        asked.add_done_callback(_heard)
        try:
            await self._wait(asked, until - loop.time())
        finally:
            asked.cancel()  # of one that is done it changes nothing
        return await asked

    async def _wait(self, task: asyncio.Task[Any], left_s: float) -> None:
        _, late = await asyncio.wait((task,), timeout=max(0.0, left_s))
        if late:
            raise TimeoutError


def _heard(task: asyncio.Task[Any]) -> None:
    """Nobody waits any more for how it ended."""
    if not task.cancelled():
        task.exception()
