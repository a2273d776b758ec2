"""A key that is free at the store is free in the process whose lease was taken away, as it is in all others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.runtime.asyncio_runtime import LoopMutexes
from holdfast.runtime.thread_runtime import ThreadMutexes
from support.harness.leases import Stage

TTL_S = 3000  # the next renewal is so far away that no test lives to see it


async def test_who_breaks_a_lock_can_take_it_and_its_holder_here_knows(stage: Stage) -> None:
    locks = stage.locks()
    told: list[str | None] = []
    lease = await locks.lock("k", ttl=TTL_S, on_lost=lambda lost: told.append(lost.lost.reason)).acquire()
    assert await locks.force_release("k", reason="drill") is not None
    assert not lease.held
    assert lease.lost.reason == "stolen"
    again = await locks.lock("k", ttl=TTL_S).try_acquire()
    assert again is not None
    assert again.fence > lease.fence
    await stage.until(lambda: told == ["stolen"], "its callback was called")
    assert await lease.release() is False
    assert again.held
    assert await again.release()


async def test_breaking_a_lock_leaves_the_next_holder_here_alone(stage: Stage) -> None:
    locks, operator = stage.locks(), stage.locks()
    assert await (await locks.lock("k", ttl=TTL_S).acquire()).release()
    assert await operator.force_release("k", reason="it is not held") is None
    async with locks.lock("k", ttl=TTL_S) as lease:
        assert await locks.force_release("another", reason="it is not held") is None
        assert lease.held


@pytest.mark.parametrize("wait", ["try", "timeout", "forever"])
async def test_a_lock_that_was_broken_elsewhere_can_be_taken_here(stage: Stage, wait: str) -> None:
    locks, operator = stage.locks(), stage.locks()
    lock = locks.lock("k", ttl=TTL_S)
    lease = await lock.acquire()
    assert await operator.force_release("k", reason="drill") is not None
    again: Any
    if wait == "try":
        again = await lock.try_acquire()
    else:
        again = await (lock.acquire(20) if wait == "timeout" else lock.acquire())
    assert again is not None
    assert again.fence > lease.fence
    assert lease.lost.reason == "stolen"
    assert stage.plan.calls["renew_many"] == 0
    assert await again.release()


async def test_a_caller_that_waits_already_gets_it(stage: Stage) -> None:
    locks, operator = stage.locks(), stage.locks()
    lease = await locks.lock("k", ttl=TTL_S).acquire()

    async def take() -> int:
        async with locks.lock("k", ttl=TTL_S) as mine:
            return mine.fence

    waiting = [stage.start(take()) for _ in range(3)]
    await stage.until(lambda: locks.statistics().waiting == 3, "three wait for the one here")
    await operator.force_release("k", reason="drill")
    fences = [await each.result() for each in waiting]
    assert min(fences) > lease.fence
    assert lease.lost.reason == "stolen"
    assert stage.plan.calls["renew_many"] == 0


async def test_a_key_that_somebody_else_has_meanwhile_stays_busy(stage: Stage) -> None:
    locks, operator = stage.locks(), stage.locks()
    lease = await locks.lock("k", ttl=TTL_S).acquire()
    await operator.force_release("k", reason="drill")
    other = await operator.lock("k", ttl=TTL_S).acquire()
    assert await locks.lock("k", ttl=TTL_S).try_acquire() is None
    assert not lease.held
    assert other.held


@pytest.mark.parametrize("trouble", ["down", "silent"])
async def test_a_store_that_does_not_answer_takes_no_lease_away(stage: Stage, trouble: str) -> None:
    locks = stage.locks()
    lease = await locks.lock("k", ttl=TTL_S).acquire()
    getattr(stage.plan, trouble)("inspect")
    assert await locks.lock("k", ttl=TTL_S).try_acquire() is None
    assert lease.held
    assert locks.statistics().store_errors == 0


async def test_a_degraded_lease_is_not_looked_for_at_the_store(stage: Stage) -> None:
    locks = stage.locks(policy={"low": "fail_open"})
    stage.plan.down("acquire")
    lock = locks.lock("k", ttl=TTL_S, risk="low")
    lease = await lock.acquire()
    assert not lease.guaranteed
    assert await lock.try_acquire() is None
    assert stage.plan.calls["inspect"] == 0
    assert lease.held


async def test_a_lease_that_ran_out_while_nothing_ran_is_not_in_the_way(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    stage.stand_still(31)
    again = await locks.lock("k", ttl=30).try_acquire()
    assert again is not None
    assert lease.lost.reason == "expired"
    assert await again.release()


async def test_a_lease_that_the_store_still_has_stays(stage: Stage) -> None:
    locks = stage.locks()
    for settings in ({}, {"auto_renew": False}, {"fair": True}, {"at_least": 1}):
        lock: Any = locks.lock("k", ttl=TTL_S, **settings)
        lease = await lock.acquire()
        for _ in range(3):
            assert await lock.try_acquire() is None
        assert lease.held
        await lease.release()
        await stage.locks().force_release("k", reason="it is kept for a while")
    assert stage.plan.calls["inspect"] >= 12


@pytest.mark.parametrize("make", ["threads", "tasks"])
async def test_of_those_who_wait_one_is_next(tasks: Stage, make: str) -> None:

    mutexes: Any = ThreadMutexes() if make == "threads" else LoopMutexes(asyncio.get_running_loop())
    places = [mutexes.entry("k") for _ in range(3)]
    assert await places[0].enter(None)
    for place in places[1:]:
        if make == "tasks":
            waiting = asyncio.ensure_future(place.enter(20 * 10**9))
            await asyncio.sleep(0)
            waiting.cancel()
        else:
            assert not await place.enter(1)
    assert [place.next for place in places] == [False, True, False]
    assert mutexes.inside("k") is places[0]
    places[0].leave()
    assert [place.next for place in places] == [False, False, True]
    assert await places[1].enter(1)  # it was called while it did something else
    for place in places:
        place.leave()
    assert mutexes.inside("k") is None
    assert not mutexes.queues
