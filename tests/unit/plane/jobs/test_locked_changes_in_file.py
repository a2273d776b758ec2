"""Jobs and leases in one file: a change locks, writes and unlocks by one transaction, invisible in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import check
from holdfast.errors import FencedOut, LockBusy, RetryLater, Timeout, Unavailable
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.jobs.store import Writing
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Change, Job
from support.fixtures.scheduling import Planes, Replica, read_history

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def one_file(tmp_path: Path) -> AsyncIterator[Planes]:
    file = f"sqlite:///{tmp_path / 'plane.db'}"
    opened = Planes(f"{file}?synchronous=normal", file)
    yield opened
    await opened.close()


def end(fence: CarriedFence) -> Any:
    return lambda job: Writing([Change(JobState.DENIED, reason=str(fence.fence), actor="test")])


async def waiting(plane: Replica, number: int) -> list[Job]:
    return [await plane.submit(payload=at) for at in range(number)]


class Notes:
    """What observers of locks are told."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def note(self, record: Record) -> None:
        self.records.append(record)


async def test_many_jobs_are_locked_changed_and_unlocked_by_one_commit(
    one_file: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = await one_file.open()
    jobs = await waiting(plane, 12)
    await plane.placement.change(jobs[0].id, lambda _: lambda job: None)

    async def never(*_: Any) -> Any:
        raise AssertionError("no lease is requested")

    for operation in ("acquire", "acquire_many", "release", "release_many"):
        monkeypatch.setattr(plane.locks.ports.store, operation, never)
    before = plane.database.statistics()["commits"]
    found = await asyncio.gather(*(plane.placement.change(job.id, end) for job in jobs))
    assert plane.database.statistics()["commits"] == before + 1
    fences = [each.after.fence for each in found if each.after is not None]
    assert [each.after.reason for each in found if each.after is not None] == [str(fence) for fence in fences]
    assert (len(set(fences)), fences) == (12, sorted(fences))  # type: ignore[type-var]  # they are numbers
    assert not await plane.locks.list()
    for job in jobs:
        assert read_history(await plane.store.events(job.id)) == []
    counts, seen = plane.placement.lock_statistics, plane.locks.statistics()
    assert (counts.waited.read().number, counts.held.read().number) == (13, 13)
    assert (seen.granted, seen.released, seen.held) == (13, 13, 0)
    assert plane.store.statistics().accepted == 13


async def test_whoever_holds_the_lock_is_waited_for_or_named(one_file: Planes) -> None:
    plane, other = await one_file.open(), await one_file.open()
    taken, free = await waiting(plane, 2)
    theirs = await other.hold(taken)
    with pytest.raises(RetryLater) as later:
        await plane.placement.change(taken.id, end, timeout=0.0)
    assert isinstance(later.value.__cause__, LockBusy)
    assert (later.value.delay, later.value.__cause__.holder) == (0.5, theirs.owner)
    late = asyncio.create_task(plane.placement.change(taken.id, end))
    assert (await plane.placement.change(free.id, end)).after is not None
    assert not late.done()
    await theirs.release()
    assert (await late).after is not None
    assert plane.locks.statistics().busy >= 2


@pytest.mark.requires("R26", "R27")
async def test_a_holder_that_was_overtaken_by_such_a_change_is_refused(one_file: Planes) -> None:
    """It had the lock, an operator broke it, and a change came and went: its own write is stale by the fence."""
    plane, other = await one_file.open(), await one_file.open()
    (job,) = await waiting(plane, 1)
    theirs = await other.hold(job)
    await plane.locks.force_release(SCHEDULER_JOB.key(job=job.id), reason="drill")
    moved = await plane.placement.change(job.id, lambda _: lambda found: Writing(not_before_ns=7))
    assert moved.after is not None
    assert (moved.after.fence or 0) > theirs.fence
    with pytest.raises(FencedOut):
        await other.store.change(CarriedFence(theirs.key, theirs.fence), job.id, end(CarriedFence(theirs.key, 1)))
    assert (await plane.job(job)).state is JobState.PENDING
    await theirs.release()  # which finds that it is not ours to give back


@pytest.mark.parametrize("error", [Unavailable("locked"), Timeout("who knows")])
async def test_trouble_with_the_file_gives_everybody_back_for_a_second(
    one_file: Planes, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    plane = await one_file.open()
    jobs = await waiting(plane, 3)
    await plane.placement.change(jobs[0].id, lambda _: lambda job: None)

    async def away(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(plane.database, "write", away)
        ends = await asyncio.gather(*(plane.placement.change(job.id, end) for job in jobs), return_exceptions=True)
    assert [each.delay for each in ends if isinstance(each, RetryLater)] == [1.0] * 3
    assert plane.placement.lock_statistics.backend_errors == 3
    assert all(
        each.after is not None for each in await asyncio.gather(*(plane.placement.change(j.id, end) for j in jobs))
    )


async def test_a_store_of_leases_that_cannot_be_opened_yet_is_tried_again(
    one_file: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = await one_file.open()
    (job,) = await waiting(plane, 1)

    async def away(*_: Any, **__: Any) -> Any:
        raise Unavailable("not yet")

    with monkeypatch.context() as patch:
        patch.setattr(plane.locks.ports.store, "ping", away)
        with pytest.raises(RetryLater):
            await plane.placement.change(job.id, end)
    assert (await plane.placement.change(job.id, end)).after is not None


@pytest.mark.requires("R1", "R70")
async def test_what_is_noted_of_such_locks_is_a_history_without_a_broken_promise(one_file: Planes) -> None:
    """Several schedulers change the same jobs, by such locks and by leases, and all of it is in one ledger."""
    notes = Notes()
    planes = [await one_file.open() for _ in range(3)]
    for plane in planes:
        plane.locks.manager.recorder._observers.append(notes)
        plane.locks.manager.recorder._listening = True
    jobs = await waiting(planes[0], 6)

    async def touch(plane: Replica, job: Job) -> None:
        await plane.placement.change(job.id, lambda _: lambda found: Writing(not_before_ns=found.not_before_ns + 1))

    async def hold(plane: Replica, job: Job) -> None:
        async with SCHEDULER_JOB.lock(plane.locks, job=job.id):
            await asyncio.sleep(0)

    for _ in range(5):
        await asyncio.gather(*(act(plane, job) for plane in planes for job in jobs for act in (touch, hold)))
    granted = [each for each in notes.records if each.kind is EventKind.GRANTED]
    assert len(granted) >= 5 * 2 * 3 * 6
    assert check(notes.records) == []
    per_key = [[each.fence for each in granted if each.key == SCHEDULER_JOB.key(job=job.id)] for job in jobs]
    assert all(len(set(fences)) == len(fences) for fences in per_key)
    assert [(await planes[0].job(job)).not_before_ns for job in jobs] == [15] * 6
