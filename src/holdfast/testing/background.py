"""Keeps something asynchronous open for a test without an event loop: on a loop in a thread of its own.

Promises: it is entered and left by one task, and left when the block ends. An error of either is raised in the block.
Clock: that of the host, for the time limit of the start.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Final, TypeVar

from holdfast.errors import HoldfastError

START_S: Final = 60.0

T = TypeVar("T")


@contextmanager
def in_background(opening: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Enter what `opening` returns, in a thread, and leave it at the end of the block."""
    entered: list[tuple[T, asyncio.AbstractEventLoop, asyncio.Event]] = []
    failures: list[BaseException] = []
    decided = threading.Event()

    async def keep() -> None:
        over = asyncio.Event()
        async with opening() as value:
            entered.append((value, asyncio.get_running_loop(), over))
            decided.set()
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(keep())
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread of the test
            failures.append(error)
        finally:
            decided.set()

    thread = threading.Thread(target=run, name="holdfast test", daemon=True)
    thread.start()
    if not decided.wait(START_S) or not entered:
        raise failures[0] if failures else HoldfastError(f"it did not start within {START_S:g} s")
    value, loop, over = entered[0]
    try:
        yield value
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(over.set)
            thread.join()
    if failures:
        raise failures[0]
