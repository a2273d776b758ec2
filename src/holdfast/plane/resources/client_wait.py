"""Whether somebody who waits for an answer still does: they may go away, and the process may want to end.

Promises: it ends once, and how it ended first is how it ended; whoever waits is woken then. Nothing is cancelled: a
transaction that is under way is not cut short, and whoever began it decides what its result is worth now.

Clock: that of the bell.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from holdfast.plane.db.ports import Bell


class Parting(StrEnum):
    """How a wait was ended from outside."""

    LEFT = "left"  # whoever waited is gone, and will not hear an answer
    CLOSING = "closing"  # the process begins to end; whoever waits is there, and should ask another one


class Patience:
    """One wait."""

    def __init__(self) -> None:
        self.ended: Parting | None = None
        self._over = asyncio.Event()

    def end(self, how: Parting) -> None:
        """End it. Only the first time counts."""
        if self.ended is None:
            self.ended = how
            self._over.set()

    async def wait(self, bell: Bell, timeout_ns: int) -> None:
        """Wait for a ring, for the end of the time, or for the end of this."""
        waits = [asyncio.ensure_future(bell.wait(timeout_ns)), asyncio.ensure_future(self._over.wait())]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)
        for each in done:
            each.result()
