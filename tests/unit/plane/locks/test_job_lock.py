"""The lock of one job as handlers take it: busy, store trouble, abandonment, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import holdfast.aio
from holdfast.aio.client import Locks
from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import BadInput, FencedOut, LeaseLost, LockBusy, RetryLater, Unavailable
from holdfast.plane.bus.delivery_rules import Kind, end_of
from holdfast.plane.locks.item_lock import Abandoned
from holdfast.plane.locks.job_lock import JobLockStatistics, job_lock
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.types import MS

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def locks(tmp_path: Path) -> AsyncIterator[Locks]:
    async with holdfast.aio.connect(f"sqlite:///{tmp_path / 'leases.db'}") as opened:
        yield opened


@pytest.mark.requires("R50", "R54", "R121", "R122")
async def test_the_lock_is_held_under_its_name_for_a_minute_and_given_back_at_the_end(locks: Locks) -> None:
    async with job_lock(locks, "42") as lease:
        assert lease.key == "holdfast:scheduler:job:42"
        assert lease.ttl == 60.0
        assert (await locks.inspect(lease.key)).held
    assert not (await locks.inspect("holdfast:scheduler:job:42")).held
    assert (SCHEDULER_JOB.renew_every, SCHEDULER_JOB.acquire_timeout) == (20.0, 2.0)


@pytest.mark.requires("R146", "R148", "R149")
async def test_busy_is_given_back_for_exactly_half_a_second_and_is_nobodys_failure(locks: Locks) -> None:
    counts = JobLockStatistics()
    async with SCHEDULER_JOB.lock(locks, job="42"):
        for _ in range(3):
            with pytest.raises(RetryLater) as later:
                async with job_lock(locks, "42", statistics=counts, timeout=0.0):
                    raise AssertionError("two holders")
            assert later.value.delay == 0.5
            assert str(later.value) == "retry after 500ms: job lock busy"
            assert isinstance(later.value.__cause__, LockBusy)
            said = end_of(later.value)
            assert (said.kind, said.delay_ns, said.kind.counts) == (Kind.BUSY, 500 * MS, False)
    assert (counts.busy, counts.waited_in_vain.read().number, counts.held.read().number) == (3, 3, 0)


async def test_jitter_is_bounded_and_can_be_switched_on_and_back_at_run_time(locks: Locks) -> None:
    async def delay(delays: RetryDelays) -> float:
        with pytest.raises(RetryLater) as later:
            async with job_lock(locks, "42", delays, timeout=0.0):
                raise AssertionError("two holders")
        return later.value.delay

    plain = RetryDelays()
    async with SCHEDULER_JOB.lock(locks, job="42"):
        drawn = [await delay(plain.with_jitter()) for _ in range(40)]
        assert all(0.3 <= each <= 0.7 for each in drawn)
        assert len(set(drawn)) > 1
        assert await delay(plain.with_jitter().without_jitter()) == 0.5


async def test_a_handler_waits_for_the_one_before_it_and_does_not_give_up_at_once(locks: Locks) -> None:
    counts = JobLockStatistics()
    entered = asyncio.Event()
    leave = asyncio.Event()

    async def first() -> None:
        async with job_lock(locks, "42", statistics=counts):
            entered.set()
            await leave.wait()

    async def second() -> int:
        async with job_lock(locks, "42", statistics=counts) as lease:
            return lease.fence

    holding = asyncio.create_task(first())
    await entered.wait()
    waiting = asyncio.create_task(second())
    await asyncio.sleep(0)
    leave.set()
    await holding
    assert await waiting > 0
    assert (counts.waited.read().number, counts.held.read().number, counts.busy) == (2, 2, 0)


@pytest.mark.requires("R147")
async def test_trouble_with_the_store_is_another_class_given_back_for_a_second(locks: Locks, tmp_path: Path) -> None:
    counts = JobLockStatistics()
    broken = holdfast.aio.connect(f"sqlite:///{tmp_path / 'no such folder' / 'leases.db'}")
    with pytest.raises(RetryLater) as later:
        async with job_lock(broken, "42", statistics=counts):
            raise AssertionError("without a lock")
    await broken.close()
    assert later.value.delay == 1.0
    assert end_of(later.value).kind is Kind.BACKEND
    assert counts.backend_errors == 1


async def test_trouble_with_the_database_inside_is_given_back_for_a_second_too(locks: Locks) -> None:
    with pytest.raises(RetryLater) as later:
        async with job_lock(locks, "42"):
            raise Unavailable("no database")
    assert (later.value.delay, end_of(later.value).kind) == (1.0, Kind.BACKEND)
    assert not (await locks.inspect("holdfast:scheduler:job:42")).held


@pytest.mark.requires("R123", "R124", "R127")
async def test_a_body_whose_lease_is_lost_is_stopped_and_the_outcome_is_a_typed_retry(locks: Locks) -> None:
    """W38: abandonment was a plain error, so the message was acknowledged and the job left half-way."""
    counts = JobLockStatistics()
    reached_the_end = False
    with pytest.raises(Abandoned) as abandoned:
        async with job_lock(locks, "42", statistics=counts) as lease:
            await locks.force_release(lease.key, reason="the test takes it away")
            with pytest.raises(LeaseLost):
                await lease.renew()  # the store says that it is not ours
            await asyncio.Event().wait()
            reached_the_end = True
    assert not reached_the_end
    assert isinstance(abandoned.value, RetryLater)
    assert isinstance(abandoned.value.__cause__, LeaseLost)
    assert str(abandoned.value).startswith("retry after 500ms: job lock abandoned: ")
    assert counts.abandoned == 1


@pytest.mark.requires("R124")
async def test_the_lock_of_a_successor_is_not_released_by_the_one_who_lost_it(locks: Locks, tmp_path: Path) -> None:
    async with holdfast.aio.connect(f"sqlite:///{tmp_path / 'leases.db'}") as elsewhere:
        with pytest.raises(Abandoned):
            async with job_lock(locks, "42") as lease:
                await elsewhere.force_release(lease.key, reason="the test takes it away")
                successor = await SCHEDULER_JOB.lock(elsewhere, job="42").acquire()
        assert (await elsewhere.inspect(successor.key)).fence == successor.fence
        await successor.release()


async def test_a_write_that_was_fenced_out_is_an_abandonment_and_never_a_success(locks: Locks) -> None:
    with pytest.raises(Abandoned) as abandoned:
        async with job_lock(locks, "42"):
            raise FencedOut("stale", fence=1, seen=2)
    assert isinstance(abandoned.value.__cause__, FencedOut)


async def test_errors_of_the_body_pass_through_and_the_lock_is_free_again(locks: Locks) -> None:
    with pytest.raises(KeyError):
        async with job_lock(locks, "42"):
            raise KeyError("x")
    with pytest.raises(LockBusy):
        async with job_lock(locks, "42"):
            raise LockBusy("of another lock")
    assert not (await locks.inspect("holdfast:scheduler:job:42")).held


async def test_a_handler_that_is_cancelled_gives_the_lock_back(locks: Locks) -> None:
    entered = asyncio.Event()

    async def body() -> None:
        async with job_lock(locks, "42"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (await locks.inspect("holdfast:scheduler:job:42")).held


async def test_what_is_no_job_id_is_refused(locks: Locks) -> None:
    with pytest.raises(BadInput):
        async with job_lock(locks, "a b"):
            raise AssertionError("held")


async def test_the_locks_of_a_process_that_ends_send_the_work_away(locks: Locks) -> None:
    await locks.close()
    with pytest.raises(RetryLater) as later:
        async with job_lock(locks, "42"):
            raise AssertionError("held")
    assert end_of(later.value).kind is Kind.BACKEND
