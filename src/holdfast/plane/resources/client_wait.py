"""The wait of one client for an answer: it ends early if the client disconnects or the process shuts down.

Promises: a wait ends once, the first reason counts, and the waiting task is woken. Nothing is cancelled: a running
transaction is completed, and the task that started it decides about its result.

Clock: that of the notification listener.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from holdfast.plane.db.ports import ChannelListener


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
        waits = [asyncio.ensure_future(listener.wait(timeout_ns)), asyncio.ensure_future(self._over.wait())]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)
        for each in done:
            each.result()
