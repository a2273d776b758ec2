"""The wait of a request for its client: ends early when the client disconnects or the process shuts down.

Promises: both end the wait inside the block. Nothing is cancelled. Does not promise to notice every disconnect: a
client whose machine or network is gone sends no signal, and counts as connected until the wait ends.
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
async def client_wait(request: Request, process_health: ProcessHealth) -> AsyncIterator[ClientWait]:
    """The wait of this request's client. The body of the request has been read before."""
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
        pass  # the rest of an unused body
    client.end(WaitEnd.LEFT)
