"""Who takes part in the Redis scenarios of asyncio. Each is used as its own documentation says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import holdfast.aio
from benchmarks.contender import TTL_S, AsyncConnect, AsyncCycle, AsyncMake, Contender, Place, Role, module
from benchmarks.contenders_redis import CONNECTIONS
from benchmarks.raw import Bare, BareProtocol, RawAsyncCycle, Scripts


class HoldfastAsyncCycle:
    """Holdfast's lock, with its fence read each time."""

    def __init__(self, lock: holdfast.aio.Lock[holdfast.aio.Lease]) -> None:
        self._lock = lock
        self._lease: holdfast.aio.Lease

    async def acquire(self) -> object:
        """Take it and look at the fence."""
        self._lease = await self._lock.acquire()
        return self._lease.fence

    async def release(self) -> object:
        """Give it back."""
        return await self._lease.release()


@asynccontextmanager
async def holdfast_tasks(place: Place) -> AsyncIterator[AsyncMake]:
    """One `Locks` for all tasks."""
    async with holdfast.aio.connect(place.url) as locks:
        yield lambda key: HoldfastAsyncCycle(locks.lock(key, ttl=TTL_S))


@asynccontextmanager
async def _redis_py(place: Place) -> AsyncIterator[AsyncMake]:
    async with module("redis.asyncio").Redis(host=place.host, port=place.port, max_connections=CONNECTIONS) as client:

        def make(key: str) -> AsyncCycle:
            lock: AsyncCycle = client.lock(key, timeout=TTL_S)
            return lock

        yield make


@asynccontextmanager
async def _coredis(place: Place) -> AsyncIterator[AsyncMake]:
    lock_type = module("coredis.patterns.lock").Lock
    async with module("coredis").Redis(host=place.host, port=place.port) as client:

        def make(key: str) -> AsyncCycle:
            lock: AsyncCycle = lock_type(client, key, timeout=TTL_S)
            return lock

        yield make


@asynccontextmanager
async def _pottery(place: Place) -> AsyncIterator[AsyncMake]:
    lock_type = module("pottery").AIORedlock
    async with module("redis.asyncio").Redis(host=place.host, port=place.port, max_connections=CONNECTIONS) as client:

        def make(key: str) -> AsyncCycle:
            lock: AsyncCycle = lock_type(key=key, masters={client}, auto_release_time=TTL_S)
            return lock

        yield make


@asynccontextmanager
async def raw_tasks(place: Place) -> AsyncIterator[AsyncMake]:
    """One bare connection for all tasks."""
    loader = Bare(place)
    scripts = Scripts(loader)
    transport, protocol = await asyncio.get_running_loop().create_connection(BareProtocol, place.host, place.port)
    yield lambda key: RawAsyncCycle(protocol, scripts, key)
    transport.close()
    loader.close()


HOLDFAST: Contender[AsyncConnect] = Contender("holdfast", Role.OURS, "holdfast", holdfast_tasks)
REDIS_PY: Contender[AsyncConnect] = Contender("redis-py", Role.PEER, "redis", _redis_py)
COREDIS: Contender[AsyncConnect] = Contender("coredis", Role.PEER, "coredis", _coredis)
POTTERY: Contender[AsyncConnect] = Contender("pottery", Role.PEER, "pottery", _pottery)
RAW: Contender[AsyncConnect] = Contender("raw", Role.RAW, "hiredis", raw_tasks)

ALONE = (HOLDFAST, REDIS_PY, COREDIS, POTTERY, RAW)
WAITING = (HOLDFAST, REDIS_PY, COREDIS)
