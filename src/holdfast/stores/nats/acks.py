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

_NO_RESPONDERS = "503"


class Outgoing(NamedTuple):
    """One message for the server."""

    subject: str
    data: bytes
    headers: Mapping[str, str]


class _Batch:
    """Messages that were published together, and what the server said about each so far."""

    __slots__ = ("_left", "answers", "over")

    def __init__(self, size: int, over: asyncio.Future[None]) -> None:
        self.answers: list[bytes | Exception | None] = [None] * size
        self.over = over  # all are answered, or it took too long
        self._left = size

    def answered(self, at: int, answer: bytes | Exception) -> None:
        if self.answers[at] is None:
            self.answers[at] = answer
            self._left -= 1
            if not self._left:
                self.end()

    def end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class NatsAcks:
    """The answers on one connection, and on the next when that is replaced."""

    def __init__(self) -> None:
        self.answered = 0  # how many answers have come
        self._client: Client | None = None
        self._prefix = ""
        self._number = 0
        self._waiting: dict[str, tuple[_Batch, int, str]] = {}
        self._turn = asyncio.Lock()

    async def publish(self, client: Client, going: Sequence[Outgoing], timeout_s: float) -> list[bytes | Exception]:
        """Publish all of them, and wait for the answers. Of each: what the server said, or what went wrong."""
        if not going:
            return []
        if client is not self._client:
            await self._listen(client)
        loop = asyncio.get_running_loop()
        batch = _Batch(len(going), loop.create_future())
        names: list[str] = []
        timer: asyncio.TimerHandle | None = None
        try:
            for at, each in enumerate(going):
                self._number += 1
                name = str(self._number)
                names.append(name)
                self._waiting[name] = batch, at, each.subject
                try:
                    # nats-py before 2.15 may send it, and then the server closes the connection.
                    if each.subject.split() != [each.subject]:
                        raise nats.errors.BadSubjectError
                    await client.publish(each.subject, each.data, f"{self._prefix}.{name}", dict(each.headers))
                except (nats.errors.Error, OSError) as error:
                    batch.answered(at, error)
            timer = loop.call_later(timeout_s, batch.end)
            await batch.over
        finally:
            if timer is not None:
                timer.cancel()
            for name in names:
                self._waiting.pop(name, None)
        return [nats.errors.TimeoutError() if each is None else each for each in batch.answers]

    async def _listen(self, client: Client) -> None:
        async with self._turn:
            if client is not self._client:
                self._prefix = client.new_inbox()
                await client.subscribe(f"{self._prefix}.*", cb=self._answered)
                self._client = client

    def spelled(self, subject: str) -> str:
        """A subject as it was published to. The client reports errors of the server in lower case."""
        waiting = (went_to for _, _, went_to in self._waiting.values())
        return next((each for each in waiting if each.lower() == subject.lower()), subject)

    def fail(self, error: Exception, subject: str | None = None) -> None:
        """Answer all that wait with an error, or those that were published to one subject."""
        for name, (batch, at, went_to) in list(self._waiting.items()):
            if subject is None or subject == went_to:
                self._waiting.pop(name, None)
                batch.answered(at, error)

    async def _answered(self, msg: Msg) -> None:
        self.answered += 1
        batch, at, _ = self._waiting.pop(msg.subject.rpartition(".")[2], (None, 0, ""))
        if batch is None:
            return
        missing = (msg.headers or {}).get("Status") == _NO_RESPONDERS
        batch.answered(at, nats.errors.NoRespondersError() if missing else msg.data)
