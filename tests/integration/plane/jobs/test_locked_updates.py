"""Concurrent changes of jobs under their locks: one request, one transaction, and a separate decision for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import BadInput, LockBusy, RetryLater, Timeout, Unavailable
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.jobs.updates import Changed, UpdateRequest, Writing
from holdfast.plane.locks.item_lock import Abandoned
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.plane.model.job_states import InvalidTransition, JobState
from holdfast.plane.model.records import Change, Job
from support.fixtures.databases import until
from support.fixtures.scheduling import Planes, Replica, finished, read_history, run_of

pytestmark = pytest.mark.asyncio


def end(fence: CarriedFence) -> Any:
    """Deny it, from whatever state: a change that says which fence it was decided under."""
    return lambda job: Writing([Change(JobState.DENIED, reason=str(fence.fence), actor="test")])


async def waiting(plane: Replica, number: int) -> list[Job]:
    return [await plane.submit(payload=at) for at in range(number)]


async def test_jobs_that_come_together_share_a_request_for_locks_and_a_transaction(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = await sqlite_planes.open()
    jobs = await waiting(plane, 20)
    store = plane.locks.ports.store
    asked: list[int] = []
    given: list[int] = []
    acquire_many, release_many, update = store.acquire_many, store.release_many, plane.store.update  # type: ignore[attr-defined]

    async def acquired(asks: Sequence[Any], timeout_ns: int) -> Any:
        asked.append(len(asks))
        return await acquire_many(asks, timeout_ns)

    async def released(grants: Sequence[Any], timeout_ns: int) -> Any:
        given.append(len(grants))
        return await release_many(grants, timeout_ns)

    monkeypatch.setattr(store, "acquire_many", acquired)
    monkeypatch.setattr(store, "release_many", released)
    written: list[list[UpdateRequest]] = []

    async def changed(changes: Sequence[UpdateRequest], **how: Any) -> Any:
        written.append(list(changes))
        return await update(changes, **how)

    monkeypatch.setattr(plane.store, "update", changed)
    found = await asyncio.gather(*(plane.placement.change(job.id, end) for job in jobs))
    assert (asked, given, [len(each) for each in written]) == ([20], [20], [20])
    assert [each.after.state for each in found if each.after is not None] == [JobState.DENIED] * 20
    fences = [each.after.fence for each in found if each.after is not None]
    assert len(set(fences)) == 20, "each was written under a lease of its own"
    assert [each.after.reason for each in found if each.after is not None] == [str(fence) for fence in fences]
    assert not await plane.locks.list("holdfast:scheduler:job:")
    counts = plane.placement.lock_statistics
    assert (counts.waited.read().number, counts.held.read().number, counts.busy) == (20, 20, 0)
    for job in jobs:
        assert read_history(await plane.store.events(job.id)) == []


async def test_what_becomes_of_one_is_nobody_elses(planes: Planes) -> None:
    """In one file, where the locks are had within the transaction, and beside a server, where they are requested."""
    plane = await planes.open()
    first, over, broken, last = await waiting(plane, 4)
    await plane.placement.change(over.id, end)

    def wrong(_: CarriedFence) -> Any:
        def decide(job: Job) -> Writing:
            raise BadInput("payload", "cannot be decided about", "test")

        return decide

    ends = await asyncio.gather(
        plane.placement.change(first.id, end),
        plane.placement.change(over.id, end),
        plane.placement.change("no-such-job", end),
        plane.placement.change(broken.id, wrong),
        plane.placement.change(last.id, end),
        return_exceptions=True,
    )
    assert isinstance(ends[1], InvalidTransition)
    assert ends[2] == Changed(None, None)
    assert isinstance(ends[3], BadInput)
    assert [(await plane.job(job)).state for job in (first, broken, last)] == [
        JobState.DENIED,
        JobState.PENDING,
        JobState.DENIED,
    ]
    assert not await plane.locks.list("holdfast:scheduler:job:")
    assert plane.store.duplicate_ends == 1, "a job that is over was to be ended once more"


async def test_one_that_is_busy_keeps_nobody_and_is_waited_for_by_itself(sqlite_planes: Planes) -> None:
    plane, other = await sqlite_planes.open(), await sqlite_planes.open()
    taken, free = await waiting(plane, 2)
    theirs = await other.hold(taken)
    late = asyncio.create_task(plane.placement.change(taken.id, end))
    assert (await plane.placement.change(free.id, end)).after is not None
    assert not late.done()
    await theirs.release()
    assert (await late).after is not None
    assert (await plane.job(taken)).state is JobState.DENIED


@pytest.mark.requires("R146", "R148")
async def test_one_that_may_not_wait_is_given_back_at_once_and_nobody_asks_twice(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, other = await sqlite_planes.open(), await sqlite_planes.open()
    (job,) = await waiting(plane, 1)
    theirs = await other.hold(job)

    async def never(*_: Any) -> Any:
        raise AssertionError("it was busy a moment ago")

    monkeypatch.setattr(plane.locks.ports.store, "acquire", never)
    with pytest.raises(RetryLater) as later:
        await plane.placement.change(job.id, end, timeout=0.0)
    assert (later.value.delay, str(later.value)) == (0.5, "retry after 500ms: job lock busy")
    assert isinstance(later.value.__cause__, LockBusy)
    assert (later.value.__cause__.holder, later.value.__cause__.key) == (theirs.owner, SCHEDULER_JOB.key(job=job.id))
    assert (later.value.__cause__.remaining or 0) > 0
    assert plane.placement.lock_statistics.busy == 1
    plane.placement._changes.delays = RetryDelays().with_jitter()
    delays = []
    for _ in range(20):
        with pytest.raises(RetryLater) as later:
            await plane.placement.change(job.id, end, timeout=0.0)
        delays.append(later.value.delay)
    assert len(set(delays)) > 1
    assert all(0.3 <= each <= 0.7 for each in delays)


@pytest.mark.requires("R147")
@pytest.mark.parametrize("error", [Unavailable("no store"), Timeout("no answer")])
async def test_trouble_with_the_locks_gives_everybody_back_for_a_second(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    plane = await sqlite_planes.open()
    jobs = await waiting(plane, 3)

    async def away(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(plane.locks.ports.store, "acquire_many", away)
        ends = await asyncio.gather(*(plane.placement.change(job.id, end) for job in jobs), return_exceptions=True)
    assert [(type(each), each.delay) for each in ends if isinstance(each, RetryLater)] == [(RetryLater, 1.0)] * 3
    assert len({id(each) for each in ends}) == 3, "an error of its own for each"
    assert plane.placement.lock_statistics.backend_errors == 3
    assert [(await plane.job(job)).state for job in jobs] == [JobState.PENDING] * 3


async def test_trouble_with_the_database_gives_everybody_back_and_the_locks_too(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = await sqlite_planes.open()
    jobs = await waiting(plane, 3)

    async def away(*_: Any, **__: Any) -> Any:
        raise Unavailable("no database")

    with monkeypatch.context() as patch:
        patch.setattr(plane.database, "write", away)
        ends = await asyncio.gather(*(plane.placement.change(job.id, end) for job in jobs), return_exceptions=True)
    assert [each.delay for each in ends if isinstance(each, RetryLater)] == [1.0] * 3
    assert not await plane.locks.list("holdfast:scheduler:job:")
    found = await asyncio.gather(*(plane.placement.change(job.id, end) for job in jobs))
    assert all(each.after is not None for each in found)


@pytest.mark.requires("R26", "R27", "R123")
async def test_one_whose_lease_was_taken_away_is_abandoned_and_the_others_are_done(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, other = await sqlite_planes.open(), await sqlite_planes.open()
    stolen, kept = await waiting(plane, 2)
    update, inside, go = plane.store.update, asyncio.Event(), asyncio.Event()

    async def held_up(changes: Sequence[UpdateRequest], **how: Any) -> Any:
        inside.set()
        await go.wait()
        return await update(changes, **how)

    monkeypatch.setattr(plane.store, "update", held_up)
    work = asyncio.gather(
        *(plane.placement.change(job.id, end) for job in (stolen, kept)),
        return_exceptions=True,
    )
    await inside.wait()
    await other.locks.force_release(SCHEDULER_JOB.key(job=stolen.id), reason="drill")
    assert (await other.placement.change(stolen.id, lambda _: lambda job: Writing(not_before_ns=7))).after is not None
    go.set()
    lost, done = await work
    assert isinstance(lost, Abandoned), "the database had met a newer fence"
    assert isinstance(done, Changed)
    assert done.after is not None
    assert ((await plane.job(stolen)).state, (await plane.job(stolen)).not_before_ns) == (JobState.PENDING, 7)
    assert plane.placement.lock_statistics.abandoned == 1


async def test_a_result_and_a_cancel_of_the_same_job_are_made_one_after_the_other(sqlite_planes: Planes) -> None:
    plane = await sqlite_planes.open()
    await plane.beat()
    job = await plane.submit()
    await plane.placement.place(job.id)
    job = await plane.job(job)
    result = plane.scheduler.on_result(finished(job, 1, run_of(job)))
    cancelled = plane.placement.change(job.id, lambda _: lambda found: None)
    _, looked = await asyncio.gather(result, cancelled)
    assert looked.before is not None
    assert looked.before.state is JobState.SUCCEEDED, "the first request was first"


async def test_a_store_that_answers_for_one_lock_at_a_time_is_asked_one_at_a_time(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = await sqlite_planes.open()
    jobs = await waiting(plane, 5)
    monkeypatch.setattr("holdfast.aio.batch.takes_many", lambda locks: False)

    async def never(*_: Any) -> Any:
        raise AssertionError("it cannot do that")

    monkeypatch.setattr(plane.locks.ports.store, "acquire_many", never)
    found = await asyncio.gather(*(plane.placement.change(job.id, end) for job in jobs))
    assert all(each.after is not None for each in found)
    await until(lambda: plane.locks.statistics().held == 0)
