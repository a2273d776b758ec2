"""A thread or task that waits for a lock it holds waits forever, so it is refused, unless the lease was handed over."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import AcquireTimeout, AlreadyHeld, Lease, LockBusy, aio
from holdfast.aio import batch as many
from support.harness.leases import LIMIT_S, Stage, plain


async def test_a_wait_for_oneself_is_refused_and_says_what_to_do(stage: Stage) -> None:
    locks = stage.locks()
    lock = locks.lock("invoice:42", ttl=30, family="billing.invoice")
    lease = await lock.acquire()
    with pytest.raises(AlreadyHeld) as refused:
        await lock.acquire()
    said = str(refused.value)
    assert said.startswith("invoice lock already held: invoice:42 is held by this same thread or task")
    assert lease.owner in said
    assert "hand_over()" in said
    assert "timeout" in said
    assert (refused.value.key, refused.value.holder) == ("invoice:42", lease.owner)
    assert not isinstance(refused.value, LockBusy)  # trying again later would never help
    assert lease.held
    assert stage.plan.calls["acquire"] == 1
    assert locks.statistics().waiting == 0
    assert await lease.release()
    assert await (await lock.acquire()).release()


async def test_any_lock_of_that_name_and_any_way_to_wait_is_refused(stage: Stage) -> None:
    locks = stage.locks()
    async with locks.lock("k", ttl=30):
        with pytest.raises(AlreadyHeld):
            await locks.lock("k", ttl=5, timeout=None).acquire()
        with pytest.raises(AlreadyHeld):
            await locks.lock("k", ttl=5, timeout=3).acquire(timeout=-1)  # forever, as in `threading.Lock.acquire`
        with pytest.raises(AlreadyHeld):
            async with locks.lock("k", ttl=5):
                raise AssertionError("it never gets here")
        async with locks.lock("another", ttl=5) as other:
            assert other.held
    leader = locks.leader("scheduler", lease=3, renew_deadline=2, retry=0.5)
    async with leader:
        with pytest.raises(AlreadyHeld):
            await leader.campaign()


async def test_a_timeout_asks_to_wait_for_that_long_and_trying_never_waits(stage: Stage) -> None:
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    assert await locks.lock("k", ttl=30).try_acquire() is None
    with pytest.raises(AcquireTimeout):
        await locks.lock("k", ttl=30).acquire(timeout=0.02)
    with pytest.raises(AcquireTimeout):
        await locks.lock("k", ttl=30, timeout=0.02).acquire()
    with pytest.raises(AcquireTimeout):
        async with locks.lock("k", ttl=30, timeout=0):
            raise AssertionError("it never gets here")
    assert lease.held


async def test_a_lease_that_was_handed_over_is_waited_for(stage: Stage) -> None:
    locks = stage.locks()
    lock = locks.lock("k", ttl=30)
    lease = (await lock.acquire()).hand_over()
    assert lease.held

    async def releases_it() -> None:
        await stage.until(lambda: locks.statistics().waiting == 1, "the one that acquired it waits for it again")
        await lease.release()

    other = stage.start(releases_it())
    async with lock as again:
        assert again.fence > lease.fence
    await other.result()


async def test_a_lease_that_another_released_is_not_held_any_more(stage: Stage) -> None:
    locks = stage.locks()
    lock = locks.lock("k", ttl=30)
    lease = await lock.acquire()

    async def releases_it() -> bool:
        return await lease.release()

    assert await stage.start(releases_it()).result()
    async with lock as again:
        assert again.held


async def test_a_lost_lease_is_not_held_any_more(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30, auto_renew=False).acquire()
    stage.pass_time(31)
    assert await (await locks.lock("k", ttl=30).acquire()).release()
    assert not lease.held


async def test_a_lease_that_is_not_renewed_runs_out_and_is_waited_for(stage: Stage) -> None:
    locks = stage.locks()
    lease = await locks.lock("k", ttl=0.2, auto_renew=False).acquire()
    async with locks.lock("k", ttl=5) as again:
        assert again.fence > lease.fence


async def test_others_wait_as_ever_whoever_has_ended_since(stage: Stage) -> None:
    """The ident of a thread that has ended, or the address of a task, may be that of the next one."""
    locks = stage.locks()
    lock = locks.lock("k", ttl=30)
    taken: list[Any] = []

    async def take() -> None:
        taken.append(await lock.acquire())

    await stage.start(take()).result()
    gc.collect()
    waiting = [stage.start(take()) for _ in range(5)]
    await stage.until(lambda: locks.statistics().waiting == 5 or any(each.done() for each in waiting), "all wait")
    assert not any(each.done() for each in waiting)
    for number in range(6):
        await stage.until(lambda: len(taken) > number, "the next one has it")  # noqa: B023 - used before it changes
        await taken[number].release()
    for each in waiting:
        await each.result()


@pytest.mark.filterwarnings("ignore:the lease of k was dropped:ResourceWarning")
def test_a_lease_that_was_dropped_ends_with_its_ttl_and_is_waited_for() -> None:
    with holdfast.connect("memory://") as locks:
        locks.lock("k", ttl=0.3).acquire()
        gc.collect()
        with locks.lock("k", ttl=0.3) as again:
            assert again.held


def test_a_function_that_calls_itself_under_its_own_lock_is_refused(threads: Stage) -> None:
    locks: holdfast.Locks = plain(threads.locks())

    @locks.exclusive("tree:{name}", ttl=5)
    def visit(name: str, depth: int) -> int:
        return depth if depth == 3 else visit(name, depth + 1)

    @locks.exclusive("feed:{name}", ttl=5)
    def read(name: str) -> Iterator[int]:
        yield 1
        yield from read(name)

    with pytest.raises(AlreadyHeld, match="tree:a"):
        visit("a", 0)
    with pytest.raises(AlreadyHeld, match="feed:a"):
        list(read("a"))
    assert not locks.inspect("tree:a").held
    assert not locks.inspect("feed:a").held


async def test_a_coroutine_that_calls_itself_under_its_own_lock_is_refused(tasks: Stage) -> None:
    awaited, blocking = tasks.locks(), holdfast.connect("memory://")

    def calls_itself(locks: Any) -> Callable[[int], Any]:
        @locks.exclusive("tree", ttl=5)  # type: ignore[untyped-decorator]  # either colour
        async def visit(depth: int) -> int:
            found: int = await visit(depth + 1)
            return found

        return visit  # type: ignore[no-any-return]

    @awaited.exclusive("feed", ttl=5)
    async def read() -> AsyncIterator[int]:
        yield 1
        async for each in read():
            yield each

    with blocking:
        for locks in (awaited, blocking):
            with pytest.raises(AlreadyHeld, match="tree"):
                await asyncio.wait_for(calls_itself(locks)(0), LIMIT_S)
    with pytest.raises(AlreadyHeld, match="feed"):
        assert [each async for each in read()] == []
    assert not (await awaited.inspect("tree")).held
    assert not (await awaited.inspect("feed")).held


async def test_tasks_that_share_a_pool_of_threads_do_not_hold_for_each_other(tasks: Stage) -> None:
    """A blocking lock around a coroutine is acquired on a thread of a pool, which then acquires it for another task."""
    inside = 0
    with holdfast.connect("memory://") as locks:

        @locks.exclusive("k", ttl=5)
        async def work() -> None:
            nonlocal inside
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

        for _ in range(10):
            await asyncio.gather(*(work() for _ in range(3)))


async def test_leases_taken_in_one_request_belong_to_no_task(tasks: Stage) -> None:
    """They are for those who pass them on: the task that takes them takes them for others."""
    locks = tasks.locks()
    (lease,) = await many.try_acquire(locks, [locks.lock("k", ttl=30)])
    assert isinstance(lease, aio.Lease)

    async def releases_it() -> None:
        await tasks.until(lambda: locks.statistics().waiting == 1, "it waits")
        await lease.release()

    other = tasks.start(releases_it())
    async with locks.lock("k", ttl=30) as again:
        assert again.fence > lease.fence
    await other.result()


def test_a_signal_handler_that_waits_for_the_lock_of_its_own_thread_is_refused(threads: Stage) -> None:
    """Also in the middle of an acquisition, when there is no lease yet: the thread would never continue."""
    locks: holdfast.Locks = plain(threads.locks())
    refused: list[AlreadyHeld] = []

    def handler() -> None:
        try:
            locks.lock("k", ttl=30).acquire()
        except AlreadyHeld as error:
            refused.append(error)

    threads.plan.once("before", "acquire", handler)
    with locks.lock("k", ttl=30) as lease:
        assert lease.held
    assert len(refused) == 1


def test_each_thread_holds_for_itself(threads: Stage) -> None:
    locks: holdfast.Locks = plain(threads.locks())
    lock = locks.lock("k", ttl=30)  # one object, shared
    fences: list[int] = []

    def work() -> None:
        for _ in range(20):
            with lock as lease:
                fences.append(lease.fence)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(LIMIT_S)
    assert len(fences) == 80
    assert fences == sorted(set(fences))


def test_a_lease_says_itself_that_it_is_handed_over() -> None:
    with holdfast.connect("memory://") as locks:
        lease: Lease = locks.lock("k").acquire().hand_over()
        assert lease.release()
        held = locks.hold("window", ttl=30)
        assert held is not None
        assert held.hand_over() is held  # belongs to no thread anyway
