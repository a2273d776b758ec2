"""Interruptible start: a store that does not answer must not block Ctrl-C.

Promises: an abandoned start is cancelled and unwound when `started` returns. Clock: none; stores have their own limits.

"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def started(start: Coroutine[Any, Any, T], ending: asyncio.Event) -> asyncio.Task[T] | None:
    """The finished start; raises its error. None: the process was told to end first."""
    starting = asyncio.create_task(start)
    await first(ending.wait(), asyncio.shield(starting))
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        if starting.cancelled() or starting.exception() is not None:  # else it finished at the same moment
            return None
    return starting


async def first(*waits: Awaitable[object]) -> None:
    """Return when the first of them has finished; raise its error."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()
