"""Unstarted jobs: not those about which reports of workers are, or may be, unread."""

from __future__ import annotations

import pytest

from holdfast.plane.db.ports import Consumption
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job, Message
from holdfast.plane.scheduler.placement import PlacementResult
from holdfast.plane.scheduler.prefetch import WATCH_NS
from holdfast.types import NS
from support.fixtures.scheduling import POOL, Planes, Replica, finished, holds, run_of

pytestmark = pytest.mark.asyncio


async def test_jobs_are_not_taken_back_while_words_wait_that_may_be_about_them(planes: Planes) -> None:
    plane = await planes.open()
    done, stuck = await _sent(plane, 2)
    plane.clock.push(2)
    await plane.bus.publish([_said(done)])
    for _ in range(3):
        assert await plane.placement.take_back(POOL, 2) == 0
        assert plane.placement.unstarted.watches(POOL)
    async with plane.bus.consume(Consumption(subjects.RESULT, subjects.SCHEDULER), plane.scheduler.on_result):
        await plane.in_state(done, JobState.SUCCEEDED)
        await holds(lambda: _heard(plane))
    assert await plane.placement.take_back(POOL, 2) == 1
    assert not plane.placement.unstarted.watches(POOL)
    assert (await plane.job(stuck)).state is JobState.RETRYING


async def test_words_of_others_do_not_keep_jobs_with_workers_who_do_not_begin_them(planes: Planes) -> None:
    """Some wait at any time, on a busy plane; what counts is that those which were there are heard."""
    plane = await planes.open()
    other, stuck = await _sent(plane, 2)
    plane.clock.push(2)
    await plane.bus.publish([_said(other)])
    assert await plane.placement.take_back(POOL, 1) == 0  # of the one that was sent last
    async with plane.bus.consume(Consumption(subjects.RESULT, subjects.SCHEDULER), plane.scheduler.on_result):
        await holds(lambda: _heard(plane))
    await plane.bus.publish([_said(other, "again")])
    assert await plane.placement.take_back(POOL, 1) == 1
    assert (await plane.job(stuck)).state is JobState.RETRYING


async def test_a_word_that_is_never_heard_does_not_keep_jobs_for_ever(planes: Planes) -> None:
    plane = await planes.open()
    [stuck] = await _sent(plane, 1)
    plane.clock.push(2)
    await plane.bus.publish([_said(stuck, "unheard")])
    assert await plane.placement.take_back(POOL, 1) == 0
    plane.clock.push(WATCH_NS / NS)
    assert await plane.placement.take_back(POOL, 1) == 1


async def _sent(plane: Replica, number: int) -> list[Job]:
    """Jobs that are with workers, one after another."""
    await plane.beat(capacity=number)
    jobs = [await plane.submit() for _ in range(number)]
    for job in jobs:
        assert await plane.placement.place(job.id) is PlacementResult.DISPATCHED
    return jobs


def _said(job: Job, which: str = "done") -> Message:
    """The word of a worker that is done with a job."""
    message = finished(job, 1, run_of(job)).message
    return Message(f"{message.id}:{which}", message.subject, message.body, message.key, message.fence)


async def _heard(plane: Replica) -> bool:
    return not await plane.bus.pending(subjects.RESULT, subjects.SCHEDULER)
