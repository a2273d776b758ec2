"""Attempts that a worker had no slot for: they cost nothing, delay no other job, and come again."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.plane.locks.registry import RECONCILER
from holdfast.plane.maintenance.reconciler import Reconciler
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Delivery, Job
from holdfast.types import NS
from support.fixtures.scheduling import POOL, Replica, check_histories, finished, run_of, started, submitted
from support.harness.loop_ticks import one_tick

pytestmark = pytest.mark.asyncio


async def dispatched(plane: Replica, **wanted: Any) -> Job:
    """A job that has been handed to the workers."""
    await plane.beat(capacity=100)
    job = await plane.submit(**wanted)
    await plane.scheduler.on_submit(submitted(job))
    return await plane.job(job)


def returned(job: Job, attempt: int = 1) -> Delivery:
    """The word of a worker that has no place for it."""
    return finished(job, attempt, run_of(job), status="returned", error="no place for another")


async def test_an_attempt_that_a_worker_could_not_take_costs_nothing_and_is_sent_again_later_each_time(
    plane: Replica,
) -> None:
    job = await dispatched(plane, tenant="acme", max_attempts=1)
    waits = []
    for _ in range(6):
        await plane.scheduler.on_result(returned(job))
        back = await plane.job(job)
        assert (back.state, back.attempt, back.code) == (JobState.RETRYING, 0, "taken_back")
        assert back.reason == "no place for another"
        assert await plane.running() == ({"acme": 0}, {POOL: 0})
        again = (await plane.staged(subjects.SUBMIT))[-1]
        assert again["not_before_ns"] == back.not_before_ns
        waits.append((back.not_before_ns - plane.now_ns) / NS)
        plane.clock.push(waits[-1] + 0.1)
        await plane.beat()
        await plane.scheduler.on_submit(submitted(job))
        sent = await plane.job(job)
        assert (sent.state, sent.attempt) == (JobState.DISPATCHED, 1)
    assert waits[0] < 1.1
    assert 3.0 < waits[-1] < 8.6
    await plane.scheduler.on_result(finished(job, 1, run_of(job)))
    assert (await plane.job(job)).state is JobState.SUCCEEDED
    assert await check_histories(plane) == {}


async def test_an_attempt_that_somebody_had_begun_counts_also_if_another_worker_could_not_take_it(
    plane: Replica,
) -> None:
    job = await dispatched(plane, max_attempts=2)
    await plane.scheduler.on_started(started(job, 1, run_of(job)))
    await plane.scheduler.on_result(returned(job))
    back = await plane.job(job)
    assert (back.state, back.attempt, back.code) == (JobState.RETRYING, 1, "worker_error")


async def test_a_job_that_came_back_stands_in_line_as_soon_as_one_of_its_topic_has_ended(plane: Replica) -> None:
    """Its own time is a while away; and the place that it waits for is free."""
    await plane.beat(capacity=4)
    first, second, other = [await dispatched(plane) for _ in range(3)]
    await plane.scheduler.on_result(returned(second))
    assert (await plane.job(second)).not_before_ns > 0
    await plane.scheduler.on_result(finished(first, 1, run_of(first)))
    back = await plane.job(second)
    assert (back.state, back.not_before_ns) == (JobState.RETRYING, 0)
    await plane.scheduler.on_result(finished(other, 1, run_of(other)))  # no job waits any more
    assert await plane.job(second) == back


async def test_a_job_that_was_taken_back_may_wait_for_as_long_as_a_new_one(plane: Replica) -> None:
    job = await dispatched(plane)
    await plane.scheduler.on_result(returned(job))
    failed = await dispatched(plane)
    await plane.scheduler.on_result(finished(failed, 1, run_of(failed), error="boom"))
    plane.clock.push(4000)
    reconciler = Reconciler(plane.store, plane.locks)
    await one_tick(plane, RECONCILER, reconciler.tick)
    assert (await plane.job(failed)).state is JobState.TIMEOUT
    assert (await plane.job(job)).state is JobState.RETRYING
    assert reconciler.statistics().stale[JobState.RETRYING] == 1
