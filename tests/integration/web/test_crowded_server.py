"""A server with more connections than it has room for: health probes and callers with a token are still served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.server import http_server
from holdfast.cli.server.request_timeout import TimedProtocol
from support.cli.planes import Up
from support.cli.sessions import Running, Shell
from support.harness.web import TOKENS, stage_at

pytestmark = pytest.mark.threat("X15")

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
FILES = 256  # that the process may open; connections get half of them


class SmallShell(Shell):
    """Starts processes that may open few files."""

    def start_plane(self, *words: str) -> Running:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", sys.executable, "-m", "holdfast", *words],
            cwd=self.directory,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._children.append(process)
        return process


@pytest.fixture
def small_plane(tmp_path: Path) -> Iterator[Up]:
    settings = 'database = "sqlite:///plane.db?synchronous=normal"\n[api]\nport = 0\n'
    (tmp_path / "holdfast.toml").write_text(settings)
    shell = SmallShell(tmp_path)
    try:
        yield Up(shell)
    finally:
        shell.close()


def reply(port: int, request: bytes) -> bytes:
    """The first bytes of an answer; empty if the connection was closed without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as asking, contextlib.suppress(ConnectionError):
        asking.sendall(request)
        return asking.recv(65_536)
    return b""


def test_idle_connections_beyond_the_limit_of_files_stop_neither_probes_nor_callers(small_plane: Up) -> None:
    port = int(small_plane.address.rpartition(":")[2])
    with ExitStack() as crowd, socket.create_connection(("127.0.0.1", port), timeout=60) as caller:
        caller.sendall(HEALTH.replace(b"/healthz", b"/api/v1/jobs"))
        assert caller.recv(65_536).startswith(b"HTTP/1.1 200 ")
        for number in range(2 * FILES):
            idle = crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            if number % 2:
                idle.sendall(b"GET /healthz HTTP/1.1\r\nhost: local")  # and never the rest
        answers = [reply(port, HEALTH)[:13] for _ in range(10)]
        assert answers == [b"HTTP/1.1 200 "] * 10
        assert reply(port, HEALTH.replace(b"/healthz", b"/api/v1/jobs")).startswith(b"HTTP/1.1 200 ")
    assert "out of system resource" not in small_plane.end().err


@asynccontextmanager
async def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, **limits: float
) -> AsyncIterator[tuple[int, Any]]:
    """A server with tokens. Gives its port and the state of uvicorn."""
    for name, value in limits.items():
        monkeypatch.setattr(TimedProtocol, name, value, raising=False)
    monkeypatch.setattr(http_server, "connections_max", lambda: most)
    ours = socket.create_server(("127.0.0.1", 0))
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that unsent bytes stay in the process
    async with stage_at(tmp_path) as stage:
        http = http_server.HttpServer(stage.app, ours)
        await http.start()
        try:
            yield ours.getsockname()[1], http._server.server_state
        finally:
            await http.stop(5)


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110 - uvicorn's counters have no notification
        await asyncio.sleep(0.01)


def acquire(owner: str) -> bytes:
    body = json.dumps({"resource": "db", "owner": owner, "ttl": 60, "timeout": 30}).encode()
    head = "POST /api/v1/resource-locks/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"authorization: Bearer {TOKENS['operator']}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def answer(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read(65_536)
    finally:
        writer.close()


@pytest.mark.asyncio
async def test_requests_with_a_token_are_never_cut_off_and_the_reserve_answers_probes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(tmp_path, monkeypatch, 3) as (port, state), asyncio.timeout(60):
        assert (await answer(port, acquire("first"))).startswith(b"HTTP/1.1 20")
        waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for number, (_, writer) in enumerate(waiting):
            writer.write(acquire(f"waiter-{number}"))
        await until(lambda: len(state.tasks) == 3)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        for _ in range(3):
            assert (await answer(port, HEALTH)).startswith(b"HTTP/1.1 200 ")
        jobs = HEALTH.replace(b"/healthz", b"/api/v1/jobs")[:-2]
        full = await answer(port, jobs + f"authorization: Bearer {TOKENS['viewer']}\r\n\r\n".encode())
        assert full.startswith(b"HTTP/1.1 503 ")
        assert b'"too-many-connections"' in full
        assert len(state.tasks) == 3
        assert not any(reader.at_eof() for reader, _ in waiting)
        for _, writer in (*idle, *waiting):
            writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_a_caller_that_does_not_read_its_answer_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connection: str
) -> None:
    async with server(tmp_path, monkeypatch, 100, write_limit_s=0.5) as (port, state), asyncio.timeout(60):
        asking = socket.socket()
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asking.setblocking(False)
        with contextlib.closing(asking):
            await asyncio.get_running_loop().sock_connect(asking, ("127.0.0.1", port))
            asking.send(f"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: {connection}\r\n\r\n".encode())
            await until(lambda: state.total_requests > 0)
            await until(lambda: not state.connections)


@pytest.mark.asyncio
async def test_a_caller_that_reads_slowly_gets_its_whole_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(tmp_path, monkeypatch, 100, write_limit_s=0.5) as (port, _), asyncio.timeout(60):
        one = await answer_whole(port, 0.0)
        assert await answer_whole(port, 0.02) == one


async def answer_whole(port: int, pause: float) -> int:
    """Ask for much, and read it piece by piece. Returns how many bytes came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
    request = HEALTH.replace(b"/healthz", b"/openapi.json")
    writer.write(request * 9 + request[:-2] + b"connection: close\r\n\r\n")
    got = 0
    while part := await reader.read(65_536):
        got += len(part)
        await asyncio.sleep(pause)
    writer.close()
    return got
