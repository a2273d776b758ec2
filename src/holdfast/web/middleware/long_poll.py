"""Waiting on behalf of somebody at the other end of a connection: until they hang up, or the process begins to end.

Promises: while the block runs, both end the patience of whoever waits in it. Nothing is cancelled. Does not promise to
notice everything: a caller whose machine or network is gone says no word of it, and is there until the wait is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.types import Receive

from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.resources.client_wait import ClientWait, WaitEnd


@asynccontextmanager
async def patient(request: Request, process_health: ProcessHealth) -> AsyncIterator[ClientWait]:
    """The patience of whoever asks. The body of the request has been read before."""
    client = ClientWait()
    watching = asyncio.create_task(_watch(request.receive, client), name="connection of a waiter")
    try:
        with process_health.waiting(client):
            yield client
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


async def _watch(receive: Receive, client: ClientWait) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of a body that nobody wanted
    client.end(WaitEnd.LEFT)
