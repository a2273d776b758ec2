"""Calls to a store that may hang, with a result in time.

A timeout that cancels the request is not enough: a driver may take longer to cancel than the request had. psycopg asks
the server to cancel a query, and waits for that answer up to ten seconds and more if the server hangs;
`asyncio.timeout` waits with it. So the request is a task that is left behind after its time.

Promises: `within` returns or raises at about its limit, whatever the store does. There is one request at a time: a call
first waits for an earlier request that is still being cancelled, so a hanging store does not collect requests.
Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BoundedCall:
    """A request that is repeated now and then."""

    def __init__(self) -> None:
        self._last: asyncio.Task[Any] | None = None

    async def within(self, limit_s: float, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `ask`, or what it raises; `TimeoutError` after the limit."""
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        while self._last is not None and not self._last.done():
            await self._wait(self._last, until - loop.time())
        asked: asyncio.Task[T] = loop.create_task(ask())
        self._last = asked
        asked.add_done_callback(_retrieve)
        try:
            await self._wait(asked, until - loop.time())
        finally:
            asked.cancel()  # no effect on a task that is done
        return await asked

    async def _wait(self, task: asyncio.Task[Any], left_s: float) -> None:
        _, late = await asyncio.wait((task,), timeout=max(0.0, left_s))
        if late:
            raise TimeoutError


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task that was left behind."""
    if not task.cancelled():
        task.exception()
