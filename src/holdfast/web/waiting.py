"""Waiting on behalf of somebody at the other end of a connection: noticed when they hang up.

Promises: while the block runs, the end of the connection ends the patience of whoever waits in it. Nothing is
cancelled. Does not promise to notice everything: a caller whose machine or network is gone says no word of it, and is
there until the wait is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.types import Receive

from holdfast.plane.patience import Parting, Patience


@asynccontextmanager
async def patient(request: Request) -> AsyncIterator[Patience]:
    """The patience of whoever asks. The body of the request has been read before."""
    patience = Patience()
    watching = asyncio.create_task(_watch(request.receive, patience), name="connection of a waiter")
    try:
        yield patience
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


async def _watch(receive: Receive, patience: Patience) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of a body that nobody wanted
    patience.end(Parting.LEFT)
