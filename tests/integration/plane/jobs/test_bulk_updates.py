"""Changes of many jobs in one transaction, on SQLite and Postgres: each is decided separately, as if it were alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import FencedOut
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.jobs.store import Changed, PoolFull, TenantFull, Writing
from holdfast.plane.locks import registry as families
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import InvalidTransition, JobState
from holdfast.plane.model.records import Change, Job, Submission
from support.fixtures.scheduling import (
    POOL,
    TOPIC,
    Planes,
    Replica,
    enqueue,
    finished,
    read_history,
    run_of,
    started,
    submitted,
)

pytestmark = pytest.mark.asyncio

DISPATCH = [Change(JobState.SCHEDULED, actor="s"), Change(JobState.DISPATCHED, actor="s")]


def fence_of(job: Job, fence: int) -> CarriedFence:
    return CarriedFence(families.SCHEDULER_JOB.key(job=job.id), fence)


def writes(plane: Replica) -> int:
    """How many transactions the database ran."""
    counts = plane.database.statistics()
    return counts.get("write_works", 0) + counts.get("writes", 0)


def boom(job: Job) -> Writing:
    raise ZeroDivisionError(job.id)


async def test_one_batch_has_writes_refusals_and_errors_side_by_side(planes: Planes) -> None:
    plane = await planes.open(slots=1)
    wanted = ("acme", "acme", "other", "third", "fourth", "fifth")
    jobs = [await plane.submit(tenant=tenant) for tenant in wanted]
    first, full, stale, wrong, broken, crowded = jobs
    await plane.store.change(fence_of(stale, 9), stale.id, lambda _: Writing())
    before = writes(plane)

    def dispatch(capacity: int) -> Any:
        return lambda job: Writing(DISPATCH, [subjects.submitted(job.id, again="told")], capacity=capacity)

    ends = await asyncio.gather(
        plane.store.change(fence_of(first, 1), first.id, dispatch(1)),
        plane.store.change(fence_of(full, 1), full.id, dispatch(5)),
        plane.store.change(fence_of(stale, 1), stale.id, dispatch(5)),
        plane.store.change(fence_of(wrong, 1), wrong.id, lambda _: Writing([Change(JobState.OUTPUT_QUARANTINED)])),
        plane.store.change(fence_of(broken, 1), broken.id, boom),
        plane.store.change(fence_of(crowded, 1), crowded.id, dispatch(1)),
        plane.store.change(CarriedFence(families.SCHEDULER_JOB.key(job="nobody"), 1), "nobody", boom),
        return_exceptions=True,
    )
    assert writes(plane) == before + 1
    assert isinstance(ends[0], Changed)
    kinds = [type(each) for each in ends[1:6]]
    assert kinds == [TenantFull, FencedOut, InvalidTransition, ZeroDivisionError, PoolFull]
    assert ends[6] == Changed(None, None)
    assert ends[0].after == await plane.job(first)
    assert [await plane.job(job) for job in (full, wrong, broken, crowded)] == [full, wrong, broken, crowded]
    tenants, pools = await plane.running()
    assert ({name: count for name, count in tenants.items() if count}, pools) == ({"acme": 1}, {POOL: 1})
    told = [row["id"] for row in await plane.staged(subjects.SUBMIT) if "told" in row["id"]]
    assert told == [f"job.submit:{first.id}:told"]


async def test_two_changes_of_one_job_come_one_after_the_other(plane: Replica) -> None:
    job = await plane.submit()

    def move(*changes: Change) -> Any:
        return lambda _: Writing(list(changes))

    ends = await asyncio.gather(
        plane.store.change(fence_of(job, 1), job.id, move(*DISPATCH)),
        plane.store.change(fence_of(job, 1), job.id, move(Change(JobState.RUNNING, actor="w"))),
        plane.store.change(fence_of(job, 1), job.id, move(Change(JobState.SUCCEEDED, result=[1], actor="w"))),
    )
    assert [end.after.version for end in ends if end.after is not None] == [2, 3, 4]
    assert ends[2].after == await plane.job(job)
    assert (await plane.running())[1] == {POOL: 0}


async def test_submissions_that_come_together_are_made_together_and_a_known_one_gets_its_own_answer(
    plane: Replica,
) -> None:
    known, _ = await enqueue(plane.store, Submission(TOPIC, tenant="acme", idempotency_key="k"), POOL)
    wishes = [Submission(TOPIC, {"n": n}, tenant="acme") for n in range(5)]
    fresh = await asyncio.gather(*(enqueue(plane.store, wish, POOL, [subjects.submitted()]) for wish in wishes))
    assert [await plane.job(job) for job, _ in fresh] == [job for job, _ in fresh]
    assert all(made for _, made in fresh)
    again = Submission(TOPIC, tenant="acme", idempotency_key="k")
    mixed = await asyncio.gather(*(enqueue(plane.store, wish, POOL) for wish in (*wishes[:2], again)))
    assert [made for _, made in mixed] == [True, True, False]
    assert mixed[2][0].id == known.id


async def test_a_start_that_is_not_heard_of_is_written_with_the_result_and_nobody_is_told_to_stop(
    plane: Replica,
) -> None:
    await plane.beat(capacity=100)
    job = await plane.submit()
    await plane.scheduler.on_submit(submitted(job))
    run = run_of(job, 7)
    said = finished(job, 1, run, status="succeeded", result={"ok": True})
    await plane.scheduler.on_result(said)  # all that is heard of a very short attempt
    after = await plane.job(job)
    assert (after.state, after.run_fence, after.version) == (JobState.SUCCEEDED, 7, 3)
    assert [str(event.after) for event in await plane.store.events(job.id)][-2:] == ["RUNNING", "SUCCEEDED"]
    assert read_history(await plane.store.events(job.id)) == []
    await plane.scheduler.on_started(started(job, 1, run))  # and once more, late
    assert await plane.job(job) == after
    assert await plane.staged(subjects.STOP) == []
