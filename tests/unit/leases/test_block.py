"""The `with` block: what a loss does to its body, and what reaches the caller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from holdfast import LeaseLost, connect
from support.harness.leases import LIMIT_S, Stage

Begin: TypeAlias = Callable[[Any], Awaitable[Any]]


async def lock_itself(lock: Any) -> Any:
    """The block acquires the lease."""
    return lock


async def acquired_before(lock: Any) -> Any:
    """The lease was acquired before the block."""
    return await lock.acquire()


@pytest.fixture(params=[lock_itself, acquired_before])
def begin(request: pytest.FixtureRequest) -> Begin:
    """The context manager of a block."""
    begin: Begin = request.param
    return begin


async def test_a_block_gives_the_lock_back_whatever_its_body_does(stage: Stage) -> None:
    locks = stage.locks()
    lock = locks.lock("k", ttl=5)
    async with lock as lease:
        assert lease.held
    assert not await lock.locked()
    with pytest.raises(KeyError):
        async with lock:
            raise KeyError("the body's own")
    assert not await lock.locked()
    for _ in range(3):
        async with lock:
            break
    assert not await lock.locked()
    assert locks.statistics().held == 0


async def test_a_loss_that_nobody_noticed_is_raised_at_the_end_of_the_block(stage: Stage, begin: Begin) -> None:
    stage.stop_time()
    locks = stage.locks()
    with pytest.raises(LeaseLost) as raised:
        async with await begin(locks.lock("k", ttl=10)) as lease:
            stage.stand_still(20)
    assert (raised.value.key, raised.value.reason, raised.value.fence) == ("k", "expired", lease.fence)
    assert stage.plan.calls["release"] == 0


async def test_a_loss_never_replaces_the_bodys_exception_but_is_noted_on_it(stage: Stage, begin: Begin) -> None:
    stage.stop_time()
    locks = stage.locks()
    with pytest.raises(ZeroDivisionError) as raised:
        async with await begin(locks.lock("k", ttl=10)):
            stage.stand_still(20)
            raise ZeroDivisionError
    assert any("lock lost: k (expired)" in note for note in raised.value.__notes__)


async def test_a_release_that_the_store_refuses_is_a_loss_at_the_end_of_the_block(stage: Stage, begin: Begin) -> None:
    stage.stop_time()
    locks, operator = stage.locks(), stage.locks()
    with pytest.raises(LeaseLost, match="not ours any more") as raised:
        async with await begin(locks.lock("k", ttl=30)):
            await operator.force_release("k", reason="drill")
    assert raised.value.reason == "stolen"
    with pytest.raises(ZeroDivisionError) as other:
        async with await begin(locks.lock("k", ttl=30)):
            await operator.force_release("k", reason="drill")
            raise ZeroDivisionError
    assert any("not ours any more" in note for note in other.value.__notes__)
    assert locks.statistics().not_owned == 2


async def test_what_ensure_held_raised_is_raised_once_and_not_noted_on_itself(stage: Stage, begin: Begin) -> None:
    stage.stop_time()
    locks = stage.locks()
    with pytest.raises(LeaseLost) as raised:
        async with await begin(locks.lock("k", ttl=10)) as lease:
            stage.stand_still(20)
            lease.ensure_held()
    assert getattr(raised.value, "__notes__", []) == []


async def test_a_lease_that_was_released_inside_its_block_ends_it_quietly(stage: Stage, begin: Begin) -> None:
    locks = stage.locks()
    async with await begin(locks.lock("k", ttl=5)) as lease:
        assert await lease.release()
    assert stage.plan.calls["release"] == 1


async def test_blocks_can_be_nested_and_one_lock_used_by_many(stage: Stage) -> None:
    locks = stage.locks()
    outer, inner = locks.lock("a", ttl=5), locks.lock("b", ttl=5)
    seen: list[int] = []

    async def work() -> None:
        for _ in range(5):
            async with outer as first, inner as second:
                assert first.held
                assert second.held
                seen.append(first.fence)

    company = [stage.start(work()) for _ in range(4)]
    for each in company:
        await each.result()
    assert len(set(seen)) == 20


async def test_a_lost_lease_cancels_the_body_and_the_cancellation_becomes_the_loss(tasks: Stage, begin: Begin) -> None:
    locks = tasks.locks()
    cancelled = False
    with pytest.raises(LeaseLost) as raised:
        async with await begin(locks.lock("k", ttl=0.1, auto_renew=False)):
            try:
                await asyncio.sleep(LIMIT_S)
            except asyncio.CancelledError:
                cancelled = True
                raise
    assert cancelled
    assert raised.value.reason == "expired"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # and nothing of it is left over


async def test_flag_leaves_the_body_alone_and_tells_at_the_end(tasks: Stage, begin: Begin) -> None:
    locks = tasks.locks()
    finished = False
    with pytest.raises(LeaseLost):
        async with await begin(locks.lock("k", ttl=0.1, auto_renew=False, on_loss="flag")) as lease:
            assert await lease.lost.wait(LIMIT_S)
            await asyncio.sleep(0.01)
            finished = True
    assert finished


async def test_a_body_that_swallows_the_cancellation_still_ends_in_the_loss(tasks: Stage, begin: Begin) -> None:
    locks = tasks.locks()
    with pytest.raises(LeaseLost):
        async with await begin(locks.lock("k", ttl=0.1, auto_renew=False)):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(LIMIT_S)
    await asyncio.sleep(0)


async def test_what_a_cancelled_body_raises_instead_is_kept_and_the_loss_is_noted_on_it(
    tasks: Stage, begin: Begin
) -> None:
    locks = tasks.locks()
    with pytest.raises(ZeroDivisionError) as raised:
        async with await begin(locks.lock("k", ttl=0.1, auto_renew=False)):
            try:
                await asyncio.sleep(LIMIT_S)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None
    assert any("lost" in note for note in raised.value.__notes__)
    await asyncio.sleep(0)


async def test_a_cancellation_from_outside_stays_one_even_if_the_lease_is_lost_as_well(
    tasks: Stage, begin: Begin
) -> None:
    locks = tasks.locks()
    inside = asyncio.Event()

    async def work() -> None:
        async with await begin(locks.lock("k", ttl=0.1, auto_renew=False)):
            try:
                inside.set()
                await asyncio.sleep(LIMIT_S)
            finally:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(LIMIT_S)  # cancelled a second time: once by the loss, once from outside

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_timeout_around_the_block_and_the_loss_inside_do_not_get_mixed_up(tasks: Stage, begin: Begin) -> None:
    locks = tasks.locks()
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(LIMIT_S), await begin(locks.lock("k", ttl=0.1, auto_renew=False)):
            await asyncio.sleep(LIMIT_S)
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.05), await begin(locks.lock("k", ttl=30)):
            await asyncio.sleep(LIMIT_S)
    assert not isinstance(raised.value, LeaseLost)
    assert not await locks.lock("k").locked()


async def test_a_task_group_sees_the_loss_and_stops_the_others(tasks: Stage, begin: Begin) -> None:
    locks = tasks.locks()
    stopped = asyncio.Event()

    async def guarded() -> None:
        async with await begin(locks.lock("k", ttl=0.1, auto_renew=False)):
            await asyncio.sleep(LIMIT_S)

    async def other() -> None:
        try:
            await asyncio.sleep(LIMIT_S)
        finally:
            stopped.set()

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as group:
            group.create_task(guarded())
            group.create_task(other())
    assert raised.group_contains(LeaseLost)
    assert stopped.is_set()


async def test_a_loss_that_the_body_itself_found_out_leaves_no_cancellation_behind(tasks: Stage, begin: Begin) -> None:
    tasks.stop_time()
    locks = tasks.locks()
    with pytest.raises(LeaseLost):
        async with await begin(locks.lock("k", ttl=10)) as lease:
            tasks.stand_still(20)
            lease.ensure_held()
    await asyncio.sleep(0)  # on Python 3.11 a cancellation that was requested and taken back would strike here
    await asyncio.sleep(0)
    with pytest.raises(LeaseLost):
        async with await begin(locks.lock("k", ttl=10)) as lease:
            tasks.stand_still(20)
            assert not lease.held
    await asyncio.sleep(0)


async def test_a_body_that_found_the_loss_and_goes_on_is_cancelled_at_its_next_await(
    tasks: Stage, begin: Begin
) -> None:
    tasks.stop_time()
    locks = tasks.locks()
    went_on = False
    with pytest.raises(LeaseLost):
        async with await begin(locks.lock("k", ttl=10)) as lease:
            tasks.stand_still(20)
            assert not lease.held
            await asyncio.sleep(0.05)
            went_on = True
    assert not went_on
    await asyncio.sleep(0)


async def test_a_lease_can_end_its_own_block_and_is_spent_then(stage: Stage) -> None:
    locks = stage.locks()
    lease = await locks.lock("k", ttl=5).acquire()
    async with lease as same:
        assert same.fence == lease.fence
        assert lease.held
    assert not await locks.lock("k", ttl=5).locked()
    with pytest.raises(LeaseLost, match="was released"):
        async with lease:
            raise AssertionError("it never gets here")
    tried = await locks.lock("k", ttl=5).try_acquire()
    assert tried is not None
    async with locks.lock("another", ttl=5), tried:
        assert tried.held
    assert not tried.held


async def test_a_lease_that_was_lost_before_its_block_refuses_to_begin_it(stage: Stage) -> None:
    stage.stop_time()
    lease = await stage.locks().lock("k", ttl=10).acquire()
    stage.stand_still(20)
    with pytest.raises(LeaseLost, match="expired"):
        async with lease:
            raise AssertionError("it never gets here")


async def test_a_block_of_a_hold_keeps_it(stage: Stage) -> None:
    locks = stage.locks()
    lease = await locks.hold("nightly", ttl=30)
    assert lease is not None
    async with lease:
        assert lease.held
    assert await locks.hold("nightly", ttl=30) is None
    assert await lease.release()
    assert await locks.hold("nightly", ttl=30) is not None


async def test_a_block_of_a_leader_lease_ends_its_term(stage: Stage) -> None:
    leader = stage.locks().leader("scheduler", lease=3, renew_deadline=2, retry=0.1)
    async with await leader.campaign() as term:
        assert term.held
    assert not (await leader.current()).held


@pytest.mark.parametrize("again", ["with", "by hand", "stack"])
def test_a_kept_lock_can_be_used_in_blocks_of_every_kind(again: str) -> None:
    with connect("memory://") as locks:
        lock = locks.lock("k", ttl=60)
        for _ in range(2):
            if again == "with":
                with lock as lease:
                    assert lease.state == "held"
            elif again == "by hand":
                lease = lock.__enter__()
                assert lease.state == "held"
                lock.__exit__(None, None, None)
            else:
                with contextlib.ExitStack() as stack:
                    lease = stack.enter_context(lock)
                    stack.push(lease)  # ends it twice, which is harmless
                    assert lease.state == "held"
            assert lease.state == "released"
            assert not lock.locked()


def test_the_end_of_a_block_leaves_a_detached_lease_to_expire() -> None:
    with connect("memory://") as locks:
        lock = locks.lock("k", ttl=60)
        with lock as lease:
            lease.let_run_out()
        assert lock.locked()
        with lease:
            pass
        assert lease.release()
        assert not lock.locked()
