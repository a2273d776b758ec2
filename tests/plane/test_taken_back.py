"""Jobs that were sent to workers and taken back: each is run once, although two messages ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures_scheduling import POOL, TOPIC, Planes, Replica, delivered, holds, submitted
from holdfast.core.jobs import JobState
from holdfast.plane import App, subjects
from holdfast.plane.attempts import Attempts
from holdfast.plane.envelope import message_of
from holdfast.plane.placement import Placed
from holdfast.plane.worker import Worker

pytestmark = pytest.mark.asyncio


async def test_of_the_two_messages_of_a_job_that_was_taken_back_and_sent_again_the_older_is_not_run(
    planes: Planes,
) -> None:
    """Both are in the queue. One worker would run the older, be done at once, and another would run the newer."""
    plane = await planes.open()
    app, runs = App("crew"), list[Any]()
    app.job(TOPIC)(runs.append)
    await plane.beat("other", 4)
    job = await plane.submit(payload="once")
    await plane.scheduler.on_submit(submitted(job))
    plane.clock.push(2)
    assert await plane.placement.take_back(POOL, 1) == 1
    await plane.beat("other", 4)
    assert await plane.placement.place(job.id) is Placed.DISPATCHED
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


async def _nothing_waits(plane: Replica) -> bool:
    return not await plane.bus.pending(subjects.work_subject(POOL), subjects.WORKERS)
