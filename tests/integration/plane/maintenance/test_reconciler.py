"""The reconciler: what is overdue ends under the job's lock, with everything that belongs to an end; the rest stays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import BadInput, LeaseLost, Unavailable
from holdfast.plane.jobs.rules import StateLimits
from holdfast.plane.jobs.store import Writing
from holdfast.plane.locks.registry import RECONCILER
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.reconciler import Reconciler
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Change, Job
from holdfast.types import NS
from support.fixtures.scheduling import Planes, Replica, body_of, finished, read_history, run_of, started, submitted
from support.harness.loop_ticks import one_tick, ticking

pytestmark = pytest.mark.asyncio


async def moved(plane: Replica, job: Job, *states: JobState, **fields: Any) -> Job:
    """A job that was brought into a state, step by step."""
    lease = await plane.hold(job)
    changes = [Change(state, actor="test", **(fields if state is states[-1] else {})) for state in states]
    await plane.store.change(lease, job.id, lambda _: Writing(changes))
    await lease.release()
    return await plane.job(job)


async def in_state(plane: Replica, state: JobState, **wanted: Any) -> Job:
    """A job in that state."""
    await plane.beat(capacity=1000)
    job = await plane.submit(**wanted)
    if state is JobState.PENDING:
        return job
    if state in (JobState.APPROVAL_REQUIRED, JobState.SCHEDULED, JobState.RETRYING):
        return await moved(plane, job, state)
    await plane.scheduler.on_submit(submitted(job))
    if state is JobState.RUNNING:
        await plane.scheduler.on_started(started(job, 1, run_of(job)))
    found = await plane.job(job)
    assert found.state is state
    return found


def reconciler(plane: Replica, **settings: Any) -> Reconciler:
    return Reconciler(plane.store, plane.locks, **settings)


async def reconcile(plane: Replica, made: Reconciler) -> None:
    await one_tick(plane, RECONCILER, made.tick)


LIMITS = StateLimits(pending_ns=4000 * NS)


@pytest.mark.requires("R63")
@pytest.mark.parametrize(
    ("state", "limit"),
    [
        (JobState.PENDING, 4000),
        (JobState.SCHEDULED, 120),
        (JobState.DISPATCHED, 300),
        (JobState.RUNNING, 900),
        (JobState.RETRYING, 3600),
    ],
)
async def test_a_job_that_is_in_a_state_for_too_long_ends_with_all_that_belongs_to_an_end(
    plane: Replica, state: JobState, limit: int
) -> None:
    """W20, W25: the end, the message, the word to the worker and the dead letter are one, in every state."""
    job = await in_state(plane, state)
    made = reconciler(plane, limits=LIMITS)
    plane.clock.push(limit - 5)
    await reconcile(plane, made)
    assert (await plane.job(job)).state is state
    assert made.statistics().stale[state] == 0

    plane.clock.push(10)
    await reconcile(plane, made)

    ended = await plane.job(job)
    assert (ended.state, ended.reason, ended.code) == (
        JobState.TIMEOUT,
        f"timeout: {state} >{limit}s",
        "state_timeout",
    )
    assert ended.fence is not None
    assert job.fence is None or ended.fence > job.fence
    stops = await plane.staged(subjects.STOP)
    if state is JobState.RUNNING:
        (stop,) = stops
        assert stop["subject"] == subjects.stop_subject("w1")
        body = body_of(stop)
        assert body.pop("run_fence") == ended.run_fence, "so that it cannot stop a later run of the same attempt"
        assert body == {"job": job.id, "attempt": 1, "reason": ended.reason}
    else:
        assert stops == []
    letter = await plane.letters.get(job.id)
    assert letter is not None
    assert (letter.last_state, letter.code) == (state, "state_timeout")
    assert await plane.running() == ({"default": 0}, {"default": 0}) or state in (JobState.PENDING, JobState.RETRYING)
    events = await plane.store.events(job.id)
    assert (events[-1].actor, events[-1].after, events[-1].fence) == ("reconciler", JobState.TIMEOUT, ended.fence)
    assert read_history(events) == []
    statistics = made.statistics()
    assert statistics.timed_out == {state: 1}
    assert statistics.stale[state] == 1, "the gauge says what was found, and is not set back when it was dealt with"
    assert (statistics.left, statistics.spared, statistics.errors) == (0, 0, 0)

    await reconcile(plane, made)
    assert made.statistics().stale == dict.fromkeys(statistics.stale, 0)
    assert made.statistics().timed_out == {state: 1}


async def test_the_message_that_a_job_is_done_goes_out_with_the_end(
    plane: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(subjects.GROUPS, subjects.DONE, ("listener",))
    job = await in_state(plane, JobState.DISPATCHED)
    plane.clock.push(301)
    await reconcile(plane, reconciler(plane))
    (done,) = await plane.staged(subjects.DONE)
    assert body_of(done)["state"] == "TIMEOUT"
    assert done["fence"] == (await plane.job(job)).fence


@pytest.mark.parametrize(
    "state", [JobState.PENDING, JobState.APPROVAL_REQUIRED, JobState.DISPATCHED, JobState.RUNNING, JobState.RETRYING]
)
async def test_a_job_whose_deadline_has_passed_ends_whatever_its_state(plane: Replica, state: JobState) -> None:
    """W43: the state that a job was in is known on this path too."""
    job = await in_state(plane, state, deadline_ns=plane.now_ns + 50 * NS)
    other = await in_state(plane, state, deadline_ns=plane.now_ns + 500 * NS)
    made = reconciler(plane)
    plane.clock.push(51)
    await reconcile(plane, made)
    ended = await plane.job(job)
    assert (ended.state, ended.reason, ended.deadline_ns) == (JobState.TIMEOUT, "timeout: deadline expired", None)
    assert await plane.letters.get(job.id) is None
    assert made.statistics().expired == {state: 1}
    assert (await plane.job(other)).state is state


async def test_a_running_job_is_measured_by_its_own_limit_shorter_or_longer(plane: Replica) -> None:
    short = await in_state(plane, JobState.RUNNING, timeout_ns=20 * NS)
    usual = await in_state(plane, JobState.RUNNING)
    long = await in_state(plane, JobState.RUNNING, timeout_ns=2000 * NS)
    endless = await in_state(plane, JobState.RUNNING, timeout_ns=2**62)
    made = reconciler(plane)
    jobs = (short, usual, long, endless)
    overdue = {25: 1, 901: 2, 2001: 3}
    at = 0
    for seconds, ended in overdue.items():
        plane.clock.push(seconds - at)
        at = seconds
        await reconcile(plane, made)
        states = [(await plane.job(job)).state for job in jobs]
        assert states == [JobState.TIMEOUT] * ended + [JobState.RUNNING] * (4 - ended)


async def test_a_job_that_waits_for_another_attempt_is_measured_from_when_it_is_due(plane: Replica) -> None:
    job = await plane.submit()
    await moved(plane, job, JobState.RETRYING, not_before_ns=plane.now_ns + 7200 * NS)
    made = reconciler(plane)
    plane.clock.push(7200 + 3590)
    await reconcile(plane, made)
    assert (await plane.job(job)).state is JobState.RETRYING
    assert made.statistics().lock.held.read().number == 0, "it is not even locked"
    plane.clock.push(20)
    await reconcile(plane, made)
    assert (await plane.job(job)).state is JobState.TIMEOUT


async def test_a_busy_job_is_left_for_the_next_tick(plane: Replica) -> None:
    job, free = await in_state(plane, JobState.DISPATCHED), await in_state(plane, JobState.DISPATCHED)
    made = reconciler(plane)
    plane.clock.push(301)
    handler = await plane.hold(job)
    await reconcile(plane, made)
    assert (await plane.job(job)).state is JobState.DISPATCHED
    assert (await plane.job(free)).state is JobState.TIMEOUT
    assert (made.statistics().left, made.statistics().stale[JobState.DISPATCHED]) == (1, 2)
    await handler.release()
    await reconcile(plane, made)
    assert (await plane.job(job)).state is JobState.TIMEOUT


async def test_a_result_that_comes_first_is_not_overtaken(plane: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """W20: the job was overdue when it was found, and had succeeded when its lock was had."""
    job = await in_state(plane, JobState.RUNNING)
    run = run_of(job, (await plane.job(job)).run_fence)
    made = reconciler(plane)
    plane.clock.push(901)
    change = plane.store.change

    async def after_the_result(lease: Any, job_id: str, decide: Any) -> Any:
        monkeypatch.undo()
        await lease.release()
        await plane.scheduler.on_result(finished(job, 1, run))
        newer = await plane.hold(job)
        try:
            return await change(newer, job_id, decide)
        finally:
            await newer.release()

    monkeypatch.setattr(plane.store, "change", after_the_result)
    await reconcile(plane, made)
    ended = await plane.job(job)
    assert ended.state is JobState.SUCCEEDED
    assert read_history(await plane.store.events(job.id)) == []
    assert made.statistics().timed_out == {}
    assert made.statistics().spared == 1


async def test_nothing_is_starved_however_much_is_overdue_and_busy(sqlite_planes: Planes) -> None:
    """W23: a tick is bounded, the next continues where it ended, and what cannot be had does not come first forever."""
    plane = await sqlite_planes.open()
    jobs = [await in_state(plane, JobState.DISPATCHED) for _ in range(12)]
    made = reconciler(plane, batch=2, batches=2, at_once=1)
    plane.clock.push(301)
    held = [await plane.hold(job) for job in jobs[:4]]
    for expected in (0, 4, 8):
        await reconcile(plane, made)
        states = [(await plane.job(job)).state for job in jobs]
        assert states.count(JobState.TIMEOUT) == expected
    for lease in held:
        await lease.release()
    for _ in range(3):
        await reconcile(plane, made)
    assert {(await plane.job(job)).state for job in jobs} == {JobState.TIMEOUT}


async def test_a_job_that_cannot_be_handled_does_not_hold_up_the_others(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plane = await sqlite_planes.open()
    jobs = [await in_state(plane, JobState.DISPATCHED) for _ in range(4)]
    change = plane.store.change

    async def broken(lease: Any, job_id: str, decide: Any) -> Any:
        if job_id == jobs[1].id:
            raise ValueError("a bug")
        return await change(lease, job_id, decide)

    monkeypatch.setattr(plane.store, "change", broken)
    made = reconciler(plane, at_once=1)
    plane.clock.push(301)
    await reconcile(plane, made)
    states = [(await plane.job(job)).state for job in jobs]
    assert states == [JobState.TIMEOUT, JobState.DISPATCHED, JobState.TIMEOUT, JobState.TIMEOUT]
    assert made.statistics().errors == 1
    said = f"a job was passed over: scan=reconciler of DISPATCHED job={jobs[1].id} error=ValueError: a bug"
    assert said in caplog.text


async def test_trouble_with_the_database_ends_the_tick_and_loses_nothing(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = await sqlite_planes.open()
    jobs = [await in_state(plane, JobState.DISPATCHED) for _ in range(4)]
    change, asked = plane.store.change, 0

    async def away(lease: Any, job_id: str, decide: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise Unavailable("no database")
        return await change(lease, job_id, decide)

    made = reconciler(plane, at_once=1)
    plane.clock.push(301)
    with monkeypatch.context() as patched:
        patched.setattr(plane.store, "change", away)
        with pytest.raises(Unavailable, match="no database"):
            await reconcile(plane, made)
    assert asked == 2
    await reconcile(plane, made)
    await reconcile(plane, made)
    assert {(await plane.job(job)).state for job in jobs} == {JobState.TIMEOUT}


async def test_time_in_which_a_store_was_away_is_not_held_against_jobs_unless_they_have_a_deadline(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could not continue meanwhile: the replayer comes first."""
    plane = await sqlite_planes.open()
    deadline_ns = plane.now_ns + 200 * NS
    stuck = await in_state(plane, JobState.SCHEDULED)
    late = await in_state(plane, JobState.SCHEDULED, deadline_ns=deadline_ns)
    made = reconciler(plane)

    async def away(_: Any) -> Any:
        raise Unavailable("no database")

    with monkeypatch.context() as patched:
        patched.setattr(plane.store.database, "read", away)
        for _ in range(3):
            plane.clock.push(100)
            with pytest.raises(Unavailable):
                await reconcile(plane, made)
    await reconcile(plane, made)
    assert (await plane.job(stuck)).state is JobState.SCHEDULED
    assert (await plane.job(late)).state is JobState.TIMEOUT
    assert made.statistics().stale[JobState.SCHEDULED] == 2, "overdue jobs are counted immediately"

    await reconcile(plane, made)
    assert (await plane.job(stuck)).state is JobState.TIMEOUT, "and what is still overdue then has ended"


async def test_a_tick_whose_lease_is_lost_begins_no_other_batch(sqlite_planes: Planes) -> None:
    """W19."""
    plane = await sqlite_planes.open()
    jobs = [await in_state(plane, JobState.DISPATCHED) for _ in range(3)]
    plane.clock.push(301)
    made = reconciler(plane, at_once=1)
    async with ticking(plane, RECONCILER) as tick:
        await tick.lease.release()
        with pytest.raises(LeaseLost):
            await made.tick(tick)
        assert {(await plane.job(job)).state for job in jobs} == {JobState.DISPATCHED}


async def test_a_tick_that_is_told_to_stop_goes_on_from_there_later(sqlite_planes: Planes) -> None:
    plane = await sqlite_planes.open()
    jobs = [await in_state(plane, JobState.DISPATCHED) for _ in range(6)]
    plane.clock.push(301)
    made = reconciler(plane, at_once=2)
    asked = 0

    def stopping() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2  # one scan that finds nothing, then one handful of the first page

    async with ticking(plane, RECONCILER) as tick:
        await made.tick(Tick(tick.lease, 0, stopping))
    ended = [(await plane.job(job)).state for job in jobs].count(JobState.TIMEOUT)
    assert ended == 2
    await reconcile(plane, made)
    assert {(await plane.job(job)).state for job in jobs} == {JobState.TIMEOUT}


async def test_two_reconcilers_at_once_end_each_job_once(planes: Planes) -> None:
    one, two = await planes.open(), await planes.open()
    jobs = [await in_state(one, JobState.RUNNING) for _ in range(20)]
    planes.clock.push(901)
    made = [reconciler(one), reconciler(two)]
    async with ticking(one, RECONCILER) as tick:
        await asyncio.gather(*(each.tick(tick) for each in made))
    for each in made:
        await reconcile(one, each)
    for job in jobs:
        assert (await one.job(job)).state is JobState.TIMEOUT
        assert read_history(await one.store.events(job.id)) == []
    assert sum(each.statistics().timed_out.get(JobState.RUNNING, 0) for each in made) == 20
    assert one.store.duplicate_ends == two.store.duplicate_ends == 0
    assert await one.running() == ({"default": 0}, {"default": 0})


@pytest.mark.parametrize(
    "limits",
    [replace(StateLimits(), scheduled_ns=20 * NS), replace(StateLimits(), running_ns=0), StateLimits(pending_ns=NS)],
)
async def test_limits_that_cannot_work_are_refused_at_the_start(sqlite_planes: Planes, limits: StateLimits) -> None:
    """W22."""
    plane = await sqlite_planes.open()
    with pytest.raises(BadInput, match="limits"):
        reconciler(plane, limits=limits)


async def test_the_loop_of_the_reconciler_ends_what_is_overdue(sqlite_planes: Planes) -> None:
    plane = await sqlite_planes.open()
    job = await in_state(plane, JobState.DISPATCHED)
    plane.clock.push(301)
    made = reconciler(plane)
    async with made.loop(at_once=True) as loop:
        async with asyncio.timeout(30):
            while loop.statistics().ticks == 0:  # noqa: ASYNC110 - the loop has no event for it
                await asyncio.sleep(0.005)
        held = await plane.locks.inspect(RECONCILER.key())
        assert (held.held, held.fence) == (True, loop.statistics().fence)
    assert (await plane.job(job)).state is JobState.TIMEOUT
    assert not (await plane.locks.inspect(RECONCILER.key())).held
