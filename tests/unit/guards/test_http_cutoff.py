"""A request that a newer holder overtakes while it is still arriving is refused, whatever its handler says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.guards.http import FenceMiddleware
from holdfast.guards.records import SqliteRecord, ThreadedRecord

Message = MutableMapping[str, Any]


class Request:
    """One request, spoken in plain ASGI, so that a test decides when each piece arrives."""

    def __init__(self, method: str, fence: int) -> None:
        headers = [(b"holdfast-key", b"document:42"), (b"holdfast-fence", str(fence).encode())]
        self.scope = {"type": "http", "method": method, "path": "/documents/42", "headers": headers}
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()
        self.answers: list[Message] = []

    def arrive(self, body: bytes, *, more: bool) -> None:
        self.incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})

    async def send(self, message: Message) -> None:
        self.answers.append(message)

    async def served_by(self, app: FenceMiddleware) -> tuple[int, dict[str, str]]:
        await app(self.scope, self.incoming.get, self.send)
        start = self.answers[0]
        return start["status"], {name.decode().lower(): value.decode() for name, value in start["headers"]}


class Handler:
    """Reads the whole request and stores it; one that hears that its client is gone raises, as frameworks do."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.reading = asyncio.Event()
        self.stored_one = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        body, more = b"", scope["method"] == "PUT"
        while more:
            self.reading.set()
            message = await receive()
            if message["type"] == "http.disconnect":
                await send({"type": "http.response.start", "status": 500, "headers": []})
                await send({"type": "http.response.body", "body": b"cut off"})
                raise ConnectionError("the client is gone")
            body, more = body + message["body"], message["more_body"]
        if scope["method"] == "PUT":
            self.stored.append(body)
            self.stored_one.set()
            await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def record(tmp_path: Path) -> Iterator[ThreadedRecord]:
    opened = ThreadedRecord(SqliteRecord(tmp_path / "fences.db"))
    yield opened
    opened.close()


@pytest.mark.asyncio
@pytest.mark.requires("R47", "R65")
async def test_a_request_that_is_overtaken_before_it_has_arrived_is_refused_and_stores_nothing(
    record: ThreadedRecord,
) -> None:
    handler = Handler()
    app = FenceMiddleware(handler, record)
    slow, newer = Request("PUT", 1), Request("GET", 2)
    slow.arrive(b"half of", more=True)
    served = asyncio.create_task(slow.served_by(app))
    await handler.reading.wait()
    assert (await newer.served_by(app))[0] == 200
    status, headers = await served
    assert (status, headers["holdfast-seen"]) == (412, "2")
    assert handler.stored == []
    assert app.statistics().refused == 1


@pytest.mark.asyncio
async def test_a_handler_that_has_its_whole_request_gives_its_own_answer(record: ThreadedRecord) -> None:
    handler = Handler()
    app = FenceMiddleware(handler, record)
    early, newer = Request("PUT", 1), Request("GET", 2)
    early.arrive(b"all of it", more=False)
    served = asyncio.create_task(early.served_by(app))
    await handler.stored_one.wait()
    second = asyncio.create_task(newer.served_by(app))
    while await record.seen("http", "document:42") != 2:
        pass
    handler.go_on.set()
    assert (await served)[0] == 200
    assert (await second)[0] == 200
    assert handler.stored == [b"all of it"]
    assert app.statistics().refused == 0
