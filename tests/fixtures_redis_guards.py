"""Guarded Redis keys in both colours, through clients that decode and that do not, in both protocols, on real servers.

A test is written once, as `async def`, with a `stage`: its `keys` have the names of `GuardedKeys`, always awaited,
whichever colour is behind them. `redis_cluster` is a server in cluster mode that has all hash slots.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import pytest_asyncio
import redis
from redis import asyncio as redis_asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.guards import redis as blocking
from holdfast.guards.aio import redis as awaited
from servers import START_LIMIT_S, RedisExecutable, RedisServer, free_port

SLOTS = 16_384


class Manner(NamedTuple):
    """How a guard reaches the server."""

    colour: Literal["blocking", "asyncio"]
    decodes: bool
    protocol: int

    def __str__(self) -> str:
        return f"{self.colour}-{'text' if self.decodes else 'bytes'}-resp{self.protocol}"

    def client(self, port: int, **options: Any) -> Any:
        """A client of this manner, which does not try twice: a test that waits for something does so itself."""
        options.setdefault("retry", Retry(NoBackoff(), 0))
        if self.colour == "asyncio":
            if isinstance(options["retry"], Retry):
                options["retry"] = redis_asyncio.retry.Retry(NoBackoff(), options["retry"].get_retries())
            kind: Any = redis_asyncio.Redis
        else:
            kind = redis.Redis
        return kind(host="127.0.0.1", port=port, decode_responses=self.decodes, protocol=self.protocol, **options)


# Each two of colour, decoding and protocol meet at least once.
MANNERS = [
    Manner("blocking", False, 2),
    Manner("blocking", True, 3),
    Manner("asyncio", False, 3),
    Manner("asyncio", True, 2),
]


async def settled(answer: Any) -> Any:
    """The answer of a call in either colour."""
    return await answer if isawaitable(answer) else answer


class Awaited:
    """An object of either colour whose methods are awaited."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found) or name == "statistics":
            return found

        async def call(*args: Any, **options: Any) -> Any:
            return await settled(found(*args, **options))

        return call

    @asynccontextmanager
    async def section(self, *args: Any) -> AsyncIterator[Awaited]:
        """The section of a guard."""
        opened = self.inner.section(*args)
        if hasattr(opened, "__aenter__") and not isinstance(self.inner, blocking.GuardedKeys):
            async with opened as entry:
                yield Awaited(entry)
        else:
            with opened as entry:
                yield Awaited(entry)


@dataclass
class Stage:
    """One server, one manner of reaching it, and a name space of the test's own."""

    manner: Manner
    port: int
    raw: Any  # sees everything as bytes
    space: str = field(default_factory=lambda: uuid.uuid4().hex[:10] + ":")
    opened: list[Any] = field(default_factory=list)

    def client(self, port: int | None = None, **options: Any) -> Any:
        """Another client of the same manner, closed with the stage."""
        client = self.manner.client(port or self.port, **options)
        self.opened.append(client)
        return client

    def guard(self, client: Any = None, **settings: Any) -> Any:
        """Guarded keys, awaited."""
        return Awaited(self.kind(client or self.client(), **settings))

    @property
    def kind(self) -> Any:
        """The class of the guard."""
        return awaited.GuardedKeys if self.manner.colour == "asyncio" else blocking.GuardedKeys

    def name(self, text: str) -> str:
        """A key that only this test has."""
        return self.space + text

    def returned(self, value: str) -> str | bytes:
        """A value as this client returns it."""
        return value if self.manner.decodes else value.encode()

    def content(self) -> dict[bytes, Any]:
        """Everything that this test has in the server, times to live included: what a refusal must leave alone."""
        found = sorted(self.raw.scan_iter(f"*{self.space}*"))
        return {name: (self.raw.dump(name), self.raw.ttl(name) >= 0) for name in found}

    async def close(self) -> None:
        """Close what was opened."""
        for client in self.opened:
            await settled(client.aclose() if hasattr(client, "aclose") else client.close())


@pytest.fixture(params=MANNERS, ids=str)
def manner(request: pytest.FixtureRequest) -> Manner:
    """Each manner in turn."""
    chosen: Manner = request.param
    return chosen


@pytest_asyncio.fixture
async def stage(manner: Manner, redis_server: RedisServer) -> AsyncIterator[Stage]:
    """A stage on the shared server."""
    with redis_server.client() as raw:
        set_up = Stage(manner, redis_server.port, raw)
        yield set_up
        await set_up.close()


@pytest_asyncio.fixture
async def keys(stage: Stage) -> Any:
    """Guarded keys on the shared server."""
    return stage.guard()


@pytest.fixture(scope="session")
def redis_cluster(redis_executable: RedisExecutable) -> Iterator[RedisServer]:
    """A server in cluster mode, shared by all tests of this worker. It has all hash slots, and minds them."""
    with tempfile.TemporaryDirectory(prefix="hf-") as directory:
        server = RedisServer(redis_executable, Path(directory), args=("--cluster-enabled", "yes"))
        server.port = _low_port()
        server.start()
        try:
            server.cli("CLUSTER", "ADDSLOTS", *range(SLOTS))
            wait_until_served(server)
            yield server
        finally:
            server.kill()


def wait_until_served(server: RedisServer) -> None:
    """Return when a cluster has all of its slots and knows it."""
    limit = time.monotonic() + START_LIMIT_S
    while "cluster_state:ok" not in server.cli("CLUSTER", "INFO"):
        assert time.monotonic() < limit, server.log()
        time.sleep(0.01)


def _low_port() -> int:
    """A port that leaves room for the cluster's bus, which is 10,000 above it."""
    while (port := free_port()) + 10_000 > 65_535:
        pass
    return port
