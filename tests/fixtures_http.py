"""A real web server on a loopback port that writes down what reaches it, and every client library under a lease."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
import uvicorn

from holdfast.guards.http import FenceMiddleware
from holdfast.guards.http.client import ClientStatistics
from holdfast.guards.httpx import AsyncFencedTransport, FencedTransport
from holdfast.guards.records import SqliteRecord
from holdfast.guards.requests import FencedAdapter, fenced_session


@dataclass
class Server:
    """A server that does as it is told, and what reached it."""

    url: str = ""
    reached: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    act: Callable[[str], tuple[int, Mapping[str, str]]] = lambda path: (200, {})

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.reached.append((scope["method"], scope["path"], headers))
        status, extra = self.act(scope["path"])
        raw = [(name.encode(), value.encode()) for name, value in {"content-length": "0", **extra}.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": b""})


@contextmanager
def listening(app: Any) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app, interface="asgi3", log_level="critical", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def bare_server() -> Iterator[Server]:
    """Without a guard."""
    server = Server()
    with listening(server.app) as server.url:
        yield server


@pytest.fixture
def guarded_server(tmp_path: Path) -> Iterator[Server]:
    """Behind the guard."""
    server = Server()
    guard = FenceMiddleware(server.app, SqliteRecord(tmp_path / "fences.db"), required=False)
    with listening(guard) as server.url:
        yield server
    guard._record.close()  # type: ignore[attr-defined]  # made by the guard for the blocking record


class Sender(Protocol):
    """One of the client libraries under a lease."""

    def __call__(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]: ...

    def statistics(self) -> ClientStatistics: ...


class ByHttpx:
    def __init__(self, lease: Any, **settings: Any) -> None:
        self.transport = FencedTransport(lease, httpx.HTTPTransport(verify=False), **settings)
        self.client = httpx.Client(transport=self.transport, follow_redirects=True, timeout=30)
        self.statistics = self.transport.statistics
        self.close = self.client.close

    def __call__(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        answer = self.client.request(method, url, headers=headers)
        return answer.status_code, str(answer.url)


class ByAsyncHttpx:
    def __init__(self, lease: Any, **settings: Any) -> None:
        self.transport = AsyncFencedTransport(lease, httpx.AsyncHTTPTransport(verify=False), **settings)
        self.statistics = self.transport.statistics
        self.runner = asyncio.Runner()
        self.client = httpx.AsyncClient(transport=self.transport, follow_redirects=True, timeout=30)

    def __call__(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        answer = self.runner.run(self.client.request(method, url, headers=headers))
        return answer.status_code, str(answer.url)

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.close()


class ByRequests:
    def __init__(self, lease: Any, **settings: Any) -> None:
        self.session = fenced_session(lease, **settings)
        self.session.trust_env = False
        adapter = self.session.get_adapter("http://")
        assert isinstance(adapter, FencedAdapter)
        self.statistics = adapter.statistics
        self.close = self.session.close

    def __call__(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        answer = self.session.request(method, url, headers=headers, timeout=30)
        return answer.status_code, answer.url


MakeSender = Callable[..., Sender]


@pytest.fixture(params=[ByHttpx, ByAsyncHttpx, ByRequests], ids=["httpx", "async httpx", "requests"])
def fenced(request: pytest.FixtureRequest) -> Iterator[MakeSender]:
    """Makes senders of one library, and closes them."""
    with ExitStack() as stack:

        def make(lease: Any, **settings: Any) -> Sender:
            sender: Any = request.param(lease, **settings)
            stack.callback(sender.close)
            made: Sender = sender
            return made

        yield make
