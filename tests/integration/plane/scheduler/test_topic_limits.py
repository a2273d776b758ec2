"""Topics that have fewer places than their pool: what workers say, and that no more are handed out than these."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.plane.db.batcher import Failed
from holdfast.plane.jobs.insert import CheckedSubmission
from holdfast.plane.jobs.quotas import TopicFull
from holdfast.plane.jobs.updates import UpdateRequest, Writing
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobQueue, JobState
from holdfast.plane.model.records import Change, Heartbeat, Submission
from holdfast.plane.scheduler.placement import PlacementResult
from holdfast.plane.scheduler.prefetch import AHEAD, IN_A_ROW
from support.fixtures.scheduling import (
    POOL,
    Planes,
    Replica,
    cancelled,
    check_histories,
    finished,
    run_of,
)
from support.harness.topics import HEAVY, LIGHT, STATES, beat, end, submit, waiting_in

pytestmark = pytest.mark.asyncio

# What workers say.


async def test_a_pool_has_for_a_topic_what_its_workers_have_between_them(plane: Replica) -> None:
    await beat(plane, 1, worker="w1")
    await beat(plane, 2, worker="w2", capacity=5)
    assert (await plane.workers.view()).pool(POOL).places == {HEAVY: 3}
    await beat(plane, None, worker="w3", capacity=2)  # says nothing of it: as many as it has
    assert (await plane.workers.view()).pool(POOL).places == {HEAVY: 5}
    await plane.beat("w4", 7, LIGHT)  # does not take it
    assert (await plane.workers.view()).pool(POOL).places == {HEAVY: 5}
    await beat(plane, 1, worker="w2", capacity=5, active=3, draining=True)  # it still runs one
    assert (await plane.workers.view()).pool(POOL).places == {HEAVY: 4}
    for worker in ("w1", "w2"):
        await plane.workers.leave(worker)
    assert (await plane.workers.view(fresh=True)).pool(POOL).places == {HEAVY: 2}, "w4 has slots, and does not serve it"
    await plane.workers.leave("w4")
    assert (await plane.workers.view(fresh=True)).pool(POOL).places == {}, (
        "the worker that is left serves it with every slot"
    )


async def test_the_word_of_a_worker_of_an_older_version_is_read(plane: Replica) -> None:
    old = (
        "INSERT INTO plane_worker (worker, pool, topics, capacity, active, at_ns, draining, host, pid) "
        "VALUES ('old', 'default', '[\"heavy\"]', 4, 0, :at_ns, 0, 'h', 1)"
    )
    await plane.database.write(lambda tx: tx.query(old, {"at_ns": plane.now_ns}))
    [found] = await plane.workers.live()
    assert found == Heartbeat("old", POOL, (HEAVY,), 4, 0, found.at_ns, host="h", pid=1)
    assert (await plane.workers.view(fresh=True)).pool(POOL).places == {}


@pytest.mark.parametrize("places", [{"unknown": 1}, {HEAVY: -1}, {HEAVY: True}, {HEAVY: 1.5}, {HEAVY: 10**9}])
async def test_places_that_make_no_sense_are_refused_by_name(plane: Replica, places: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="places"):
        await plane.workers.record(Heartbeat("w1", POOL, (HEAVY,), 4, 0, plane.now_ns, places=places))


async def test_dispatchers_are_told_when_a_topic_has_more_places_than_before(planes: Planes) -> None:
    plane = await planes.open(idle_ns=3600 * 10**9)
    await beat(plane, 0)
    async with plane.scheduler.serving():
        job = await submit(plane, HEAVY)
        other = await submit(plane, LIGHT)
        await plane.in_state(other, JobState.DISPATCHED)
        assert (await plane.job(job)).state is JobState.PENDING
        await beat(await planes.open(), 1)
        await plane.in_state(job, JobState.DISPATCHED)


# Counting.


async def test_no_more_of_a_topic_are_handed_out_than_it_has_places_for(plane: Replica) -> None:
    await beat(plane, 2)
    jobs = [await submit(plane, HEAVY) for _ in range(4)]
    found = [await plane.placement.place(job.id) for job in jobs]
    assert found == [
        PlacementResult.DISPATCHED,
        PlacementResult.DISPATCHED,
        PlacementResult.TOPIC_FULL,
        PlacementResult.TOPIC_FULL,
    ]
    assert await plane.placement.place((await submit(plane, LIGHT)).id) is PlacementResult.DISPATCHED
    sent = await plane.staged(subjects.WORK)
    assert [('"counted":true' in row["body"].replace(" ", "")) for row in sent] == [True, True, False]
    await end(plane, jobs[0])
    assert (await plane.job(jobs[0])).queue is JobQueue.POOL, "what is over has no mark"
    assert [await plane.placement.place(job.id) for job in jobs[2:]] == [
        PlacementResult.DISPATCHED,
        PlacementResult.TOPIC_FULL,
    ]
    assert await check_histories(plane) == {}


async def test_those_who_are_decided_about_together_are_counted_together(plane: Replica) -> None:
    await beat(plane, 2)
    jobs = [await submit(plane, topic) for topic in (HEAVY, LIGHT, HEAVY, HEAVY)]
    found = await plane.placement.place_all([job.id for job in jobs])
    assert found == [
        PlacementResult.DISPATCHED,
        PlacementResult.DISPATCHED,
        PlacementResult.DISPATCHED,
        PlacementResult.TOPIC_FULL,
    ]
    assert await plane.running() == ({"default": 3}, {POOL: 3})


async def test_one_who_finds_its_topic_full_steps_aside_and_is_in_nobodys_way(plane: Replica) -> None:
    """It was submitted before the limit was known."""
    jobs = [await submit(plane, HEAVY, aside=False) for _ in range(3)]
    await beat(plane, 1)
    assert await plane.placement.place_all([job.id for job in jobs]) == [
        PlacementResult.DISPATCHED,
        PlacementResult.TOPIC_QUEUED,
        PlacementResult.TOPIC_QUEUED,
    ]
    for job in jobs[1:]:
        found = await plane.job(job)
        assert (found.state, found.queue, found.version) == (JobState.PENDING, JobQueue.TOPIC, 2)
        assert found.updated_ns == job.updated_ns, "the time for which it has waited goes on"
    assert await plane.placement.place_all([jobs[1].id]) == [PlacementResult.TOPIC_FULL]
    assert (await plane.job(jobs[1])).version == 2


async def test_a_topic_whose_attempts_are_over_at_once_gets_as_many_ahead_as_its_pool_does(plane: Replica) -> None:
    await beat(plane, 2)
    for _ in range(IN_A_ROW):
        plane.placement.prefetch.finished(POOL, HEAVY, 1, plane.clock.now().mono)
    view = await plane.workers.view()
    assert plane.placement.topic_slots(view, POOL) == {HEAVY: 2 * (1 + AHEAD)}
    plane.placement.prefetch.finished(POOL, HEAVY, None, plane.clock.now().mono)
    assert plane.placement.topic_slots(view, POOL) == {HEAVY: 2}


async def test_two_schedulers_at_once_hand_out_no_more_than_there_are_places(planes: Planes) -> None:
    """Three topics, two of them limited, four dispatchers; the jobs with workers are read all the time."""
    first, second = await planes.open(), await planes.open()
    limits = {HEAVY: 2, "other": 1, LIGHT: 9}
    for plane in (first, second):
        await plane.beat("w1", 9, *limits, places={HEAVY: 2, "other": 1})
    news = [
        CheckedSubmission(Submission(topic, tenant=f"t{n % 3}"), POOL, (), waiting_in(n % 2 == 0))
        for n in range(12)
        for topic in limits
    ]
    made = await first.store.submit_all([first.store.new(each) for each in news])
    jobs = [end[0] for end in made if isinstance(end, tuple)]
    left = {job.id for job in jobs}

    async def one(plane: Replica) -> None:
        while left:
            for job in sorted(left):
                await plane.placement.place_all([job])
                if (await plane.job(job)).state is JobState.DISPATCHED:
                    await plane.scheduler.handlers[subjects.RESULT](finished(job, 1, run_of(job, 1)))
                if (await plane.job(job)).state.terminal:
                    left.discard(job)

    seen: Counter[str] = Counter()

    async def watch() -> None:
        while True:
            rows = await first.query(
                f"SELECT topic, COUNT(*) AS n FROM plane_job WHERE state IN {STATES} GROUP BY topic"
            )
            for row in rows:
                seen[row["topic"]] = max(seen[row["topic"]], row["n"])
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(one(first), one(first), one(second), one(second))
    watcher.cancel()
    assert (await asyncio.gather(watcher, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    assert all(seen[topic] <= limits[topic] for topic in limits), seen
    assert await check_histories(first) == {}
    assert (await first.running())[1] == {POOL: 0}


async def test_of_two_schedulers_who_look_at_the_same_moment_one_finds_the_last_place(planes: Planes) -> None:
    """Each time both see that it is free; the second to get hold of the pool sees that it was taken."""
    replicas = [await planes.open() for _ in range(4)]
    changes = [Change(JobState.SCHEDULED), Change(JobState.DISPATCHED, queue=JobQueue.TOPIC)]
    writing = Writing(changes, capacity=100, topic_places=1)
    for _ in range(10):
        jobs = [await submit(plane, HEAVY) for plane in replicas]
        leases = [await plane.hold(job) for plane, job in zip(replicas, jobs, strict=True)]
        tries = [
            plane.store.update([UpdateRequest(job.id, lambda _: lambda _: writing, lease)], counted=True)
            for plane, lease, job in zip(replicas, leases, jobs, strict=True)
        ]
        found = [end.error.__class__ if isinstance(end, Failed) else None for [end] in await asyncio.gather(*tries)]
        assert Counter(found) == {None: 1, TopicFull: 3}
        for lease, job in zip(leases, jobs, strict=True):
            await lease.release()
            await replicas[0].scheduler.on_cancel(cancelled(job))
