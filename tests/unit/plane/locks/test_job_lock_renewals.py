"""A scheduler whose job lock cannot be renewed: its handler is stopped in time, and another finishes the job, once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.aio.lease import Lease
from holdfast.errors import Unavailable
from holdfast.plane.db.batcher import Failed
from holdfast.plane.db.ports import Consumption, Handler
from holdfast.plane.jobs.updates import UpdateRequest, UpdateResult
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job
from holdfast.types import NS
from support.fixtures.databases import until
from support.fixtures.scheduling import Planes, Replica, finished, read_history, run_of, submitted

pytestmark = pytest.mark.asyncio

TTL = 4.0


class Held:
    """A job store whose next change is held up, and its outcome."""

    def __init__(self, plane: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lease: Lease | None = None
        self.stopped: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(plane.store, "update", self)

    async def __call__(self, changes: Sequence[UpdateRequest], **how: Any) -> list[UpdateResult | Failed]:
        (change,) = changes
        assert isinstance(change.lease, Lease)
        self.lease = change.lease
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.stopped.set_result(change.lease.lost.is_set())
            raise
        raise AssertionError("it continues without its lock")


async def dispatched(plane: Replica) -> Job:
    """A job that is with a worker."""
    await plane.beat()
    job = await plane.submit()
    await plane.scheduler.on_submit(submitted(job))
    return await plane.job(job)


@pytest.mark.requires("R121", "R122", "R123", "R127")
async def test_a_handler_whose_renewals_fail_is_stopped_before_anybody_else_can_have_the_lock(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W38, W34: nothing is written, the message comes back, another scheduler finishes, and the job ends once."""
    failing, well = (
        await sqlite_planes.open(family=SCHEDULER_JOB.timed(TTL)),
        await sqlite_planes.open(family=SCHEDULER_JOB.timed(TTL)),
    )
    job = await dispatched(well)
    attempts = 0

    async def no_answer(*_: Any) -> Any:
        nonlocal attempts
        attempts += 1
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(failing.locks.manager.store, "renew_many", no_answer)
    held = Held(failing, monkeypatch)
    result = finished(job, 1, run_of(job)).message
    async with failing.scheduler.serving():
        await failing.bus.publish([result])
        async with asyncio.timeout(30):
            assert await held.stopped, "the lease was lost before the handler was stopped"
        # The lock is still ours in the store: we let go before it can be given away, and do not give it back.
        seen = await well.locks.inspect(SCHEDULER_JOB.key(job=job.id))
        assert held.lease is not None
        assert (seen.held, seen.fence) == (True, held.lease.fence)
        assert await SCHEDULER_JOB.lock(well.locks, job=job.id).try_acquire() is None
        await until(lambda: failing.placement.lock_statistics.abandoned)
        assert await well.job(job) == job, "nothing was written"
        assert await well.bus.pending(subjects.RESULT, subjects.SCHEDULER) == 1, "the message is still there"
    assert attempts >= 3
    assert failing.locks.statistics().unconfirmed >= 2
    async with well.scheduler.serving():
        await well.in_state(job, JobState.SUCCEEDED)
    events = await well.store.events(job.id)
    assert read_history(events) == []
    assert [event.after.terminal for event in events].count(True) == 1
    assert events[-1].fence is not None
    assert events[-1].fence > held.lease.fence
    assert (well.store.duplicate_ends, failing.store.duplicate_ends) == (0, 0)
    assert failing.dead == well.dead == []


async def test_a_message_is_silent_for_half_the_time_of_the_lock_unless_said_otherwise(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W34: so that the lock decides how soon a job is taken over, and not the message."""
    plane = await sqlite_planes.open(family=SCHEDULER_JOB.timed(20.0))
    asked: list[int] = []
    consume = plane.bus.consume

    def noted(how: Consumption, handler: Handler) -> Any:
        asked.append(how.ack_wait_ns)
        return consume(how, handler)

    monkeypatch.setattr(plane.bus, "consume", noted)
    async with plane.scheduler.serving():
        assert set(asked) == {10 * NS}
    asked.clear()
    other = await sqlite_planes.open()
    monkeypatch.setattr(other.bus, "consume", noted)
    async with other.scheduler.serving(ack_wait=7.5):
        assert set(asked) == {15 * NS // 2}


@pytest.mark.requires("R127")
async def test_a_renewal_that_succeeds_again_forgets_the_failures_before_it(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blip of the store costs no job: the handler continues, under the same lease."""
    plane = await sqlite_planes.open(family=SCHEDULER_JOB.timed(TTL))
    job = await dispatched(plane)
    store = plane.locks.manager.store
    renew_many = store.renew_many
    failures = 2

    async def at_first(*arguments: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise Unavailable("the store does not answer")
        return await renew_many(*arguments)

    monkeypatch.setattr(store, "renew_many", at_first)
    change, go = plane.store.update, asyncio.Event()

    async def later(changes: Sequence[UpdateRequest], **how: Any) -> list[UpdateResult | Failed]:
        await go.wait()
        return await change(changes, **how)

    monkeypatch.setattr(plane.store, "update", later)
    handling = asyncio.create_task(plane.scheduler.on_result(finished(job, 1, run_of(job))))
    await until(lambda: plane.locks.statistics().renewed)
    go.set()
    await handling
    assert (await plane.job(job)).state is JobState.SUCCEEDED
    counts = plane.placement.lock_statistics
    assert (counts.abandoned, plane.locks.statistics().lost, failures) == (0, 0, 0)
