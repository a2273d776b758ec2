"""The handlers of the scheduler, one message at a time, on SQLite and Postgres."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import BadInput, RetryLater
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.jobs.store import Writing
from holdfast.plane.locks.job_lock import job_lock
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobQueue, JobState
from holdfast.plane.model.records import Change, Delivery, Job, Message
from holdfast.types import MS, NS
from support.fixtures.scheduling import (
    POOL,
    Planes,
    Replica,
    body_of,
    cancelled,
    delivered,
    finished,
    read_history,
    run_of,
    started,
    submitted,
)

pytestmark = pytest.mark.asyncio


async def dispatched(plane: Replica, **wanted: Any) -> Job:
    """A job that has been handed to the workers."""
    await plane.beat(capacity=100)
    job = await plane.submit(**wanted)
    await plane.scheduler.on_submit(submitted(job))
    found = await plane.job(job)
    assert found.state is JobState.DISPATCHED
    return found


# Submitting.


async def test_a_job_with_a_live_worker_is_dispatched_with_its_message_under_one_fence(plane: Replica) -> None:
    """W21, W39: state and message are one transaction, and the message names attempt and fence."""
    job = await dispatched(plane, payload={"n": 1}, tenant="acme", priority=3)
    [message] = await plane.staged(subjects.WORK)
    assert message["subject"] == subjects.work_subject(POOL)
    assert message["id"] == f"work:{job.id}:1:{job.fence}"
    assert (message["fence"], message["priority"]) == (job.fence, 3)
    assert body_of(message)["payload"] == {"n": 1}
    assert await plane.running() == ({"acme": 1}, {POOL: 1})
    assert read_history(await plane.store.events(job.id)) == []


async def test_a_submit_that_is_delivered_again_changes_nothing(plane: Replica) -> None:
    job = await dispatched(plane)
    for _ in range(3):
        await plane.scheduler.on_submit(submitted(job))
    assert await plane.job(job) == job
    assert len(await plane.staged(subjects.WORK)) == 1
    assert plane.scheduler.statistics()["job.submit.nothing"] == 3


async def test_a_submit_of_a_job_that_does_not_exist_is_done_with(plane: Replica) -> None:
    await plane.scheduler.on_submit(submitted("gone"))
    assert plane.scheduler.statistics()["job.submit.missing"] == 1


async def test_a_job_without_a_worker_waits_in_the_queue_of_its_topic_and_is_not_a_retry_loop(plane: Replica) -> None:
    """W37: it waits where the first worker finds it, and nothing is acknowledged away or counted as failure."""
    await plane.beat("gone", 4)
    plane.clock.push(31)
    await plane.workers.view(fresh=True)
    job = await plane.submit()
    await plane.scheduler.on_submit(submitted(job))
    waiting = await plane.job(job)
    assert (waiting.state, waiting.queue) == (JobState.PENDING, JobQueue.TOPIC)
    assert await plane.staged(subjects.WORK) == []
    assert len(await plane.staged(subjects.SUBMIT)) == 1, "no message comes to look at it again"


async def test_a_job_of_a_topic_that_no_worker_has_announced_waits_until_one_does(plane: Replica) -> None:
    await plane.beat("w1", 4, "other")
    job = await plane.submit(tenant="acme")
    async with plane.scheduler.serving():
        await plane.heard()
        plane.clock.push(86_400)
        await plane.beat("w1", 4, "other")
        await plane.scheduler.on_submit(submitted(job))
        waiting = await plane.job(job)
        assert (waiting.state, waiting.queue, waiting.code) == (JobState.PENDING, JobQueue.TOPIC, None)
        assert await plane.letters.get(job.id) is None
        await plane.beat("w2", 4)
        await plane.in_state(job, JobState.DISPATCHED)
    assert plane.scheduler.dispatcher.tally["dispatched"] == 1, "the dispatcher found it, and no replay was needed"


async def test_a_waiting_job_moves_to_the_pool_whose_worker_announces_its_topic(plane: Replica) -> None:
    await plane.beat("w1", 4, "other")
    jobs = [await plane.submit() for _ in range(3)]
    async with plane.scheduler.serving():
        await plane.heard()
        await plane.beat("w2", 4, pool="elsewhere")
        for job in jobs:
            await plane.in_state(job, JobState.DISPATCHED)
    assert {(await plane.job(job)).pool for job in jobs} == {"elsewhere"}


async def test_many_jobs_of_topics_without_workers_cost_other_jobs_no_look(plane: Replica) -> None:
    """They are in no queue that a dispatcher reads, however many topics and jobs there are."""
    await plane.beat("w1", 4)
    for number in range(20):
        job = await plane.submit(topic=f"unserved-{number % 7}")
        await plane.scheduler.on_submit(submitted(job))
    async with plane.scheduler.serving():
        other = await plane.submit()
        await plane.in_state(other, JobState.DISPATCHED)
        tally = plane.scheduler.dispatcher.tally
        assert (tally["no_worker"], tally["aside"]) == (0, 0)


async def test_what_was_sent_for_a_topic_that_no_worker_serves_any_more_is_taken_back(planes: Planes) -> None:
    """Although the pool has room: a rolling deploy has removed the topic while an assignment was under way."""
    plane = await planes.open(idle_ns=20 * MS)
    await plane.beat("old", 4)
    await plane.beat("new", 4, "other")
    async with plane.scheduler.serving():
        job = await plane.submit()
        await plane.in_state(job, JobState.DISPATCHED)
        await plane.workers.leave("old")
        plane.clock.push(2)
        await plane.beat("new", 4, "other")
        await plane.in_state(job, JobState.RETRYING)
        waiting = await plane.job(job)
        assert (waiting.code, waiting.queue, waiting.attempt) == ("taken_back", JobQueue.TOPIC, 0)
        await plane.beat("old", 4)
        await plane.in_state(job, JobState.DISPATCHED)


async def test_a_topic_that_nobody_announces_is_given_up_after_a_grace_if_that_is_asked_for(planes: Planes) -> None:
    plane = await planes.open(topic_grace_ns=30 * NS)
    await plane.beat("w1", 4, "other")
    job = await plane.submit(tenant="acme")
    await plane.scheduler.on_submit(submitted(job))
    waiting = await plane.job(job)
    assert waiting.state is JobState.PENDING
    later = (await plane.staged(subjects.SUBMIT))[-1]
    assert later["not_before_ns"] == job.created_ns + 30 * NS > plane.now_ns
    plane.clock.push(31)
    await plane.scheduler.on_submit(submitted(job))
    ended = await plane.job(job)
    assert (ended.state, ended.code) == (JobState.FAILED, "unknown_topic")
    letter = await plane.letters.get(job.id)
    assert letter is not None
    assert (letter.code, letter.tenant) == ("unknown_topic", "acme")


async def test_a_job_for_a_topic_that_is_away_leaves_the_line_to_others(plane: Replica) -> None:
    """W23: at the head of the line it would be looked at forever, and those behind it never."""
    await plane.beat("specialist", 4, "rare")
    plane.clock.push(31)
    await plane.beat("w1", 4)
    job = await plane.submit(topic="rare")
    await plane.scheduler.on_submit(submitted(job))
    parked = await plane.job(job)
    assert (parked.state, parked.queue) == (JobState.PENDING, JobQueue.TOPIC)


async def test_a_job_for_later_is_looked_at_when_its_time_has_come_and_not_before(plane: Replica) -> None:
    await plane.beat()
    job = await plane.submit(not_before_ns=plane.now_ns + 60 * NS)
    await plane.scheduler.on_submit(submitted(job))
    assert (await plane.job(job)).state is JobState.PENDING
    [first, second] = await plane.staged(subjects.SUBMIT)
    assert first["id"] != second["id"]
    assert second["not_before_ns"] == job.not_before_ns
    await plane.scheduler.on_submit(submitted(job))  # a clock that is a little behind looks too early: one more message
    assert len({row["id"] for row in await plane.staged(subjects.SUBMIT)}) == 3
    plane.clock.push(61)
    await plane.beat()
    await plane.scheduler.on_submit(submitted(job))
    assert (await plane.job(job)).state is JobState.DISPATCHED


async def test_a_job_whose_deadline_has_passed_ends_before_it_is_dispatched(plane: Replica) -> None:
    await plane.beat()
    job = await plane.submit(deadline_ns=plane.now_ns - 1)
    await plane.scheduler.on_submit(submitted(job))
    ended = await plane.job(job)
    assert (ended.state, ended.code, ended.reason) == (JobState.TIMEOUT, "deadline", "timeout: deadline expired")
    assert await plane.staged(subjects.WORK) == []


async def test_a_tenant_at_its_limit_and_a_pool_without_room_wait_in_line(planes: Planes) -> None:
    plane = await planes.open(slots=1)
    await plane.beat(capacity=2)
    jobs = [await plane.submit(tenant=tenant) for tenant in ("acme", "acme", "other", "third")]
    for job in jobs:
        await plane.scheduler.on_submit(submitted(job))
    assert [(await plane.job(job)).state for job in jobs] == [
        JobState.DISPATCHED,
        JobState.PENDING,
        JobState.DISPATCHED,
        JobState.PENDING,
    ]
    counts = plane.scheduler.statistics()
    assert (counts["job.submit.tenant_full"], counts["job.submit.pool_full"]) == (1, 1)
    assert await plane.running() == ({"acme": 1, "other": 1, "third": 0}, {POOL: 2})


# Starting.


async def test_a_start_is_noted_with_worker_and_fence_once(plane: Replica) -> None:
    job = await dispatched(plane)
    run = run_of(job)
    await plane.scheduler.on_started(started(job, 1, run))
    running = await plane.job(job)
    assert (running.state, running.worker, running.run_fence) == (JobState.RUNNING, "w1", run.fence)
    await plane.scheduler.on_started(started(job, 1, run))
    assert await plane.job(job) == running
    assert plane.scheduler.statistics()["job.started.repeated"] == 1


async def test_a_start_under_an_overtaken_fence_is_refused_and_told_to_stop(plane: Replica) -> None:
    job = await dispatched(plane)
    await plane.scheduler.on_started(started(job, 1, run_of(job, 20), "second"))
    await plane.scheduler.on_started(started(job, 1, run_of(job, 19), "first"))
    assert (await plane.job(job)).worker == "second"
    [stop] = await plane.staged(subjects.STOP)
    assert stop["subject"] == "stop.first"
    assert body_of(stop)["attempt"] == 1


async def test_a_worker_that_begins_a_cancelled_job_is_told_to_stop(plane: Replica) -> None:
    """W21: the cancel came while the message was on its way; the worker hears of it with its first word."""
    job = await dispatched(plane)
    await plane.scheduler.on_cancel(cancelled(job))
    assert await plane.staged(subjects.STOP) == []  # no worker has it yet
    await plane.scheduler.on_started(started(job, 1, run_of(job)))
    assert [row["subject"] for row in await plane.staged(subjects.STOP)] == ["stop.w1"]
    assert (await plane.job(job)).state is JobState.CANCELLED


# Results.


async def test_a_success_is_the_end_with_its_result_and_gives_the_places_back(plane: Replica) -> None:
    job = await dispatched(plane, tenant="acme")
    run = run_of(job)
    await plane.scheduler.on_started(started(job, 1, run))
    await plane.scheduler.on_result(finished(job, 1, run))
    ended = await plane.job(job)
    assert (ended.state, ended.result, ended.worker) == (JobState.SUCCEEDED, {"ok": True}, "w1")
    assert await plane.running() == ({"acme": 0}, {POOL: 0})
    assert await plane.staged(subjects.STOP) == []
    assert read_history(await plane.store.events(job.id)) == []


async def test_a_result_that_overtakes_its_start_counts_and_the_start_then_says_nothing_new(plane: Replica) -> None:
    job = await dispatched(plane)
    run = run_of(job)
    await plane.scheduler.on_result(finished(job, 1, run))
    await plane.scheduler.on_started(started(job, 1, run))
    assert (await plane.job(job)).state is JobState.SUCCEEDED
    assert plane.scheduler.statistics()["job.started.over"] == 1


async def test_a_second_result_and_a_result_after_a_cancel_change_nothing_and_are_counted(plane: Replica) -> None:
    job, other = await dispatched(plane), await dispatched(plane)
    run = run_of(job)
    await plane.scheduler.on_result(finished(job, 1, run))
    ended = await plane.job(job)
    await plane.scheduler.on_result(finished(job, 1, run, error="late"))
    await plane.scheduler.on_cancel(cancelled(job))
    assert await plane.job(job) == ended
    await plane.scheduler.on_cancel(cancelled(other))
    await plane.scheduler.on_result(finished(other, 1, run_of(other)))
    assert (await plane.job(other)).state is JobState.CANCELLED
    counts = plane.scheduler.statistics()
    assert (counts["job.result.over"], counts["job.cancel.over"], counts["duplicate_ends"]) == (2, 1, 0)
    assert await plane.running() == ({"default": 0}, {POOL: 0})


@pytest.mark.requires("R71")
async def test_a_result_of_a_worker_that_was_overtaken_is_refused(plane: Replica) -> None:
    """W5: a worker that was paused for longer than its lease comes back after another has begun."""
    job = await dispatched(plane)
    await plane.scheduler.on_started(started(job, 1, run_of(job, 7), "paused"))
    await plane.scheduler.on_started(started(job, 1, run_of(job, 8), "second"))
    await plane.scheduler.on_result(finished(job, 1, run_of(job, 7), "paused"))
    assert (await plane.job(job)).state is JobState.RUNNING
    await plane.scheduler.on_result(finished(job, 1, run_of(job, 8), "second"))
    ended = await plane.job(job)
    assert (ended.state, ended.worker) == (JobState.SUCCEEDED, "second")
    assert plane.scheduler.statistics()["job.result.stale"] == 1


async def test_a_failed_attempt_is_tried_again_after_its_delay_and_each_attempt_is_another_message(
    plane: Replica,
) -> None:
    """W25, W39: the retry is due at a definite time, and its dispatch cannot be taken for the first."""
    job = await dispatched(plane, tenant="acme")
    await plane.scheduler.on_result(finished(job, 1, run_of(job), error="boom", retry_after_ns=5 * NS))
    retrying = await plane.job(job)
    assert (retrying.state, retrying.attempt, retrying.reason) == (JobState.RETRYING, 1, "postponed: boom")
    assert await plane.running() == ({"acme": 0}, {POOL: 0})
    again = (await plane.staged(subjects.SUBMIT))[-1]
    assert again["not_before_ns"] == retrying.not_before_ns
    await plane.scheduler.on_result(finished(job, 1, run_of(job), error="boom"))  # delivered again
    assert await plane.job(job) == retrying
    assert plane.scheduler.statistics()["job.result.repeated"] == 1
    plane.clock.push(6)
    await plane.scheduler.on_submit(submitted(job))
    second = await plane.job(job)
    assert (second.state, second.attempt) == (JobState.DISPATCHED, 2)
    ids = [row["id"] for row in await plane.staged(subjects.WORK)]
    assert [each.split(":")[2] for each in ids] == ["1", "2"]
    await plane.scheduler.on_result(finished(job, 1, run_of(job)))  # of the attempt before
    assert (await plane.job(job)).state is JobState.DISPATCHED
    assert read_history(await plane.store.events(job.id)) == []


async def test_a_retry_that_finds_no_room_waits_in_line(plane: Replica) -> None:
    await plane.beat(capacity=1)
    job = await plane.submit()
    await plane.scheduler.on_submit(submitted(job))
    await plane.scheduler.on_result(finished(job, 1, run_of(job), error="boom", retry_after_ns=NS))
    other = await plane.submit()
    await plane.scheduler.on_submit(submitted(other))
    plane.clock.push(2)
    await plane.scheduler.on_submit(submitted(job))
    waiting = await plane.job(job)
    assert (waiting.state, waiting.not_before_ns) == (JobState.RETRYING, 0)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"error": "no", "retryable": False}, "fatal"),
        ({"error": "no"}, "max_attempts"),
        ({"error": "10 workers", "retryable": False, "code": "lost"}, "lost"),
        ({"error": "no", "retryable": False, "code": "a word of a newer version"}, "fatal"),
    ],
)
async def test_a_job_that_cannot_be_tried_again_fails_for_people_to_see(
    plane: Replica, said: dict[str, Any], code: str
) -> None:
    job = await dispatched(plane, max_attempts=1 if code == "max_attempts" else 3, payload=[1])
    await plane.scheduler.on_result(finished(job, 1, run_of(job), **said))
    ended = await plane.job(job)
    assert (ended.state, ended.code) == (JobState.FAILED, code)
    letter = await plane.letters.get(job.id)
    assert letter is not None
    assert (letter.code, letter.attempts, letter.body["payload"]) == (code, 1, [1])


# Cancelling.


async def test_a_cancel_ends_a_job_wherever_it_is_and_tells_the_worker_that_has_it(plane: Replica) -> None:
    """W20, W21: under the job's lock like everything else."""
    waiting = await plane.submit(tenant="acme")
    running = await dispatched(plane, tenant="acme")
    await plane.scheduler.on_started(started(running, 1, run_of(running, 5)))
    for job in (waiting, running):
        await plane.scheduler.on_cancel(cancelled(job, "changed our mind"))
        ended = await plane.job(job)
        assert (ended.state, ended.reason, ended.code) == (JobState.CANCELLED, "changed our mind", "cancelled")
    [stop] = await plane.staged(subjects.STOP)
    assert (stop["subject"], body_of(stop)["job"]) == ("stop.w1", running.id)
    assert await plane.running() == ({"acme": 0}, {POOL: 0})
    assert (await plane.store.events(running.id))[-1].actor == "ada"


async def test_a_cancel_that_meets_a_held_lock_is_given_back_and_not_lost(plane: Replica) -> None:
    job = await plane.submit()
    lease = await plane.hold(job)
    with pytest.raises(RetryLater, match="job lock busy"):
        await plane.scheduler.on_cancel(cancelled(job))
    await lease.release()
    await plane.scheduler.on_cancel(cancelled(job))
    assert (await plane.job(job)).state is JobState.CANCELLED


# Once more.


async def test_a_lost_dispatch_is_sent_again_as_the_same_attempt_under_a_newer_fence(plane: Replica) -> None:
    """W39: a message id that only named the job would be dropped as a duplicate."""
    job = await dispatched(plane)
    assert await plane.placement.redispatch(job.id)
    again = await plane.job(job)
    assert (again.state, again.attempt, again.updated_ns) == (JobState.DISPATCHED, 1, job.updated_ns)
    first, second = await plane.staged(subjects.WORK)
    assert second["fence"] > first["fence"]
    assert second["id"] != first["id"]
    assert await plane.running() == ({"default": 1}, {POOL: 1})
    await plane.scheduler.on_result(finished(job, 1, run_of(job)))
    assert not await plane.placement.redispatch(job.id)
    assert not await plane.placement.redispatch("unknown")


# What cannot be, and stopping.


@pytest.mark.parametrize(
    "message",
    [
        subjects.finished("j", 1, "w1", CarriedFence("holdfast:worker:job:other", 1), {"status": "succeeded"}),
        replace(subjects.finished("j", 1, "w1", run_of("j"), {"status": "succeeded"}), fence=None),
        subjects.finished("j", 1, "w1", run_of("j"), {"status": "fine"}),
        subjects.finished("j", -1, "w1", run_of("j"), {"status": "failed"}),
        subjects.finished("j", 1, "", run_of("j"), {"status": "failed"}),
        subjects.finished("j", 1, "w1", run_of("j"), {"status": "failed", "retry_after_ns": "soon"}),
        Message("x", subjects.RESULT, {}, "", run_of("j")),
    ],
)
async def test_a_result_that_cannot_be_understood_is_refused_and_ends_among_the_dead_letters(
    plane: Replica, message: Message
) -> None:
    with pytest.raises(BadInput):
        await plane.scheduler.handlers[subjects.RESULT](delivered(message))


async def test_an_illegal_move_is_an_outcome_and_not_a_retry_loop(plane: Replica) -> None:
    """W38: trying again would be refused again. No handler asks for one; if one did, it would be counted."""
    job = await plane.submit()
    await plane.scheduler.on_cancel(cancelled(job))

    async def ends_it_twice(_: Delivery) -> None:
        async with job_lock(plane.locks, job.id) as lease:
            await plane.store.change(lease, job.id, lambda _: Writing([Change(JobState.TIMEOUT)]))

    await plane.scheduler._guarded(ends_it_twice)(cancelled(job))
    counts = plane.scheduler.statistics()
    assert (counts["job.cancel.InvalidTransition"], counts["duplicate_ends"]) == (1, 1)
    assert (await plane.job(job)).state is JobState.CANCELLED


async def test_a_scheduler_that_stops_acknowledges_nothing_that_it_has_not_done(plane: Replica) -> None:
    """W33: results that arrived during shutdown were acknowledged unprocessed."""
    job = await dispatched(plane)
    plane.scheduler.stop()
    for subject, delivery in (
        (subjects.RESULT, finished(job, 1, run_of(job))),
        (subjects.SUBMIT, submitted(job)),
        (subjects.CANCEL, cancelled(job)),
    ):
        with pytest.raises(RetryLater, match="stopping"):
            await plane.scheduler.handlers[subject](delivery)
    assert await plane.job(job) == job
