"""The start and the end of a long-lived process.

Promises: an abandoned start is cancelled and unwound when `started` returns, so a silent store does not block
Ctrl-C. After everything is closed and reported, the interpreter does not traverse all loaded objects again. That took
half a second of the grace period on a busy machine, and freed nothing that matters. Clock: none; stores have their own
limits.

A plane collects garbage less often than other programs. The interpreter collects whenever a few hundred more objects
were created than dropped. A plane creates thousands for a batch of jobs and soon drops them, without cycles. A
collection in between found nothing and took a tenth of its time. The price is memory: some thousands of objects in
cycles stay a little longer.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, TypeVar

GC_THRESHOLD: Final = 10_000

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


def collect_less_often() -> None:
    """Collect garbage after `GC_THRESHOLD` new objects. Call it before an app is loaded, which may set its own.

    Does nothing if garbage collection is already off or less frequent.
    """
    lowest, *others = gc.get_threshold()
    if gc.isenabled() and 0 < lowest < GC_THRESHOLD:
        gc.set_threshold(GC_THRESHOLD, *others)


def leave_quickly() -> None:
    """Let this process end without a last garbage collection. Call it when all work is done."""
    atexit.register(_no_more)


def _no_more() -> None:
    gc.disable()
    gc.freeze()
