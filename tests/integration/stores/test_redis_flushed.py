"""A key that vanishes from a real server is free in the process that held it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import aio
from support.harness.redis_requests import lock_name
from support.servers.redis import RedisServer

pytestmark = pytest.mark.server

TTL_S = 3000


def deleted(redis_server: RedisServer, name: str) -> None:
    redis_server.cli("DEL", name)


def taken_by_another(redis_server: RedisServer, name: str) -> None:
    redis_server.cli("SET", name, "the token of another library", "PX", "50")


@pytest.mark.parametrize("vanish", [deleted, taken_by_another])
def test_threads_of_its_holder_can_acquire_it(
    redis_server: RedisServer, redis_url: str, vanish: Callable[[RedisServer, str], Any]
) -> None:
    with holdfast.connect(redis_url) as locks:
        lock = locks.lock("k", ttl=TTL_S)
        lease = lock.acquire()
        assert lock.try_acquire() is None
        vanish(redis_server, lock_name(redis_url, "k"))
        with lock as again:
            assert again.fence > lease.fence
            assert lease.lost.reason == "stolen"
        assert locks.statistics().lost == 1


@pytest.mark.parametrize("vanish", [deleted, taken_by_another])
@pytest.mark.asyncio
async def test_tasks_of_its_holder_can_acquire_it(
    redis_server: RedisServer, redis_url: str, vanish: Callable[[RedisServer, str], Any]
) -> None:
    async with aio.connect(redis_url) as locks:
        lock = locks.lock("k", ttl=TTL_S)
        lease = await lock.acquire()
        assert await lock.try_acquire() is None
        vanish(redis_server, lock_name(redis_url, "k"))
        async with lock as again:
            assert again.fence > lease.fence
            assert lease.lost.reason == "stolen"
        assert locks.statistics().lost == 1
