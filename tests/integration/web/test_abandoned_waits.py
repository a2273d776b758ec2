"""A client that disconnects while it waits for a resource gets nothing and blocks no reader. Real sockets, on `up`."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.cli.server.http_server import HttpServer
from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.resources.client_wait import ClientWait, WaitEnd
from holdfast.plane.service.service import Service
from holdfast.web.app import create_app
from holdfast.web.middleware.auth import Access
from support.harness.web import service_at

pytestmark = [pytest.mark.asyncio, pytest.mark.threat("X15")]


@dataclass
class Serving:
    """A plane behind the server that `holdfast up` uses."""

    service: Service
    process_health: ProcessHealth
    port: int

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}/api/v1", trust_env=False, timeout=60)

    async def asks(self, **how: Any) -> asyncio.StreamWriter:
        """A client that requests the resource and can disconnect."""
        body = json.dumps({"resource": "db", "owner": "ghost", "ttl": 3600, "timeout": 30, **how}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = "POST /api/v1/resource-locks/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return writer

    async def until(self, count: int, table: str = "plane_resource_wish") -> None:
        """Wait until there are so many rows in a table."""
        async with asyncio.timeout(30):
            while await self._count(table) != count:  # noqa: ASYNC110 - what is looked at is in the database
                await asyncio.sleep(0.005)

    async def _count(self, table: str) -> int:
        read = self.service.parts.database.read
        return int((await read(lambda tx: tx.query(f"SELECT COUNT(*) AS n FROM {table}")))[0]["n"])

    @property
    def listeners(self) -> int:
        return self.service.parts.database.statistics()["bells"]

    async def owners(self) -> list[str]:
        return [each.owner for each in await self.service.resources.holders("default", "db")]


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Serving]:
    ours = socket.create_server(("127.0.0.1", 0))
    async with service_at(folder) as service:
        process_health = ProcessHealth(service)
        http = HttpServer(create_app(service, Access.bound_to("127.0.0.1"), process_health=process_health), ours)
        await http.start()
        try:
            yield Serving(service, process_health, ours.getsockname()[1])
        finally:
            await http.stop(5)


async def test_who_hangs_up_while_it_waits_does_not_get_the_resource(tmp_path: Path) -> None:
    async with serving(tmp_path) as plane:
        held = await plane.service.resources.acquire("default", "db", owner="first", ttl=3600)
        ghost = await plane.asks()
        await plane.until(1)
        ghost.close()
        await plane.until(0)  # a wish of the dead would keep readers out
        await plane.service.resources.release("default", "db", held.token)
        async with plane.client() as client:
            asked = {"resource": "db", "owner": "next", "mode": "shared", "timeout": 30}
            granted = await client.post("/resource-locks/acquire", json=asked)
        assert granted.json()["owner"] == "next"
        assert await plane.owners() == ["next"]


async def test_of_a_crowd_that_hung_up_nobody_ever_holds_it_and_the_one_who_stayed_does(tmp_path: Path) -> None:
    async with serving(tmp_path) as plane:
        held = await plane.service.resources.acquire("default", "db", owner="first", ttl=3600)
        ghosts = [await plane.asks(owner=f"ghost {number}") for number in range(60)]
        await plane.until(60)
        async with plane.client() as client:
            asked = {"resource": "db", "owner": "patient", "timeout": 30}
            waiting = asyncio.create_task(client.post("/resource-locks/acquire", json=asked))
            await plane.until(61)
            for each in ghosts:
                each.close()
            await plane.until(1)
            await plane.service.resources.release("default", "db", held.token)
            granted = (await waiting).json()
        # A holder in between would have a fence of its own.
        assert granted["owner"] == "patient"
        assert await plane.owners() == ["patient"]


async def test_a_grant_to_somebody_who_has_just_hung_up_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, end = asyncio.Event(), ClientWait.end

    def noted(client: ClientWait, how: WaitEnd) -> None:
        end(client, how)
        heard.set()

    monkeypatch.setattr(ClientWait, "end", noted)
    async with serving(tmp_path) as plane:
        # The ask has to wait for another process at the file, and its caller does not wait for that.
        with closing(sqlite3.connect(tmp_path / "plane.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            ghost = await plane.asks()
            async with asyncio.timeout(30):
                while not plane.listeners:  # noqa: ASYNC110 - it has one when it begins to ask
                    await asyncio.sleep(0.005)
            ghost.close()
            async with asyncio.timeout(30):
                await heard.wait()
            other.execute("ROLLBACK")
        async with asyncio.timeout(30):
            granted = await plane.service.resources.acquire("default", "db", owner="next", timeout=30)
        assert await plane.owners() == ["next"]
        assert granted.holder.remaining_ns


async def test_who_waits_when_the_process_begins_to_end_is_told_at_once_and_the_api_answers_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as plane, plane.client() as client:
        await plane.service.resources.acquire("default", "db", owner="first", ttl=3600)
        asked = {"resource": "db", "owner": "second", "timeout": 30}
        waiting = asyncio.create_task(client.post("/resource-locks/acquire", json=asked))
        await plane.until(1)
        plane.process_health.drain()
        async with asyncio.timeout(10):
            answer = await waiting
        assert (answer.status_code, answer.json()["code"]) == (503, "closing")
        assert answer.headers["retry-after"] == "1"
        assert (await client.get("/jobs")).json()["code"] == "closing"
        assert (await client.get(f"http://127.0.0.1:{plane.port}/healthz")).status_code == 200
        # A writer that retries at another process, as told, still precedes new readers.
        await plane.until(1)
