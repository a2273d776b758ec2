"""The start and the end of a long-lived process.

Promises: an abandoned start is cancelled and unwound when `started` returns, so a silent store does not block
Ctrl-C. After everything is closed and reported, the interpreter does not traverse all loaded objects again. That took
half a second of the grace period on a busy machine, and freed nothing that matters. Clock: none; stores have their own
limits.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
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


def leave_quickly() -> None:
    """Let this process end without a last garbage collection. Call it when all work is done."""
    atexit.register(_no_more)


def _no_more() -> None:
    gc.disable()
    gc.freeze()
