"""WebSockets behind the HTTP guard: checked when they connect, ended when a newer holder comes. In plain ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast.guards.http import FenceMiddleware, HttpStatistics, fence_of
from holdfast.guards.http.headers import request_headers
from holdfast.guards.records import SqliteRecord, ThreadedRecord

pytestmark = pytest.mark.asyncio

KEY = "invoice:42"


async def _talk(scope: Any, receive: Any, send: Any) -> None:
    """Accepts, and says every message back until the client is gone. Over HTTP: one answer."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": f"{fence_of(scope).fence} {message['text']}"})


class Client:
    """The other end of one connection."""

    def __init__(self, guard: FenceMiddleware, scope: dict[str, Any], headers: dict[str, str]) -> None:
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.outgoing: asyncio.Queue[Any] = asyncio.Queue()
        whole = {"path": "/talk", "headers": raw, **scope}
        self.task = asyncio.ensure_future(guard(whole, self.incoming.get, self.outgoing.put))

    async def heard(self) -> Any:
        return await asyncio.wait_for(self.outgoing.get(), 30)

    async def end(self) -> None:
        await asyncio.wait_for(self.task, 30)


def socket(guard: FenceMiddleware, headers: dict[str, str], extensions: Any = None) -> Client:
    client = Client(guard, {"type": "websocket", "extensions": extensions}, headers)
    client.incoming.put_nowait({"type": "websocket.connect"})
    return client


@pytest_asyncio.fixture
async def guard(tmp_path: Path) -> AsyncIterator[FenceMiddleware]:
    record = ThreadedRecord(SqliteRecord(tmp_path / "fences.db"))
    yield FenceMiddleware(_talk, record)
    await asyncio.to_thread(record.close)


async def test_a_websocket_is_checked_when_it_connects(guard: FenceMiddleware) -> None:
    client = socket(guard, request_headers(KEY, 7))
    assert (await client.heard())["type"] == "websocket.accept"
    client.incoming.put_nowait({"type": "websocket.receive", "text": "hello"})
    assert (await client.heard())["text"] == "7 hello"
    client.incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})
    await client.end()
    for headers in (request_headers(KEY, 6), {}, {"Holdfast-Key": KEY}):
        refused = socket(guard, headers)
        assert (await refused.heard())["type"] == "websocket.close"
        await refused.end()
        assert refused.outgoing.empty()
    assert guard.statistics() == HttpStatistics(accepted=1, refused=1, required=1, malformed=1)


async def test_a_refused_websocket_gets_the_whole_problem_where_the_server_can_send_it(guard: FenceMiddleware) -> None:
    await socket(guard, request_headers(KEY, 7)).heard()
    refused = socket(guard, request_headers(KEY, 6), {"websocket.http.response": {}})
    start, body = await refused.heard(), await refused.heard()
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 412)
    assert (b"holdfast-seen", b"7") in start["headers"]
    assert b"fenced-out" in body["body"]
    await refused.end()


@pytest.mark.parametrize("method", ["PUT", "GET"])
async def test_a_websocket_of_an_older_holder_is_ended_when_a_newer_one_comes(
    guard: FenceMiddleware, method: str
) -> None:
    older = socket(guard, request_headers(KEY, 7))
    assert (await older.heard())["type"] == "websocket.accept"
    newer = Client(guard, {"type": "http", "method": method}, request_headers(KEY, 8))
    assert (await newer.heard())["status"] == 204
    assert older.task.done()
    await newer.end()
    await older.end()
    assert guard.statistics().requests == 0


async def test_a_lifespan_passes_unchanged(tmp_path: Path) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["type"])
        await send({"type": "lifespan.startup.complete"})

    guard = FenceMiddleware(app, SqliteRecord(tmp_path / "fences.db"))
    client = Client(guard, {"type": "lifespan"}, {})
    client.incoming.put_nowait({"type": "lifespan.startup"})
    assert (await client.heard())["type"] == "lifespan.startup.complete"
    await client.end()
    assert seen == ["lifespan.startup"]
