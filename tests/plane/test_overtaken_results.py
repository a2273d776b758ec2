"""A worker that was overtaken in a run: the result that it remembers does not keep the attempt from being finished."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures_scheduling import TOPIC, Planes, holds, started, submitted
from holdfast.core.jobs import JobState
from holdfast.guards.bearer import carried
from holdfast.plane import App, families, subjects
from holdfast.plane.attempts import Attempts
from holdfast.plane.worker import Worker

pytestmark = pytest.mark.asyncio


async def test_an_attempt_whose_result_came_after_another_worker_had_begun_it_is_run_again(planes: Planes) -> None:
    """Its message was delivered twice, the second worker was heard of before the first one's result, and then died."""
    plane = await planes.open()
    app, runs = App("billing"), list[Any]()
    app.job(TOPIC)(runs.append)
    currency = Attempts(plane.database)
    async with Worker(app, bus=plane.bus, locks=plane.locks, registry=plane.workers, currency=currency) as first:
        await holds(plane.workers.live)
        job = await plane.submit()
        await plane.scheduler.on_submit(submitted(job))
        await holds(lambda: plane.staged(subjects.RESULT))
        second = await families.WORKER_JOB.lock(plane.locks, job=job.id).acquire(10)
        await plane.scheduler.on_started(started(job, 1, carried(second), worker="second"))
        async with plane.scheduler.serving():

            async def refused() -> bool:
                return plane.scheduler.statistics().get(f"{subjects.RESULT}.stale") == 1

            await holds(refused)
            assert (await plane.job(job)).state is JobState.RUNNING
            await second.release()
            assert await plane.placement.redispatch(job.id, run_fence=second.fence)
            await plane.in_state(job, JobState.SUCCEEDED)
        assert len(runs) == 2
        assert first.statistics().repeated == 0
    assert (await plane.job(job)).attempt == 1
