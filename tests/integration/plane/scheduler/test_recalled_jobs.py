"""Jobs that were sent to workers and taken back: each is run once, although two messages ask for it.

And jobs that look unstarted, because the reports of their workers are still unread.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.plane import App
from holdfast.plane.bus.envelope import message_of
from holdfast.plane.db.ports import Consumption
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job, Message
from holdfast.plane.scheduler.placement import PlacementResult
from holdfast.plane.scheduler.prefetch import AHEAD
from holdfast.plane.worker.staleness import Attempts
from holdfast.plane.worker.worker import Worker
from holdfast.runtime.system import SystemClock
from support.fixtures.buses import ScriptedClock
from support.fixtures.scheduling import (
    POOL,
    TOPIC,
    Planes,
    Replica,
    cancelled,
    delivered,
    finished,
    holds,
    run_of,
    submitted,
)

pytestmark = pytest.mark.asyncio


async def test_of_the_two_messages_of_a_job_that_was_taken_back_and_sent_again_the_older_is_not_run(
    planes: Planes,
) -> None:
    """Both are in the queue. One worker would run the older and finish, and another would run the newer."""
    plane = await planes.open()
    app, runs = App("crew"), list[Any]()
    app.job(TOPIC)(runs.append)
    await plane.beat("other", 4)
    job = await plane.submit(payload="once")
    await plane.scheduler.on_submit(submitted(job))
    plane.clock.push(2)
    assert await plane.placement.take_back(POOL, 1) == 1
    await plane.beat("other", 4)
    assert await plane.placement.place(job.id) is PlacementResult.DISPATCHED
    assert len(await plane.staged(subjects.WORK)) == 2
    currency = Attempts(plane.database)
    worker = Worker(
        app,
        bus=plane.bus,
        locks=plane.locks,
        registry=plane.workers,
        currency=currency,
        concurrency=1,
        clock=plane.clock,
    )
    async with worker:
        await holds(lambda: _nothing_waits(plane))
        counts = worker.statistics()
        assert (counts.outdated, counts.repeated, runs) == (1, 0, ["once"])
    [result] = await plane.staged(subjects.RESULT)
    await plane.scheduler.on_result(delivered(message_of(result)))
    ended = await plane.job(job)
    assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 1)


async def test_what_waited_is_looked_up_also_by_a_worker_whose_clock_is_behind(planes: Planes) -> None:
    """By its own clock, none of these messages was sent yet."""
    plane = await planes.open()
    app, runs = App("crew"), list[Any]()
    app.job(TOPIC)(runs.append)
    plane.clock.push(60)
    await plane.beat("other", 4)
    job = await plane.submit(payload="cancelled")
    await plane.scheduler.on_submit(submitted(job))
    await plane.scheduler.on_cancel(cancelled(job))
    parts: dict[str, Any] = {"bus": plane.bus, "locks": plane.locks, "registry": plane.workers}
    async with Worker(app, **parts, currency=Attempts(plane.database), clock=SystemClock()) as worker:
        await holds(lambda: _nothing_waits(plane))
        assert (worker.statistics().outdated, runs) == (1, [])


async def test_what_waited_is_looked_up_also_by_a_worker_whose_clock_hides_that_it_waited(planes: Planes) -> None:
    """It is behind the scheduler's by as much as the message has waited: by its own clock that was sent just now."""
    plane = await planes.open()
    app, runs = App("crew"), list[Any]()
    app.job(TOPIC)(runs.append)
    await plane.beat("other", 4)
    job = await plane.submit(payload="cancelled")
    await plane.scheduler.on_submit(submitted(job))
    behind = ScriptedClock()
    behind.at_ns = (await plane.job(job)).updated_ns
    [sent] = await plane.staged(subjects.WORK)
    await plane.scheduler.on_cancel(cancelled(job))

    async def has_waited() -> bool:
        async with plane.locks.lock("what time is it", ttl=5) as lease:
            return bool(lease.fence - sent["fence"] > 600_000)  # microseconds

    await holds(has_waited)
    parts: dict[str, Any] = {"bus": plane.bus, "locks": plane.locks, "registry": plane.workers, "clock": behind}
    async with Worker(app, **parts, currency=Attempts(plane.database)) as worker:
        await holds(lambda: _nothing_waits(plane))
        assert (worker.statistics().outdated, runs) == (1, [])


async def _nothing_waits(plane: Replica) -> bool:
    return not await plane.bus.pending(subjects.work_subject(POOL), subjects.WORKERS)


async def test_what_was_done_while_the_scheduler_stood_still_is_not_taken_back(planes: Planes) -> None:
    """It was sent ahead, its workers are done with it, and all that they have said is heard by the next scheduler."""
    plane = await planes.open()
    jobs = await _sent(plane, 1 + AHEAD)
    plane.clock.push(2)
    await plane.bus.publish([_said(job) for job in jobs])
    await plane.beat(capacity=1)  # it takes one at a time, and so much is not sent ahead by one who has heard nothing
    dispatcher = plane.scheduler.dispatcher

    async def looked() -> bool:
        return dispatcher.statistics().get("rounds", 0) > 0

    async with dispatcher.running():
        await holds(looked)
        assert (await plane.queries.counts())[JobState.RETRYING] == 0
        async with plane.bus.consume(Consumption(subjects.RESULT, subjects.SCHEDULER), plane.scheduler.on_result):
            await plane.reach(len(jobs), JobState.SUCCEEDED)
    for job in jobs:
        assert JobState.RETRYING not in [event.after for event in await plane.store.events(job.id)]


async def _sent(plane: Replica, number: int) -> list[Job]:
    """Jobs that are with workers, one after another."""
    await plane.beat(capacity=number)
    jobs = [await plane.submit() for _ in range(number)]
    for job in jobs:
        assert await plane.placement.place(job.id) is PlacementResult.DISPATCHED
    return jobs


def _said(job: Job) -> Message:
    """The word of a worker that is done with a job."""
    return finished(job, 1, run_of(job)).message
