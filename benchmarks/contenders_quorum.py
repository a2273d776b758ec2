"""Who takes part in the scenarios of a quorum: locks that a majority of three Redis servers keeps.

Every measurement has three servers of its own, which are started before the clock runs. No server replicates another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

import holdfast
import holdfast.aio
from benchmarks.contender import (
    TTL_S,
    AsyncConnect,
    AsyncCycle,
    AsyncMake,
    Connect,
    Contender,
    Cycle,
    Make,
    Place,
    Role,
    module,
)
from benchmarks.contenders_asyncio import HoldfastAsyncCycle
from benchmarks.contenders_redis import CONNECTIONS, HoldfastCycle
from benchmarks.server import Server, find_executable, running

NODES = 3


@contextmanager
def _servers(place: Place) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        servers = []
        for number in range(NODES):
            directory = place.directory / f"node-{number}"
            directory.mkdir()
            servers.append(stack.enter_context(running(find_executable(None), directory)))
        yield servers


def _url(servers: list[Server]) -> str:
    return f"redlock://{','.join(f'{server.host}:{server.port}' for server in servers)}"


@contextmanager
def _holdfast_threads(place: Place) -> Iterator[Make]:
    with _servers(place) as servers, holdfast.connect(_url(servers)) as locks:
        yield lambda key: HoldfastCycle(locks.lock(key, ttl=TTL_S))


@asynccontextmanager
async def _holdfast_tasks(place: Place) -> AsyncIterator[AsyncMake]:
    with _servers(place) as servers:
        async with holdfast.aio.connect(_url(servers)) as locks:
            yield lambda key: HoldfastAsyncCycle(locks.lock(key, ttl=TTL_S))


@contextmanager
def _pottery_threads(place: Place) -> Iterator[Make]:
    with _servers(place) as servers, ExitStack() as stack:
        redis = module("redis").Redis
        masters = {stack.enter_context(redis(each.host, each.port, max_connections=CONNECTIONS)) for each in servers}

        def make(key: str) -> Cycle:
            lock: Cycle = module("pottery").Redlock(key=key, masters=masters, auto_release_time=TTL_S)
            return lock

        yield make


@asynccontextmanager
async def _pottery_tasks(place: Place) -> AsyncIterator[AsyncMake]:
    with _servers(place) as servers:
        async with AsyncExitStack() as stack:
            redis = module("redis.asyncio").Redis
            masters = {
                await stack.enter_async_context(redis(host=each.host, port=each.port, max_connections=CONNECTIONS))
                for each in servers
            }

            def make(key: str) -> AsyncCycle:
                lock: AsyncCycle = module("pottery").AIORedlock(key=key, masters=masters, auto_release_time=TTL_S)
                return lock

            yield make


THREADS: tuple[Contender[Connect], ...] = (
    Contender("holdfast", Role.OURS, "holdfast", _holdfast_threads),
    Contender("pottery", Role.PEER, "pottery", _pottery_threads),
)
TASKS: tuple[Contender[AsyncConnect], ...] = (
    Contender("holdfast", Role.OURS, "holdfast", _holdfast_tasks),
    Contender("pottery", Role.PEER, "pottery", _pottery_tasks),
)
