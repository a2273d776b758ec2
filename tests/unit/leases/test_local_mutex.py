"""The local mutex comes first: of all who wait for a key in one process, one talks to the store."""

from __future__ import annotations

import pytest

from holdfast import AcquireTimeout, Unavailable
from support.harness.leases import Company, Stage


def nobody_in_line(locks: object) -> bool:
    """Nothing is kept for a key without callers."""
    runtime = getattr(locks, "runtime", None) or locks.ports.runtime  # type: ignore[attr-defined] # either colour
    return not runtime.mutexes.queues


@pytest.mark.requires("R48", "R68", "R81")
async def test_only_one_waiter_of_a_process_talks_to_the_store(stage: Stage) -> None:
    locks = stage.locks()
    lock = locks.lock("k", ttl=30)
    lease = await lock.acquire()

    async def take() -> None:
        async with lock:
            pass

    company = [stage.start(take()) for _ in range(8)]
    await stage.until(lambda: locks.statistics().waiting == 8, "eight callers are queued")
    assert stage.plan.calls["acquire"] == 1
    await lease.release()
    for each in company:
        await each.result()
    assert stage.plan.calls["acquire"] == 9
    assert stage.plan.calls["watch"] == 0
    assert nobody_in_line(locks)


async def test_of_two_processes_with_many_waiters_each_one_asks_for_its_own(stage: Stage) -> None:
    one, two = stage.locks(), stage.locks()
    lease = await one.lock("k", ttl=30).acquire()

    async def take() -> None:
        async with two.lock("k", ttl=30):
            pass

    company = [stage.start(take()) for _ in range(6)]
    await stage.until(lambda: two.statistics().waiting == 5 and stage.plan.calls["watch"] == 1, "one asks, five wait")
    assert stage.plan.calls["acquire"] == 3  # ours, its first, and once more after it had begun to listen
    await lease.release()
    for each in company:
        await each.result()
    assert nobody_in_line(two)


async def test_the_line_is_first_come_first_served(stage: Stage) -> None:
    locks = stage.locks()
    lock = locks.lock("k", ttl=30)
    lease = await lock.acquire()
    order: list[int] = []

    async def take(number: int) -> None:
        async with lock:
            order.append(number)

    company: list[Company] = []
    for number in range(6):
        company.append(stage.start(take(number)))
        await stage.until(lambda: locks.statistics().waiting == len(company), "all are queued")
    await lease.release()
    for each in company:
        await each.result()
    assert order == list(range(6))


@pytest.mark.requires("R79", "R81")
async def test_contention_gives_the_local_mutex_back(stage: Stage) -> None:
    one, two = stage.locks(), stage.locks()
    lease = await one.lock("k", ttl=30).acquire()
    for _ in range(3):
        assert await two.lock("k", ttl=30).try_acquire() is None
        assert nobody_in_line(two)
    with pytest.raises(AcquireTimeout):
        await two.lock("k", ttl=30).acquire(timeout=0.02)
    assert nobody_in_line(two)
    await lease.release()
    assert await two.lock("k", ttl=30).try_acquire() is not None


async def test_an_error_gives_the_local_mutex_back(stage: Stage) -> None:
    locks = stage.locks()
    stage.plan.down("acquire")
    for _ in range(2):
        with pytest.raises(Unavailable):
            await locks.lock("k", ttl=30).acquire()
        with pytest.raises(Unavailable):
            await locks.lock("k", ttl=30).try_acquire()
        assert nobody_in_line(locks)


@pytest.mark.requires("R81")
async def test_a_wait_in_line_is_bounded_by_its_timeout(stage: Stage) -> None:
    locks = stage.locks()
    lock = locks.lock("k", ttl=30, family="workflow.run")
    lease = await lock.acquire()
    with pytest.raises(AcquireTimeout, match="run lock busy: k is held by another holder in this process"):
        await lock.acquire(timeout=0.03)
    assert stage.plan.calls["acquire"] == 1
    assert locks.statistics().waiting == 0
    await lease.release()
    assert nobody_in_line(locks)


async def test_a_lost_lease_lets_the_next_in_line_ask(stage: Stage) -> None:
    locks, operator = stage.locks(), stage.locks()
    lease = await locks.lock("k", ttl=0.3).acquire()

    async def take() -> int:
        async with locks.lock("k", ttl=5) as mine:
            return mine.fence

    waiting = stage.start(take())
    await stage.until(lambda: locks.statistics().waiting == 1, "all are queued")
    await operator.force_release("k", reason="drill")
    assert await waiting.result() > lease.fence
    assert not lease.held
    await lease.release()
    assert nobody_in_line(locks)


@pytest.mark.requires("R86", "R88")
async def test_threads_and_tasks_exclude_each_other_even_without_the_store(stage: Stage) -> None:
    """TestDistributedRunLock_LocalFallback: without the distributed provider the local path still works."""
    locks = stage.locks(policy={"low": "fail_open"})
    stage.plan.down()
    lock = locks.lock("run:1", ttl=30, risk="low")
    inside, worst = 0, 0

    async def work() -> None:
        nonlocal inside, worst
        for _ in range(5):
            async with lock:
                inside += 1
                worst = max(worst, inside)
                await stage.breathe()
                inside -= 1

    company = [stage.start(work()) for _ in range(4)]
    for each in company:
        await each.result()
    assert worst == 1
    assert locks.statistics().fallbacks == 20
    assert nobody_in_line(locks)


async def test_a_fair_lock_serves_processes_in_the_order_in_which_they_came(stage: Stage) -> None:
    holder = stage.locks()
    lease = await holder.lock("k", ttl=30, fair=True).acquire()
    order: list[int] = []

    async def take(number: int) -> None:
        async with stage.locks().lock("k", ttl=30, fair=True):
            order.append(number)

    company: list[Company] = []
    for number in range(4):
        company.append(stage.start(take(number)))
        await stage.until(lambda: stage.plan.calls["watch"] == len(company), "it has a ticket and listens")
    assert (await holder.inspect("k")).waiters == 4
    await lease.release()
    for each in company:
        await each.result()
    assert order == [0, 1, 2, 3]


async def test_a_fair_waiter_that_gives_up_leaves_the_queue(stage: Stage) -> None:
    one, two, three = stage.locks(), stage.locks(), stage.locks()
    lease = await one.lock("k", ttl=30, fair=True).acquire()
    with pytest.raises(AcquireTimeout):
        await two.lock("k", ttl=30, fair=True).acquire(timeout=0.02)
    assert stage.plan.calls["leave"] == 1
    assert (await one.inspect("k")).waiters == 0
    await lease.release()
    async with three.lock("k", ttl=30, fair=True) as mine:
        assert mine.held
