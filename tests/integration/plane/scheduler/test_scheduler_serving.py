"""Schedulers at work on the real bus: contention, rolling restarts, and processes that do not dispatch themselves."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.plane.db.ports import Consumption
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from support.fixtures.databases import until
from support.fixtures.scheduling import FakeWorkers, Planes, check_histories, finished, run_of, submitted

pytestmark = pytest.mark.asyncio


@pytest.mark.requires("R146", "R148")
async def test_contention_uses_up_no_delivery_budget(sqlite_planes: Planes) -> None:
    """W31: here a single failure would be the end of the message."""
    plane, other = await sqlite_planes.open(), await sqlite_planes.open()
    await plane.beat()
    job = await plane.submit()
    lease = await other.hold(job)
    how = Consumption(subjects.SUBMIT, subjects.SCHEDULER, max_failures=1)
    async with plane.bus.consume(how, plane.scheduler.handlers[subjects.SUBMIT]):
        await until(lambda: plane.placement.lock_statistics.busy)
        assert (await plane.job(job)).state is JobState.PENDING
        await lease.release()
        await plane.in_state(job, JobState.DISPATCHED)
    assert plane.dead == []


async def test_a_rolling_restart_under_load_loses_and_repeats_nothing(planes: Planes) -> None:
    """W33: each scheduler is stopped in the middle of its work, and another takes its place."""
    keeper = await planes.open()
    await keeper.beat(capacity=4)
    workers = FakeWorkers(keeper)
    total = 60
    async with workers.serving(4):
        submitting = asyncio.gather(*(keeper.submit(tenant=f"t{n % 3}") for n in range(total)))
        done = 0
        while done < total - 4:
            replica = await planes.open()
            async with replica.scheduler.serving():
                await keeper.reach(done := min(total - 4, done + 14), JobState.SUCCEEDED)
        await submitting
        last = await planes.open()
        async with last.scheduler.serving():
            await keeper.reach(total, JobState.SUCCEEDED)
    assert await check_histories(keeper) == {}
    assert len(workers.ran) == len(set(workers.ran)) == total
    assert all(each.dead == [] for each in planes.replicas)


async def test_a_place_that_was_freed_by_a_process_that_does_not_dispatch_is_filled(planes: Planes) -> None:
    """A time limit, or a cancel, is written elsewhere: the listener of the pool tells the schedulers."""
    plane, elsewhere = await planes.open(idle_ns=3600 * 10**9), await planes.open()
    await plane.beat(capacity=1)
    first = await plane.submit()
    async with plane.scheduler.serving():
        await plane.in_state(first, JobState.DISPATCHED)
        second = await plane.submit()
        await plane.heard()
        await elsewhere.scheduler.on_result(finished(first, 1, run_of(first)))
        await plane.in_state(second, JobState.DISPATCHED)


async def test_a_scheduler_that_died_after_freeing_a_place_is_made_up_for_by_the_next_look(planes: Planes) -> None:
    plane, dying = await planes.open(idle_ns=50_000_000), await planes.open()
    await plane.beat(capacity=1)
    first, second = await plane.submit(), await plane.submit()
    await dying.scheduler.on_submit(submitted(first))
    async with plane.scheduler.serving():
        await plane.heard()
        dying.store.slots.on_freed = lambda _: None  # it would dispatch the next one itself, and does not get to it
        await dying.scheduler.on_result(finished(first, 1, run_of(first)))
        await plane.in_state(second, JobState.DISPATCHED)
