"""A small document service behind the HTTP guard, run by uvicorn in a process of its own, and its clients for the kit.

The documents are plain files that know nothing of fences: whatever keeps stale writers out is the middleware. `/looks`
is a side door without a guard, which waits until no handler is inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import requests
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from holdfast.errors import FencedOut
from holdfast.guards import CarriedFence, Fenced
from holdfast.guards.http import FenceMiddleware, fence_of, problem_of
from holdfast.guards.httpx import AsyncFencedTransport, FencedTransport
from holdfast.guards.records import SqliteRecord
from holdfast.guards.requests import fenced_session
from holdfast.guards.sqlite import GuardedTable

TESTS = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
ROW_ID = 42


def document_app(folder: Path) -> FenceMiddleware:
    """`/documents/NAME`, guarded by the lock of that name."""
    record = SqliteRecord(folder / "fences.db")

    def file_of(request: Request) -> Path:
        return folder / quote(request.path_params["name"], safe="")

    async def document(request: Request) -> Response:
        path = file_of(request)
        if request.method == "PUT":
            await asyncio.to_thread(_replace, path, await request.body())
            return Response(status_code=204)
        if request.method == "DELETE":
            await asyncio.to_thread(path.unlink)
            return Response(status_code=204)
        found = await asyncio.to_thread(_read, path)
        return Response(status_code=404) if found is None else PlainTextResponse(found)

    async def look(request: Request) -> Response:
        name = request.path_params["name"]
        # A killed client's last request may still be on its way through; what is asked for is what it leaves behind.
        while name in guarded._lanes._lanes:  # noqa: ASYNC110 - a guard has no event for this, and needs none
            await asyncio.sleep(0.001)
        found = await asyncio.to_thread(_read, file_of(request))
        fence = await guarded._record.seen("http", name)
        return JSONResponse({"value": None if found is None else found.decode(), "fence": fence})

    async def statistics(request: Request) -> Response:
        counts = guarded.statistics()
        return JSONResponse({name: getattr(counts, name) for name in type(counts).__dataclass_fields__})

    routes = [
        Route("/documents/{name:path}", document, methods=["GET", "PUT", "DELETE"]),
        Route("/looks/{name:path}", look),
        Route("/statistics", statistics),
    ]
    guarded = FenceMiddleware(Starlette(routes=routes), record, required=_is_document, key=_lock_of)
    return guarded


def row_app(folder: Path, *, pauses: bool) -> FenceMiddleware:
    """`/row`, in a SQLite table that several processes share; `?unguarded` writes past the table's guard.

    One that `pauses` stands still, after a request was admitted, between two named pipes: it writes to `inside` and
    reads from `go`.
    """

    async def row(request: Request) -> Response:
        total = int((await request.body()).decode())
        if pauses:
            await asyncio.to_thread((folder / "inside").write_bytes, b"1")
            await asyncio.to_thread((folder / "go").read_bytes)
        await asyncio.to_thread(_write_row, folder, fence_of(request), total, "unguarded" in request.query_params)
        return Response(status_code=204)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, FencedOut)
        status, headers, body = problem_of(error, request)
        return Response(body, status, headers)

    app = Starlette(routes=[Route("/row", row, methods=["PUT"])], exception_handlers={FencedOut: refused})
    return FenceMiddleware(app, SqliteRecord(folder / "fences.db"))


def _write_row(folder: Path, fence: CarriedFence, total: int, unguarded: bool) -> None:
    with contextlib.closing(sqlite3.connect(folder / "rows.db", timeout=30, isolation_level=None)) as connection:
        if unguarded:
            connection.execute("UPDATE invoices SET total = ? WHERE id = ?", (total, ROW_ID))
        else:
            GuardedTable(connection, "invoices").update(fence, ROW_ID, {"total": total})


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.{os.urandom(4).hex()}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _is_document(scope: Any) -> bool:
    return bool(scope["path"].startswith("/documents/"))


def _lock_of(scope: Any) -> str | None:
    path: str = scope["path"]
    return path.removeprefix("/documents/") if path.startswith("/documents/") else None


class HttpSubject:
    """A document through httpx."""

    def __init__(self, url: str, resource: str) -> None:
        self._url, self._name = url, quote(resource, safe="")
        self._transport = httpx.HTTPTransport(verify=False)

    def enter(self, lease: Fenced) -> str | None:
        answer = self._send(lease, "GET")
        return None if answer.status_code == 404 else answer.raise_for_status().content.decode()

    def write(self, lease: Fenced, value: str) -> None:
        self._send(lease, "PUT", value).raise_for_status()

    def overwrite(self, lease: Fenced, value: str) -> None:
        self.write(lease, value)

    def delete(self, lease: Fenced) -> None:
        self._send(lease, "DELETE").raise_for_status()

    def look(self) -> tuple[str | None, int | None]:
        client = httpx.Client(transport=self._transport, timeout=LIMIT_S)
        return looked(client.get(f"{self._url}/looks/{self._name}").raise_for_status().content)

    def close(self) -> None:
        self._transport.close()

    def _send(self, lease: Fenced, method: str, value: str | None = None) -> httpx.Response:
        client = httpx.Client(transport=FencedTransport(lease, self._transport), timeout=LIMIT_S)
        content = None if value is None else value.encode()
        return client.request(method, f"{self._url}/documents/{self._name}", content=content)


class AsyncHttpSubject:
    """A document through httpx, awaited."""

    def __init__(self, url: str, resource: str) -> None:
        self._url, self._name = url, quote(resource, safe="")
        self._transport = httpx.AsyncHTTPTransport(verify=False)

    async def enter(self, lease: Fenced) -> str | None:
        answer = await self._send(lease, "GET")
        return None if answer.status_code == 404 else answer.raise_for_status().content.decode()

    async def write(self, lease: Fenced, value: str) -> None:
        (await self._send(lease, "PUT", value)).raise_for_status()

    async def overwrite(self, lease: Fenced, value: str) -> None:
        await self.write(lease, value)

    async def delete(self, lease: Fenced) -> None:
        (await self._send(lease, "DELETE")).raise_for_status()

    async def look(self) -> tuple[str | None, int | None]:
        client = httpx.AsyncClient(transport=self._transport, timeout=LIMIT_S)
        answer = await client.get(f"{self._url}/looks/{self._name}")
        return looked(answer.raise_for_status().content)

    async def close(self) -> None:
        await self._transport.aclose()

    async def _send(self, lease: Fenced, method: str, value: str | None = None) -> httpx.Response:
        client = httpx.AsyncClient(transport=AsyncFencedTransport(lease, self._transport), timeout=LIMIT_S)
        content = None if value is None else value.encode()
        return await client.request(method, f"{self._url}/documents/{self._name}", content=content)


class RequestsSubject:
    """A document through requests."""

    def __init__(self, url: str, resource: str) -> None:
        self._url, self._name = url, quote(resource, safe="")

    def enter(self, lease: Fenced) -> str | None:
        answer = self._send(lease, "GET")
        return None if answer is None else answer.decode()

    def write(self, lease: Fenced, value: str) -> None:
        self._send(lease, "PUT", value)

    def overwrite(self, lease: Fenced, value: str) -> None:
        self.write(lease, value)

    def delete(self, lease: Fenced) -> None:
        self._send(lease, "DELETE")

    def look(self) -> tuple[str | None, int | None]:
        with requests.get(f"{self._url}/looks/{self._name}", timeout=LIMIT_S) as answer:
            answer.raise_for_status()
            return looked(answer.content)

    def close(self) -> None:
        pass

    def _send(self, lease: Fenced, method: str, value: str | None = None) -> bytes | None:
        data = None if value is None else value.encode()
        with fenced_session(lease) as session:
            answer = session.request(method, f"{self._url}/documents/{self._name}", data=data, timeout=LIMIT_S)
            if answer.status_code == 404:
                return None
            answer.raise_for_status()
            return answer.content


def looked(body: bytes) -> tuple[str | None, int | None]:
    found = json.loads(body)
    return found["value"], found["fence"]


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """Run one of the applications in another process, and say where it listens."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])}
    command = [sys.executable, "-W", "error", str(Path(__file__)), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
        port = process.stdout.readline().decode().strip() if ready else ""
        assert port, "the server did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def main(kind: str, folder: str) -> None:
    """Serve until told to stop. The socket listens before its port is said, so no client has to try twice."""
    app = document_app(Path(folder)) if kind == "documents" else row_app(Path(folder), pauses=kind == "pausing rows")
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
