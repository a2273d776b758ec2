"""A worker that was overtaken in a run: the result that it remembers does not keep the attempt from being finished."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.guards.bearer import carried
from holdfast.plane import App
from holdfast.plane.bus.envelope import message_of
from holdfast.plane.locks import registry as families
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.scheduler.placement import PlacementResult
from holdfast.plane.worker.context import Context
from holdfast.plane.worker.staleness import Attempts
from holdfast.plane.worker.worker import Worker
from support.fixtures.scheduling import POOL, TOPIC, Planes, Replica, delivered, holds, started, submitted

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


async def test_a_result_that_came_while_its_job_was_taken_back_counts_when_it_is_sent_once_more(planes: Planes) -> None:
    """The first word of it was about an attempt that was none at that moment, and a bus would drop the same word."""
    plane = await planes.open()
    app = App("crew")
    runs: list[int] = []

    @app.job(TOPIC)
    async def render(payload: Any, *, ctx: Context) -> int:
        runs.append(ctx.attempt)
        return ctx.attempt

    await plane.beat("other", 4)
    job = await plane.submit()
    await plane.scheduler.on_submit(submitted(job))
    plane.clock.push(2)
    assert await plane.placement.take_back(POOL, 1) == 1
    worker = Worker(app, bus=plane.bus, locks=plane.locks, registry=plane.workers)  # it has looked before that
    async with worker:
        await holds(lambda: _results(plane, 1))
        [late] = await plane.staged(subjects.RESULT)
        await plane.scheduler.on_result(delivered(message_of(late)))
        assert plane.scheduler.statistics()["job.result.stale"] == 1
        await plane.beat("other", 4)
        assert await plane.placement.place(job.id) is PlacementResult.DISPATCHED
        await holds(lambda: _results(plane, 2))
        again = (await plane.staged(subjects.RESULT))[-1]
        await plane.scheduler.on_result(delivered(message_of(again)))
    ended = await plane.job(job)
    assert (ended.state, ended.attempt, ended.result, runs) == (JobState.SUCCEEDED, 1, 1, [1])


async def _results(plane: Replica, number: int) -> bool:
    return len(await plane.staged(subjects.RESULT)) >= number
