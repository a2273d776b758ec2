"""The server's answers to what is published: one subscription of a connection for all of them.

The client's own way to ask and wait for an answer draws a secret, starts a timer and looks at the subject three times
for each message, and a plane publishes three for each job. Here the names of answers are counted, and a batch has one
time limit.

Promises: each message gets its own answer, or its own error; an answer that comes too late is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

_NOBODY = "503"


class Outgoing(NamedTuple):
    """One message for the server."""

    subject: str
    data: bytes
    headers: Mapping[str, str]


class NatsAcks:
    """The answers on one connection, and on the next when that is replaced."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._prefix = ""
        self._number = 0
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._turn = asyncio.Lock()

    async def publish(self, client: Client, going: Sequence[Outgoing], timeout_s: float) -> list[bytes | Exception]:
        """Publish all of them, and wait for the answers. Of each: what the server said, or what went wrong."""
        if client is not self._client:
            await self._listen(client)
        loop = asyncio.get_running_loop()
        sent: dict[str, asyncio.Future[bytes]] = {}
        try:
            for each in going:
                self._number += 1
                name = str(self._number)
                future = sent[name] = self._waiting[name] = loop.create_future()
                try:
                    await client.publish(each.subject, each.data, f"{self._prefix}.{name}", dict(each.headers))
                except (nats.errors.Error, OSError) as error:
                    future.set_exception(error)
            if sent:
                await asyncio.wait(sent.values(), timeout=timeout_s)
        finally:
            for name in sent:
                self._waiting.pop(name, None)
        return [_outcome(future) for future in sent.values()]

    async def _listen(self, client: Client) -> None:
        async with self._turn:
            if client is not self._client:
                self._prefix = client.new_inbox()
                await client.subscribe(f"{self._prefix}.*", cb=self._answered)
                self._client = client

    async def _answered(self, msg: Msg) -> None:
        future = self._waiting.pop(msg.subject.rpartition(".")[2], None)
        if future is None or future.done():
            return
        if (msg.headers or {}).get("Status") == _NOBODY:
            future.set_exception(nats.errors.NoRespondersError())
        else:
            future.set_result(msg.data)


def _outcome(future: asyncio.Future[bytes]) -> bytes | Exception:
    if not future.done():
        future.cancel()
        return nats.errors.TimeoutError()
    error = future.exception()
    if error is None:
        return future.result()
    if not isinstance(error, Exception):
        raise error
    return error
