"""The wait of one client for an answer: it ends early if the client disconnects or the process shuts down.

Promises: a wait ends once, the first reason counts, and the waiting task is woken. Nothing is cancelled: a running
transaction is completed, and the task that started it decides about its result.

Clock: that of the notification listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any, TypeVar

from holdfast.plane.db.ports import ChannelListener

T = TypeVar("T")


class WaitEnd(StrEnum):
    """Why a wait ended early."""

    LEFT = "left"  # the client has disconnected and will not see an answer
    CLOSING = "closing"  # the process shuts down; the client is connected and should ask another one


class ClientWait:
    """The wait of one client."""

    def __init__(self) -> None:
        self.ended: WaitEnd | None = None
        self._over = asyncio.Event()

    def end(self, how: WaitEnd) -> None:
        """End the wait. Only the first call counts."""
        if self.ended is None:
            self.ended = how
            self._over.set()

    async def wait(self, listener: ChannelListener, timeout_ns: int) -> None:
        """Return at a notification, after the timeout, or at the end of this wait."""
        await self.unless_ended(listener.wait(timeout_ns))

    async def unless_ended(self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """The result of something that only waits; None: this wait has ended first, and the other is cancelled."""
        wanted, over = asyncio.ensure_future(waiting), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((wanted, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            if not wanted.done():
                wanted.cancel()
            await asyncio.wait((wanted, over))
        return None if wanted.cancelled() else wanted.result()
