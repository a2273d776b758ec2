"""The lock of one run in Redis, as a fleet has it: two replicas, one inside; takeover by expiry; renewal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import holdfast.aio
from holdfast.aio.client import Locks
from holdfast.errors import RetryLater
from holdfast.plane.locks.registry import WORKFLOW_RUN
from holdfast.plane.locks.run_lock import run_lock

pytestmark = [pytest.mark.asyncio, pytest.mark.server]

KEY = WORKFLOW_RUN.key(run="run-1")


@pytest_asyncio.fixture
async def redis_pair(redis_url: str) -> AsyncIterator[tuple[Locks, Locks]]:
    async with (
        holdfast.aio.connect(redis_url, policy={"low": "fail_open"}, instance="a") as one,
        holdfast.aio.connect(redis_url, policy={"low": "fail_open"}, instance="b") as other,
    ):
        yield one, other


@pytest.mark.requires("R52", "R86")
async def test_in_redis_of_two_replicas_one_at_a_time_is_inside(redis_pair: tuple[Locks, Locks]) -> None:
    inside = most = entries = 0
    fences: list[int | None] = []

    async def go_in(locks: Locks) -> None:
        nonlocal inside, most, entries
        for _ in range(5):
            async with run_lock(locks, "run-1", "low", timeout=30.0) as lease:
                assert lease.guaranteed
                fences.append(lease.fence)
                inside, entries = inside + 1, entries + 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for locks in redis_pair * 2:
            tasks.create_task(go_in(locks))
    assert (most, entries) == (1, 20)
    assert fences == sorted(set(fences), key=lambda fence: fence or 0)


@pytest.mark.requires("R87")
async def test_in_redis_after_the_ttl_of_a_holder_that_is_gone_another_gets_in(redis_pair: tuple[Locks, Locks]) -> None:
    one, other = redis_pair
    gone = await one.hold(KEY, ttl=0.3)  # neither renewed nor released
    assert gone is not None
    with pytest.raises(RetryLater, match="run lock busy"):
        async with run_lock(other, "run-1", "low", timeout=0.0):
            raise AssertionError("two holders")
    async with run_lock(other, "run-1", "low", timeout=30.0) as lease:
        assert lease.fence is not None
        assert lease.fence > gone.fence


@pytest.mark.requires("R82", "R89")
async def test_in_redis_the_key_is_still_there_after_the_first_ttl_of_a_holder_that_works(
    redis_pair: tuple[Locks, Locks], redis_url: str, redis_raw: Any
) -> None:
    one, other = redis_pair
    key = redis_url.partition("prefix=")[2].partition("&")[0] + KEY
    async with run_lock(one, "run-1", "low", family=WORKFLOW_RUN.timed(0.6)) as lease:
        owner = redis_raw.get(key)
        assert owner is not None
        await asyncio.sleep(0.9)  # what must hold is that time alone takes nothing away
        assert lease.held
        assert redis_raw.get(key) == owner
        with pytest.raises(RetryLater, match="run lock busy"):
            async with run_lock(other, "run-1", "low", timeout=0.0):
                raise AssertionError("two holders")
    assert redis_raw.get(key) is None
