"""Callers who take forever, and callers without end: the server continues serving the others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.cli.server import connection_limit, http_server
from holdfast.cli.server.connection_limit import CONNECTIONS_MAX
from holdfast.cli.server.request_timeout import TimedProtocol
from holdfast.web.middleware.auth import Access
from support.harness.web import stage_at

pytestmark = [pytest.mark.asyncio, pytest.mark.threat("X15")]

HEAD = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
BODY = (
    b"POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
)


@asynccontextmanager
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **limits: float) -> AsyncIterator[int]:
    most = limits.pop("most", CONNECTIONS_MAX)
    for name, value in limits.items():
        monkeypatch.setattr(TimedProtocol, name, value)
    monkeypatch.setattr(http_server, "connections_max", lambda: most)
    ours = socket.create_server(("127.0.0.1", 0))
    async with stage_at(tmp_path, Access.bound_to("127.0.0.1")) as stage:
        http = http_server.HttpServer(stage.app, ours)
        await http.start()
        try:
            yield ours.getsockname()[1]
        finally:
            await http.stop(5)


async def answered(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(HEAD + b"connection: close\r\n\r\n")
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("begin", [b"", HEAD, BODY, HEAD + b"\r\n" + HEAD], ids=["silent", "head", "body", "second"])
async def test_a_request_that_never_ends_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    async with server(tmp_path, monkeypatch, limit_s=0.3) as port, asyncio.timeout(60):
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in slow:
            writer.write(begin)
        trickle = [asyncio.ensure_future(_trickle(writer)) for _, writer in slow]
        assert (await answered(port)).startswith(b"HTTP/1.1 200 ")
        for reader, _ in slow:
            with contextlib.suppress(ConnectionError):  # an end too
                while await reader.read(65_536):  # what was answered before
                    pass
        for each in trickle:
            each.cancel()
        await asyncio.gather(*trickle, return_exceptions=True)
        for _, writer in slow:
            writer.close()


async def test_a_caller_who_hangs_up_in_the_middle_of_its_body_is_no_failure_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is one whose time has ended; else any client could fill the log with errors and tracebacks."""
    async with server(tmp_path, monkeypatch, limit_s=0.3) as port, asyncio.timeout(60):
        there = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        for _, writer in there:
            writer.write(BODY)
        assert (await answered(port)).startswith(b"HTTP/1.1 200 ")  # so the others have been begun
        for _, writer in there[:3]:
            writer.transport.abort()
        for reader, writer in there[3:]:
            with contextlib.suppress(ConnectionError):  # an end too
                await reader.read()
            writer.close()
    assert [each.getMessage() for each in caplog.records if each.levelname in {"WARNING", "ERROR"}] == []


async def _trickle(writer: asyncio.StreamWriter) -> None:
    """A byte now and then, so that it is never silent for long."""
    while not writer.is_closing():
        writer.write(b"x")
        await asyncio.sleep(0.02)


async def test_callers_without_end_are_turned_away_and_the_rest_is_served_when_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(tmp_path, monkeypatch, most=10) as port, asyncio.timeout(60):
        there = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        ends = {asyncio.ensure_future(reader.read(1)): writer for reader, writer in there}
        over: set[asyncio.Future[bytes]] = set()
        while len(over) < 20:
            over, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
        assert len(over) == 20
        for each, writer in ends.items():
            each.cancel()
            writer.close()
        while not (await answered(port)).startswith(b"HTTP/1.1 200 "):
            pass  # it has to hear that they are gone


async def test_an_answer_may_take_longer_than_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server(tmp_path, monkeypatch, limit_s=0.1) as port, asyncio.timeout(60):
        found = await asyncio.gather(*(answered(port) for _ in range(20)))
        assert all(each.startswith(b"HTTP/1.1 200 ") for each in found)


@pytest.mark.parametrize(("files", "most"), [(64, 32), (10, 8), (1024, 512), (1_000_000, CONNECTIONS_MAX)])
async def test_callers_get_half_of_the_files_and_never_all(
    monkeypatch: pytest.MonkeyPatch, files: int, most: int
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    assert connection_limit.connections_max() == most
    assert most + connection_limit.RESERVED + 2 * connection_limit.accept_batch() < max(files, 19)
