"""Starting what may take long, while somebody may want it to end: a store that does not answer must not hold up Ctrl-C.

Promises: a start that is given up is cancelled and has unwound when `started` returns. Clock: none; stores have their
own limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def started(start: Coroutine[Any, Any, T], ending: asyncio.Event) -> asyncio.Task[T] | None:
    """The start, when it is done; raises what stood in its way. None: somebody wanted the end first."""
    starting = asyncio.create_task(start)
    await first(ending.wait(), asyncio.shield(starting))
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        if starting.cancelled() or starting.exception() is not None:  # else it was done in the same moment
            return None
    return starting


async def first(*waits: Awaitable[object]) -> None:
    """Return when one of them has; raise what it raised."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()
