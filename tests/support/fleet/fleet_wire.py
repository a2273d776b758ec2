"""The wire of a fleet: hears every message that is published, and can say any of them once more, as networks do.

A message that goes into the stream is also a plain NATS message, which any client may read. A copy is the same
document with the same headers under another id for the server, so that its memory of ids does not help.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from holdfast.plane.bus.envelope import ID_HEADER, rows_of, wire_of
from holdfast.plane.bus.nats.naming import NatsNames
from holdfast.plane.model.records import Message
from support.fleet.fleet import LIMIT_S, Fleet

_COPY = "Fleet-Copy"


@dataclass(frozen=True)
class Heard:
    """One message on the wire."""

    subject: str  # as the server knows it
    data: bytes
    headers: dict[str, str]


class Wire:
    """An ear, and a mouth, for the length of the block. Runs on a thread of its own."""

    def __init__(self, fleet: Fleet, *, copies: int = 0, delay_s: float = 0.0, seed: int = 0) -> None:
        """`copies`: how often each message is said again, each time after a while of up to `delay_s`."""
        self._url = fleet.servers.nats.url
        self._names = NatsNames(fleet.bus.partition("stream=")[2])
        self._copies = copies
        self._delay_s = delay_s
        self._chance = random.Random(seed)
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._live(),))
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: Client | None = None
        self._over: asyncio.Event | None = None
        self._number = 0
        self.heard: list[Heard] = []
        self.said: Counter[str] = Counter()  # copies, by the kind of message

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(LIMIT_S), "the listener did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(LIMIT_S)
        self._loop.close()

    def say(self, messages: Sequence[Message]) -> None:
        """Publish messages of the test's own, and return when the stream has them."""
        for row in rows_of(messages, 1):
            data, headers = wire_of(row)
            subject = self._names.subject(row["recipient"], row["subject"])
            said = self._say(Heard(subject, data, headers))
            asyncio.run_coroutine_threadsafe(said, self._loop).result(LIMIT_S)

    async def _live(self) -> None:
        self._over = asyncio.Event()
        self._client = await nats.connect(self._url)
        await self._client.subscribe(self._names.everything, cb=self._hear)
        await self._client.flush()
        self._ready.set()
        await self._over.wait()
        while self._tasks:  # what was to be said again is said before the end
            await asyncio.wait(self._tasks)
        await self._client.close()

    async def _hear(self, msg: Msg) -> None:
        headers = dict(msg.headers or {})
        if _COPY in headers:
            return
        heard = Heard(msg.subject, msg.data, headers)
        self.heard.append(heard)
        for _ in range(self._copies):
            task = self._loop.create_task(self._say_later(heard, self._chance.uniform(0.0, self._delay_s)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _say_later(self, heard: Heard, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._say(heard)
        kind = heard.subject.removeprefix(f"{self._names.stream}.").partition(".")[2]
        self.said[kind if kind.startswith("job.") else kind.partition(".")[0]] += 1

    async def _say(self, heard: Heard) -> None:
        assert self._client is not None
        self._number += 1
        headers = {**heard.headers, ID_HEADER: f"copy-{self._number}-{heard.headers[ID_HEADER]}", _COPY: "yes"}
        answer = await self._client.request(heard.subject, heard.data, timeout=LIMIT_S, headers=headers)
        assert b'"error"' not in answer.data, answer.data
