"""What people who watch are shown of jobs and dead letters: the right lines and numbers, whatever else is stored."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import ATTEMPTS_LABEL
from holdfast.plane.model.records import Job
from holdfast.plane.service.status import SPAN_NS, SPANS, EndedJobs, StatusQueries
from holdfast.types import NS
from support.fixtures.scheduling import Replica, cancelled, finished, run_of, submitted

pytestmark = pytest.mark.asyncio


async def ended(plane: Replica, *, tenant: str, error: str | None = None, **wanted: Any) -> Job:
    """A job that has come to its end at the first attempt."""
    job = await plane.submit(tenant=tenant, max_attempts=1, payload={"large": "x" * 1000}, **wanted)
    await plane.scheduler.on_submit(submitted(job))
    await plane.scheduler.on_result(finished(job, 1, run_of(job), **({} if error is None else {"error": error})))
    return job


async def span(plane: Replica, job: Job, now_ns: int) -> int:
    """In which of the spans that are shown a job ended."""
    stored = await plane.store.get(job.id)
    assert stored is not None
    return SPANS - 1 - (now_ns // SPAN_NS - stored.updated_ns // SPAN_NS)


async def test_lines_are_the_newest_jobs_and_those_at_hand_or_dead_however_old(plane: Replica) -> None:
    await plane.beat()
    status = StatusQueries(plane.database)
    waiting, dead = (
        await plane.submit(tenant="blue", topic="unserved"),
        await ended(plane, tenant="red", error="x"),
    )
    done = []
    for _ in range(6):
        plane.clock.push(1)
        done.append(await ended(plane, tenant="red"))
    lines = await status.briefs(tenant=None, newest=3, each=5)
    assert [line.id for line in lines] == [*(job.id for job in reversed(done[-3:])), dead.id, waiting.id]
    (last,) = (line for line in lines if line.id == done[-1].id)
    stored = await plane.store.get(last.id)
    assert stored is not None
    for name in set(type(last).__slots__) - {"fraction", "note"}:  # these are reported, and not of the job itself
        assert getattr(last, name) == getattr(stored, name), name
    assert [line.id for line in await status.briefs(tenant="blue")] == [waiting.id]
    assert {line.tenant for line in await status.briefs(tenant="red")} == {"red"}
    assert await status.briefs(tenant="green") == []
    with pytest.raises(BadInput):
        await status.briefs(tenant=None, newest=0)


async def test_a_tally_counts_each_tenant_by_state_and_says_when_jobs_ended(plane: Replica) -> None:
    await plane.beat()
    status = StatusQueries(plane.database)
    await ended(plane, tenant="blue")
    plane.clock.push(SPANS * SPAN_NS / NS)  # too long ago to be shown as an end
    await plane.beat()
    well = [await ended(plane, tenant="blue") for _ in range(3)]
    plane.clock.push(2 * SPAN_NS / NS)
    dead = await ended(plane, tenant="blue", error="boom")
    await plane.scheduler.on_cancel(cancelled(await plane.submit(tenant="red")))
    await plane.submit(tenant="red")
    tally = await status.tally(plane.clock.now().wall)
    blue, red, every = tally.counts("blue"), tally.counts("red"), tally.counts(None)
    assert (blue[JobState.SUCCEEDED], blue[JobState.FAILED], blue[JobState.PENDING]) == (4, 1, 0)
    assert (red[JobState.CANCELLED], red[JobState.PENDING]) == (1, 1)
    assert sum(every.values()) == sum(blue.values()) + sum(red.values()) == 7
    ends = tally.ended("blue")
    assert (len(ends.succeeded), len(ends.otherwise)) == (SPANS, SPANS)
    spans = [await span(plane, job, tally.at_ns) for job in (*well, dead)]
    assert ends.succeeded == tuple(spans[:3].count(each) for each in range(SPANS))
    assert ends.otherwise == tuple(spans[3:].count(each) for each in range(SPANS))
    assert sum(tally.ended(None).otherwise) == 2
    assert (tally.letters("blue"), tally.letters("red"), tally.letters(None)) == (1, 0, 1)
    await plane.letters.retry(dead.id, actor="ada")
    assert (await status.tally(plane.clock.now().wall)).letters("blue") == 0


async def test_a_failed_attempt_of_a_step_that_allows_more_is_counted_apart(plane: Replica) -> None:
    await plane.beat()
    status = StatusQueries(plane.database)
    ids = ("r:a@1", "r:a[12]@2", "r:a@10", "r:b@3", "alone@1")
    allowed = ("3", "4", "11", "3", None)  # the fourth is the last attempt, and the last one is of no step
    for own_id, attempts in zip(ids, allowed, strict=True):
        labels = {} if attempts is None else {ATTEMPTS_LABEL: attempts, "other": "3"}
        await ended(plane, tenant="blue", error="boom", id=own_id, labels=labels)
    fatal = await plane.submit(tenant="blue", max_attempts=1, id="r:c@1", labels={ATTEMPTS_LABEL: "3"})
    await plane.scheduler.on_submit(submitted(fatal))
    await plane.scheduler.on_result(finished(fatal, 1, run_of(fatal), error="boom", retryable=False))
    await ended(plane, tenant="blue", id="r:d@1", labels={ATTEMPTS_LABEL: "3"})
    tally = await status.tally(plane.clock.now().wall)
    assert tally.counts("blue")[JobState.FAILED] == 6
    assert (tally.attempts_retried("blue"), tally.attempts_retried("red"), tally.attempts_retried(None)) == (3, 0, 3)
    assert sum(tally.ended("blue").otherwise) == 3


async def test_the_pace_is_that_of_the_last_minute() -> None:
    quiet, busy = (0,) * (SPANS - 13), (6,) * 13
    assert EndedJobs((9,) * (SPANS - 13) + (6,) * 12 + (0,), (0,) * SPANS, 0).per_second == 72 / 60
    assert EndedJobs(quiet + busy, (0,) * SPANS, SPAN_NS - 1).per_second == pytest.approx(78 / 65)
    assert EndedJobs((0,) * SPANS, quiet + busy, SPAN_NS - 1).per_second == pytest.approx(78 / 65)
