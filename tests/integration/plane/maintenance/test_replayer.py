"""The replayer: jobs whose message was lost continue and are counted; those that rightly wait are left alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import BadInput, Unavailable
from holdfast.plane.bus.delivery_rules import LOST_MAX
from holdfast.plane.jobs.rules import StateLimits
from holdfast.plane.jobs.store import Writing
from holdfast.plane.locks import registry as families
from holdfast.plane.locks.registry import RECONCILER, REPLAYER
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.reconciler import Reconciler
from holdfast.plane.maintenance.replayer import Replayer
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Change, Job
from holdfast.plane.worker.staleness import Attempts
from holdfast.types import NS
from support.fixtures.scheduling import (
    TOPIC,
    FakeWorkers,
    Planes,
    Replica,
    check_histories,
    finished,
    read_history,
    run_of,
    started,
    submitted,
)
from support.harness.loop_ticks import one_tick

pytestmark = pytest.mark.asyncio


async def replay(plane: Replica, made: Replayer) -> None:
    await one_tick(plane, REPLAYER, made.tick)


async def lost(plane: Replica) -> int:
    """Lose every message that is on its way."""
    rows = await plane.database.write(lambda tx: tx.query("DELETE FROM plane_message RETURNING id"))
    return len(rows)


async def dispatched(plane: Replica, **wanted: Any) -> Job:
    job = await plane.submit(**wanted)
    await plane.scheduler.on_submit(submitted(job))
    found = await plane.job(job)
    assert found.state is JobState.DISPATCHED
    return found


async def set_state(plane: Replica, job: Job, *changes: Change) -> Job:
    lease = await plane.hold(job)
    await plane.store.change(lease, job.id, lambda _: Writing(changes))
    await lease.release()
    return await plane.job(job)


@pytest.mark.requires("R63")
async def test_a_job_whose_message_was_lost_goes_on_after_a_while_and_is_counted_by_topic(plane: Replica) -> None:
    await plane.beat("w1", 4, "render", "mail")
    jobs = [await plane.submit(), await plane.submit(topic="mail"), await plane.submit(topic="mail")]
    assert await lost(plane) == 3
    made = Replayer(plane.placement)
    plane.clock.push(20)
    await plane.beat("w1", 4, "render", "mail")
    await replay(plane, made)
    assert {(await plane.job(job)).state for job in jobs} == {JobState.PENDING}
    assert made.statistics().orphan_replayed == {}
    plane.clock.push(11)
    await plane.beat("w1", 4, "render", "mail")
    await replay(plane, made)
    assert {(await plane.job(job)).state for job in jobs} == {JobState.DISPATCHED}
    assert made.statistics().orphan_replayed == {"render": 1, "mail": 2}
    await replay(plane, made)
    assert made.statistics().orphan_replayed == {"render": 1, "mail": 2}
    assert await check_histories(plane) == {}


async def test_a_job_that_waited_for_a_time_goes_on_though_its_message_was_lost(plane: Replica) -> None:
    await plane.beat()
    later = await plane.submit(not_before_ns=plane.now_ns + 100 * NS)
    await plane.scheduler.on_submit(submitted(later))
    retrying = await dispatched(plane)
    await plane.scheduler.on_started(started(retrying, 1, run := run_of(retrying)))
    await plane.scheduler.on_result(finished(retrying, 1, run, error="no", retry_after_ns=100 * NS))
    assert (await plane.job(retrying)).state is JobState.RETRYING
    await lost(plane)
    made = Replayer(plane.placement)
    plane.clock.push(120)
    await plane.beat()
    await replay(plane, made)
    assert made.statistics().orphan_replayed == {}
    plane.clock.push(15)
    await plane.beat()
    await replay(plane, made)
    assert (await plane.job(later)).state is JobState.DISPATCHED
    again = await plane.job(retrying)
    assert (again.state, again.attempt) == (JobState.DISPATCHED, 2)
    assert made.statistics().orphan_replayed == {TOPIC: 2}


async def test_a_scheduled_job_is_sent_before_its_time_is_over(plane: Replica) -> None:
    """W22: the replay of this state was dead code once, because its time limit came first."""
    await plane.beat()
    job = await set_state(plane, await plane.submit(), Change(JobState.SCHEDULED, actor="test"))
    await lost(plane)
    made, reconciler = Replayer(plane.placement), Reconciler(plane.store, plane.locks)
    plane.clock.push(31)
    await plane.beat()
    await one_tick(plane, RECONCILER, reconciler.tick)
    await replay(plane, made)
    found = await plane.job(job)
    assert (found.state, found.attempt) == (JobState.DISPATCHED, 1)
    (message,) = await plane.staged(subjects.WORK)
    assert message["fence"] == found.fence
    assert made.statistics().orphan_replayed == {TOPIC: 1}


async def test_an_attempt_that_no_worker_has_begun_is_sent_once_more_under_a_newer_fence(plane: Replica) -> None:
    """W39: another id, or the bus would take it for the first one; the same attempt, and the same time limit."""
    await plane.beat()
    job = await dispatched(plane)
    (first,) = await plane.staged(subjects.WORK)
    await lost(plane)
    made = Replayer(plane.placement)
    plane.clock.push(149)
    await replay(plane, made)
    assert await plane.staged(subjects.WORK) == []
    plane.clock.push(2)
    for _ in range(3):
        await replay(plane, made)
    (second,) = await plane.staged(subjects.WORK)
    assert second["id"] != first["id"]
    assert second["fence"] > first["fence"]
    found = await plane.job(job)
    assert (found.state, found.attempt, found.updated_ns) == (JobState.DISPATCHED, 1, job.updated_ns)
    statistics = made.statistics()
    assert (statistics.redispatched, statistics.orphan_replayed) == (1, {TOPIC: 1})

    plane.clock.push(150)
    await one_tick(plane, RECONCILER, Reconciler(plane.store, plane.locks).tick)
    assert (await plane.job(job)).state is JobState.TIMEOUT


async def test_an_attempt_that_runs_is_not_sent_again_though_nobody_has_said_that_it_does(plane: Replica) -> None:
    await plane.beat()
    job = await dispatched(plane)
    lease = await families.WORKER_JOB.lock(plane.locks, job=job.id).acquire()
    made = Replayer(plane.placement)
    plane.clock.push(151)
    await replay(plane, made)
    assert len(await plane.staged(subjects.WORK)) == 1
    assert (made.statistics().running, made.statistics().redispatched) == (1, 0)
    await lease.release()
    await replay(plane, made)
    assert made.statistics().redispatched == 1


async def test_running_and_finished_jobs_are_left_alone(plane: Replica) -> None:
    await plane.beat()
    running, done = await dispatched(plane), await dispatched(plane)
    await plane.scheduler.on_started(started(running, 1, run_of(running)))
    await plane.scheduler.on_started(started(done, 1, run := run_of(done)))
    await plane.scheduler.on_result(finished(done, 1, run))
    before = [await plane.job(running), await plane.job(done)]
    await lost(plane)
    lease = await families.WORKER_JOB.lock(plane.locks, job=running.id).acquire()
    made = Replayer(plane.placement)
    plane.clock.push(500)
    await replay(plane, made)
    assert made.statistics().running == 1
    assert await plane.staged(subjects.WORK) == []
    assert [await plane.job(running), await plane.job(done)] == before
    assert made.statistics().orphan_replayed == {}
    await lease.release()


@pytest.mark.requires("R63")
@pytest.mark.parametrize(("timeout_s", "half_s"), [(None, 450), (100, 50)])
async def test_an_attempt_whose_worker_is_gone_with_its_message_is_run_again_before_its_time_is_over(
    plane: Replica, timeout_s: int | None, half_s: int
) -> None:
    """A bus that lost acknowledged messages: without a replay, the job would reach its time limit."""
    await plane.beat()
    job = await dispatched(plane, timeout_ns=timeout_s and timeout_s * NS)
    await plane.scheduler.on_started(started(job, 1, first := run_of(job)))
    began = await plane.job(job)
    assert began.state is JobState.RUNNING
    await lost(plane)
    made = Replayer(plane.placement)
    plane.clock.push(half_s - 1)
    await replay(plane, made)
    assert await plane.staged(subjects.WORK) == []
    plane.clock.push(2)
    for _ in range(3):
        await replay(plane, made)
    (message,) = await plane.staged(subjects.WORK)
    again = await plane.job(job)
    assert (again.state, again.attempt, again.updated_ns) == (JobState.RUNNING, 1, began.updated_ns)
    assert message["fence"] == again.fence
    assert made.statistics().redispatched == 1

    # The next worker has a newer fence; whatever is still heard of the first is refused.
    second = replace(first, fence=first.fence + 1)
    await plane.scheduler.on_started(started(job, 1, second))
    await plane.scheduler.on_result(finished(job, 1, first))
    assert (await plane.job(job)).state is JobState.RUNNING
    await plane.scheduler.on_result(finished(job, 1, second))
    assert (await plane.job(job)).state is JobState.SUCCEEDED
    assert await check_histories(plane) == {}


async def test_a_job_that_kills_whoever_runs_it_is_not_run_for_ever(plane: Replica) -> None:
    """Its message is given up after so many deaths. One that is sent instead of it would be taken by as many again."""
    await plane.beat()
    job = await dispatched(plane, max_attempts=1)
    made = Replayer(plane.placement)
    for run in range(LOST_MAX):
        await plane.scheduler.on_started(started(job, 1, run_of(job), worker=f"leaving{run}"))
        await Attempts(plane.database).returned((job.id, job.created_ns, 1), 0)  # which costs the job nothing
        await plane.scheduler.on_started(started(job, 1, run_of(job), worker=f"w{run}"))
        await lost(plane)
        if run + 1 in (1, LOST_MAX - 1, LOST_MAX):
            plane.clock.push(500)
            await replay(plane, made)
            assert len(await plane.staged(subjects.WORK)) == (run + 1 < LOST_MAX)
    limits = StateLimits()
    plane.clock.push(limits.running_ns / NS)
    await one_tick(plane, RECONCILER, Reconciler(plane.store, plane.locks, limits=limits).tick)
    ended = await plane.job(job)
    assert (ended.state, ended.code) == (JobState.TIMEOUT, "state_timeout")


async def test_an_attempt_whose_result_waits_on_the_bus_is_not_run_again(plane: Replica) -> None:
    await plane.beat()
    job = await dispatched(plane)
    await plane.scheduler.on_started(started(job, 1, run := run_of(job)))
    await plane.store.bus.publish([finished(job, 1, run).message])
    made = Replayer(plane.placement)
    plane.clock.push(500)
    await replay(plane, made)
    assert len(await plane.staged(subjects.WORK)) == 1  # the first
    assert (made.statistics().redispatched, made.statistics().left) == (0, 1)


async def test_an_attempt_whose_worker_is_gone_is_run_again_although_results_of_others_always_wait(
    plane: Replica,
) -> None:
    """As soon as those that waited when it was found have been handled: its own would have been one of them."""
    await plane.beat()
    job = await dispatched(plane)
    await plane.scheduler.on_started(started(job, 1, run_of(job)))
    await lost(plane)
    plane.clock.push(500)
    made = Replayer(plane.placement)
    for number, other in ((1, "other"), (2, "third")):
        await plane.store.bus.publish([finished(other, 1, run_of(other)).message])
        await replay(plane, made)
        assert (made.statistics().left, made.statistics().redispatched) == (number, 0), "the first one still waits"
    handled = "UPDATE plane_message SET state = 2 WHERE message_key = :job"
    await plane.database.write(lambda tx: tx.query(handled, {"job": "other"}))
    await replay(plane, made)
    assert await plane.store.bus.pending(subjects.RESULT, subjects.SCHEDULER) == 1
    assert [row["message_key"] for row in await plane.staged(subjects.WORK)] == [job.id]


async def test_a_job_of_a_topic_that_no_worker_has_announced_is_left_to_wait(plane: Replica) -> None:
    job = await plane.submit(topic="nobody")
    await lost(plane)
    plane.clock.push(3600)
    await replay(plane, made := Replayer(plane.placement))
    assert ((await plane.job(job)).state, made.statistics().orphan_replayed) == (JobState.PENDING, {})


async def test_an_unknown_topic_is_given_up_though_the_message_was_lost_if_that_is_asked_for(planes: Planes) -> None:
    plane = await planes.open(topic_grace_ns=30 * NS)
    job = await plane.submit(topic="nobody")
    await lost(plane)
    plane.clock.push(31)
    await replay(plane, made := Replayer(plane.placement))
    ended = await plane.job(job)
    assert (ended.state, ended.code) == (JobState.FAILED, "unknown_topic")
    assert made.statistics().orphan_replayed == {"nobody": 1}


@pytest.mark.requires("R63")
async def test_those_that_rightly_wait_are_not_counted_and_cost_one_lock_of_their_kind(planes: Planes) -> None:
    plane = await planes.open(slots=2)
    await plane.beat("w1", 3)
    await plane.beat("w2", 4, pool="other")
    with_workers = [await dispatched(plane, tenant="acme"), await dispatched(plane, tenant="acme")]
    in_line = [await plane.submit(tenant="acme") for _ in range(20)]  # the tenant is full
    await dispatched(plane, tenant="umbrella")
    full = [await plane.submit(tenant="initech") for _ in range(20)]  # the pool is full
    idle = [await plane.submit(tenant="hooli", topic="absent", pool="other") for _ in range(20)]  # no worker serves it
    await plane.beat("w3", 4, "absent", pool="other")
    plane.clock.push(31)
    await plane.beat("w1", 3)
    await plane.beat("w2", 4, pool="other")
    made = Replayer(plane.placement, at_once=1)
    before = plane.placement.lock_statistics.held.read().number
    await replay(plane, made)
    statistics = made.statistics()
    assert statistics.orphan_replayed == {}
    assert statistics.waiting == 60
    assert plane.placement.lock_statistics.held.read().number - before <= 4
    for job in (*in_line, *full, *idle):
        assert (await plane.job(job)).state is JobState.PENDING
    for job in with_workers:
        assert (await plane.job(job)).state is JobState.DISPATCHED


async def test_nothing_is_starved_by_jobs_that_stay_where_they_are(sqlite_planes: Planes) -> None:
    """W23: the oldest stay first in the list forever, and the others get their turn all the same."""
    plane = await sqlite_planes.open()
    await plane.beat("w1", 100)
    jobs = [await plane.submit() for _ in range(12)]
    await lost(plane)
    plane.clock.push(31)
    await plane.beat("w1", 100)
    held = [await plane.hold(job) for job in jobs[:4]]
    made = Replayer(plane.placement, batch=2, batches=2, at_once=1)
    for expected in (0, 4, 8):
        await replay(plane, made)
        states = [(await plane.job(job)).state for job in jobs]
        assert states.count(JobState.DISPATCHED) == expected
    assert made.statistics().left == 4
    for lease in held:
        await lease.release()
    for _ in range(2):
        await replay(plane, made)
    assert {(await plane.job(job)).state for job in jobs} == {JobState.DISPATCHED}


async def test_trouble_with_the_store_of_leases_ends_the_tick(
    sqlite_planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = await sqlite_planes.open()
    await plane.beat()
    job = await plane.submit()
    await lost(plane)
    plane.clock.push(31)
    await plane.beat()
    made = Replayer(plane.placement)
    lease = await REPLAYER.lock(plane.locks).acquire()

    async def away(*_: Any) -> Any:
        raise Unavailable("no leases")

    with monkeypatch.context() as patched:
        patched.setattr(plane.locks.ports.store, "acquire_many", away)
        with pytest.raises(Unavailable, match="no leases"):
            await made.tick(Tick(lease))
    await made.tick(Tick(lease))
    assert (await plane.job(job)).state is JobState.DISPATCHED
    await lease.release()


@pytest.mark.parametrize(
    ("limits", "settings"),
    [
        (replace(StateLimits(), scheduled_ns=50 * NS), {}),
        (StateLimits(), {"interval": 100}),
        (StateLimits(), {"redispatch": 299}),
        (replace(StateLimits(), retrying_ns=10 * NS), {}),
    ],
)
async def test_a_replay_that_would_come_after_the_time_limit_is_refused_at_the_start(
    sqlite_planes: Planes, limits: StateLimits, settings: dict[str, Any]
) -> None:
    """W22."""
    plane = await sqlite_planes.open()
    with pytest.raises(BadInput, match="limits"):
        Replayer(plane.placement, limits=limits, **settings)


async def test_the_loop_scans_at_once_and_the_job_is_done(planes: Planes) -> None:
    plane, scheduler = await planes.open(), await planes.open()
    await plane.beat()
    job = await plane.submit()
    await lost(plane)
    plane.clock.push(31)
    await plane.beat()
    made = Replayer(plane.placement)
    async with made.loop(), asyncio.timeout(30):
        while (await plane.job(job)).state is JobState.PENDING:  # noqa: ASYNC110 - it is the database that changes
            await asyncio.sleep(0.01)
    assert made.statistics().orphan_replayed == {TOPIC: 1}
    workers = FakeWorkers(scheduler)
    async with scheduler.scheduler.serving(), workers.serving(), asyncio.timeout(30):
        while not (await plane.job(job)).state.terminal:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    assert (await plane.job(job)).state is JobState.SUCCEEDED
    assert workers.ran == [(job.id, 1)]
    assert read_history(await plane.store.events(job.id)) == []
