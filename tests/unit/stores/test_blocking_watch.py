"""Waiters of stores whose driver knows only asyncio."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

from holdfast.runtime.loop_thread import LoopThread
from holdfast.stores.blocking import BlockingWatch
from holdfast.types import NS


class Watched:
    """A watch of a store on the loop."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def close(self) -> None:
        self.closed.set()


def test_a_waiter_that_an_interrupt_has_lost_is_closed_on_its_loop() -> None:
    thread, inner = LoopThread("test"), Watched()
    thread.call(lambda: asyncio.sleep(0), NS * 30)
    lost: list[Any] = [BlockingWatch(thread, inner)]  # type: ignore[arg-type]  # it has what is used of a watch
    lost.clear()
    gc.collect()
    assert inner.closed.wait(5)
    thread.close()
