"""Cancellation on asyncio: at every await point, once and twice, in acquire, body and release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast import AcquireTimeout, aio
from support.harness.leases import LIMIT_S, Stage


def slow_store(stage: Stage, steps: int = 2) -> None:
    """Each request suspends before and after it takes effect, as on a network."""

    async def hops() -> None:
        for _ in range(steps):
            await asyncio.sleep(0)

    for operation in ("acquire", "release", "leave"):
        stage.plan.before[operation] = hops
        stage.plan.after[operation] = hops


async def nothing_is_left(locks: aio.Locks, stage: Stage, when: str) -> None:
    async def free() -> bool:
        return not (await locks.inspect("k")).held and not locks.runtime.mutexes.queues

    for _ in range(500):
        if await free():
            break
        await stage.breathe()
    assert not (await locks.inspect("k")).held, f"the key is still taken: {when}"
    assert not locks.runtime.mutexes.queues, f"a caller is still queued: {when}"
    assert locks.statistics().held == 0, f"the keeper still looks after it: {when}"
    seen = await locks.inspect("k")
    assert seen.waiters == 0
    lease = await locks.lock("k", ttl=60).try_acquire()
    assert lease is not None, when
    assert await lease.release()


async def at_every_step(
    stage: Stage, locks: aio.Locks, work: Callable[[], Coroutine[Any, Any, Any]], times: int
) -> int:
    """Cancel the work one step of the loop later each time, until it gets through. Returns after how many steps."""
    for step in range(300):
        task = asyncio.create_task(work())
        for _ in range(step):
            await asyncio.sleep(0)
        through = task.done()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        try:
            lease = await asyncio.wait_for(asyncio.shield(task), LIMIT_S)
            if isinstance(lease, aio.Lease):
                await lease.release()
        except asyncio.CancelledError:
            assert task.cancelled()
        await nothing_is_left(locks, stage, f"cancelled {times} x at step {step}")
        if through:
            return step
    raise AssertionError("the work never got through")


@pytest.mark.requires("R81")
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_cancelled_acquire_leaves_nothing_behind(tasks: Stage, times: int) -> None:
    locks = tasks.locks()
    slow_store(tasks)
    assert await at_every_step(tasks, locks, lambda: locks.lock("k", ttl=60).acquire(), times) >= 4
    assert await at_every_step(tasks, locks, lambda: locks.lock("k", ttl=60).try_acquire(), times) >= 4
    assert await at_every_step(tasks, locks, lambda: locks.lock("k", ttl=60, fair=True).acquire(), times) >= 4


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_cancelled_block_leaves_nothing_behind_wherever_it_is(tasks: Stage, times: int) -> None:
    locks = tasks.locks()
    slow_store(tasks)

    async def work() -> None:
        async with locks.lock("k", ttl=60) as lease:
            await asyncio.sleep(0)
            assert lease.held
            await asyncio.sleep(0)

    assert await at_every_step(tasks, locks, work, times) >= 10


@pytest.mark.parametrize("times", [1, 2])
async def test_a_cancelled_release_still_gives_the_lock_back(tasks: Stage, times: int) -> None:
    locks = tasks.locks()
    slow_store(tasks)

    lease = await locks.lock("k", ttl=60).acquire()
    for step in range(1, 5):
        task = asyncio.create_task(lease.release())
        for _ in range(step):
            await asyncio.sleep(0)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await nothing_is_left(locks, tasks, f"release cancelled at step {step}")
        lease = await locks.lock("k", ttl=60).acquire()
    await lease.release()


@pytest.mark.requires("R48", "R81")
async def test_a_waiter_that_is_cancelled_in_line_or_at_the_store_steps_aside(tasks: Stage) -> None:
    locks, others = tasks.locks(), tasks.locks()
    for holder in (locks, others):
        for fair in (False, True):
            lease = await holder.lock("k", ttl=60).acquire()
            first = asyncio.create_task(locks.lock("k", ttl=60, fair=fair).acquire())
            second = asyncio.create_task(locks.lock("k", ttl=60, fair=fair).acquire())
            await tasks.until(lambda: locks.statistics().waiting >= 1, "they wait")
            await tasks.breathe()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await lease.release()
            mine = await asyncio.wait_for(second, LIMIT_S)
            await mine.release()
            await nothing_is_left(locks, tasks, "a waiter was cancelled")


async def test_the_one_who_is_called_and_cancelled_in_the_same_breath_passes_the_turn_on(tasks: Stage) -> None:
    locks = tasks.locks()
    lease = await locks.lock("k", ttl=60).acquire()
    waiting = [asyncio.create_task(locks.lock("k", ttl=60).acquire()) for _ in range(3)]
    await tasks.until(lambda: locks.statistics().waiting == 3, "three wait")
    await lease.release()
    waiting[0].cancel()  # its turn has come, and it has not run yet
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    for each in waiting[1:]:
        mine = await asyncio.wait_for(each, LIMIT_S)
        await mine.release()
    await nothing_is_left(locks, tasks, "passed on")


async def test_a_timeout_of_asyncio_around_acquire_is_as_good_as_our_own(tasks: Stage) -> None:
    locks, others = tasks.locks(), tasks.locks()
    lease = await others.lock("k", ttl=60).acquire()
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.05):
            await locks.lock("k", ttl=60).acquire()
    assert not isinstance(raised.value, AcquireTimeout)
    await lease.release()
    await nothing_is_left(locks, tasks, "timed out")


async def test_an_undo_that_the_store_does_not_answer_does_not_hold_up_the_cancellation_for_ever(tasks: Stage) -> None:
    tasks.stop_time()
    locks = tasks.locks()
    hanging = asyncio.Event()

    async def hang() -> None:
        await hanging.wait()

    tasks.plan.before["acquire"] = hang
    task = asyncio.create_task(locks.lock("k", ttl=60).acquire())
    await tasks.until(lambda: tasks.plan.calls["acquire"] == 1, "it asks")
    tasks.plan.down("release")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, LIMIT_S)
    assert tasks.plan.calls["release"] >= 1
    hanging.set()


async def test_many_tasks_that_are_cancelled_at_random_leave_the_lock_usable(tasks: Stage) -> None:
    locks = tasks.locks()
    slow_store(tasks, steps=1)
    inside = worst = done = 0

    async def work() -> None:
        nonlocal inside, worst, done
        async with locks.lock("k", ttl=60):
            inside += 1
            worst = max(worst, inside)
            try:
                await asyncio.sleep(0)
            finally:
                inside -= 1
            done += 1

    company = [asyncio.create_task(work()) for _ in range(60)]
    for number, each in enumerate(company):
        if number % 3 == 0:
            each.cancel()
        await asyncio.sleep(0)
    results = await asyncio.gather(*company, return_exceptions=True)
    assert worst == 1
    assert done >= 40
    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
    await nothing_is_left(locks, tasks, "sixty tasks")


async def test_closing_while_tasks_wait_and_hold_ends_cleanly(tasks: Stage) -> None:
    locks = tasks.locks()
    lease = await locks.lock("k", ttl=60).acquire()
    await locks.close()
    assert lease.lost.reason == "revoked"
    assert not await lease.release()
