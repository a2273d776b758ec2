"""A job that waits for a slot of its topic delays no other, and goes in its turn, whichever workers come or leave."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from holdfast.plane.jobs.insert import CheckedSubmission
from holdfast.plane.locks.registry import REPLAYER
from holdfast.plane.maintenance.replayer import Replayer
from holdfast.plane.model.caller import Caller
from holdfast.plane.model.job_states import JobQueue, JobState
from holdfast.plane.model.records import Job, Submission
from holdfast.plane.scheduler.fast_path import FastPath
from holdfast.plane.scheduler.placement import PlacementResult
from holdfast.plane.scheduler.prefetch import AHEAD
from holdfast.plane.service.submission import SubmissionService
from support.fixtures.scheduling import (
    POOL,
    FakeWorkers,
    Planes,
    Replica,
    check_histories,
    finished,
    holds,
    run_of,
    submitted,
)
from support.harness.loop_ticks import one_tick
from support.harness.topics import HEAVY, LIGHT, STATES, beat, end, states, submit, waiting_in, with_workers

pytestmark = pytest.mark.asyncio

# The line.


async def test_a_line_of_a_scarce_topic_makes_no_trips_in_vain_and_lets_others_pass(planes: Planes) -> None:
    plane = await planes.open(idle_ns=3600 * 10**9)  # a job goes only because another has ended
    await beat(plane, 1)
    heavy = [await submit(plane, HEAVY, priority=9) for _ in range(40)]
    async with plane.scheduler.serving():
        await plane.reach(1, JobState.DISPATCHED)
        light = [await submit(plane, LIGHT) for _ in range(3)]
        await plane.reach(4, JobState.DISPATCHED)  # behind forty of a higher priority
        assert set(await states(plane, light)) == {JobState.DISPATCHED}
        for number, job in enumerate(heavy):
            await plane.in_state(job, JobState.DISPATCHED)  # in the order of their age
            assert await with_workers(plane) == 1
            assert await states(plane, heavy[number + 1 :]) == [JobState.PENDING] * (39 - number)
            await end(plane, job)
    assert {(await plane.job(job)).version for job in heavy} == {3}, "made, handed out, and over"
    tally = plane.scheduler.dispatcher.statistics()
    assert (tally["dispatched"], tally.get("aside", 0)) == (43, 0)


async def test_several_schedulers_and_real_messages_never_have_more_at_once(planes: Planes) -> None:
    replicas = [await planes.open() for _ in range(2)]
    for plane in replicas:
        await beat(plane, 2, capacity=6)
    most = 0
    workers = FakeWorkers(replicas[0])
    ways = [FastPath(plane.placement) for plane in replicas]
    async with replicas[0].scheduler.serving(), replicas[1].scheduler.serving(), workers.serving():

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, await with_workers(replicas[0]))
                await asyncio.sleep(0)

        async def some(number: int) -> None:
            plane, fast_path = replicas[number % 2], ways[number % 2]
            for _ in range(5):
                topic = HEAVY if number % 3 else LIGHT
                entry = CheckedSubmission(
                    Submission(topic, tenant=f"t{number % 4}"),
                    POOL,
                    (),
                    JobQueue.TOPIC if topic == HEAVY else JobQueue.POOL,
                )
                await fast_path.submit_all([plane.store.new(entry)])

        watcher = asyncio.create_task(watch())
        await asyncio.gather(*(some(number) for number in range(12)))
        await replicas[1].reach(60, JobState.SUCCEEDED)
        watcher.cancel()
    brief = 2 * (1 + AHEAD)  # brief attempts may be prefetched
    assert 1 <= most <= brief
    assert sum(way.tally["straight"] for way in ways) >= 1
    assert await check_histories(replicas[0]) == {}
    assert (await replicas[0].running())[1] == {POOL: 0}


async def test_the_places_of_a_topic_go_round_among_tenants_whatever_else_they_have_waiting(planes: Planes) -> None:
    """The turns of the pool always end with the same tenant: the topic has turns of its own."""
    plane = await planes.open(idle_ns=3600 * 10**9)
    await beat(plane, 1, capacity=3)
    for tenant in ("a", "b", "c"):
        for _ in range(3):
            await submit(plane, HEAVY, tenant=tenant)
    went: list[str] = []
    async with plane.scheduler.serving():
        for _ in range(9):
            await holds(lambda: with_workers(plane))
            light = await submit(plane, LIGHT, tenant="z")
            await plane.in_state(light, JobState.DISPATCHED)
            [row] = await plane.query(f"SELECT id, tenant FROM plane_job WHERE topic = 'heavy' AND state IN {STATES}")
            went.append(row["tenant"])
            await end(plane, light)
            await end(plane, await plane.job(row["id"]))
    assert went == ["a", "b", "c"] * 3


async def test_priorities_hold_between_those_aside_and_those_in_line(planes: Planes) -> None:
    plane = await planes.open()
    await plane.beat("w1", 1, HEAVY, LIGHT, "more", places={HEAVY: 0})
    await plane.beat("w2", 1, HEAVY, LIGHT, "more", places={})  # together two places, and one of the heavy topic
    jobs = [
        await submit(plane, topic, priority=priority)
        for topic, priority in ((LIGHT, 1), (HEAVY, 5), (LIGHT, 9), (HEAVY, 7), (LIGHT, 6))
    ]
    order: list[Job] = []
    async with plane.scheduler.serving():
        while len(order) < len(jobs):
            await holds(lambda: full(plane, len(jobs) - len(order)))
            there = [job for job in jobs if (await plane.job(job)).state is JobState.DISPATCHED and job not in order]
            job = max(there, key=lambda each: each.priority)
            order.append(job)
            await end(plane, job)
    assert [(job.topic, job.priority) for job in order] == [
        (LIGHT, 9),
        (HEAVY, 7),
        (LIGHT, 6),
        (HEAVY, 5),
        (LIGHT, 1),
    ]


async def full(plane: Replica, left: int) -> bool:
    return len(await plane.query(f"SELECT id FROM plane_job WHERE state IN {STATES}")) == min(2, left)


async def test_a_tenant_without_a_place_left_does_not_hold_up_others_who_wait_aside(planes: Planes) -> None:
    plane = await planes.open()
    await plane.tenants.limit("a", 0)
    await beat(plane, 1)
    await submit(plane, HEAVY, tenant="a", priority=9)
    job = await submit(plane, HEAVY, tenant="b")
    async with plane.scheduler.serving():
        await plane.in_state(job, JobState.DISPATCHED)


# Workers that come and go.


async def test_what_stands_aside_waits_while_nobody_takes_its_topic_and_goes_when_somebody_comes(
    planes: Planes,
) -> None:
    plane = await planes.open(idle_ns=3600 * 10**9)
    await beat(plane, 1)
    await plane.beat("w2", 4, LIGHT)
    async with plane.scheduler.serving():
        first, second = [await submit(plane, HEAVY) for _ in range(2)]
        await plane.in_state(first, JobState.DISPATCHED)
        await plane.workers.leave("w1")
        await plane.workers.view(fresh=True)
        await end(plane, first)
        light = await submit(plane, LIGHT)
        await plane.in_state(light, JobState.DISPATCHED)
        assert (await plane.job(second)).state is JobState.PENDING
        await beat(plane, 1, worker="w3")
        await plane.in_state(second, JobState.DISPATCHED)


async def test_what_stands_aside_goes_when_its_topic_has_as_many_places_as_its_pool(planes: Planes) -> None:
    plane = await planes.open()
    await beat(plane, 1)
    jobs = [await submit(plane, HEAVY) for _ in range(4)]
    async with plane.scheduler.serving():
        await plane.reach(1, JobState.DISPATCHED)
        await beat(plane, None)
        await plane.reach(4, JobState.DISPATCHED)
    assert set(await states(plane, jobs)) == {JobState.DISPATCHED}


async def test_the_replayer_finds_what_stands_aside_and_costs_a_long_line_nothing(plane: Replica) -> None:
    await beat(plane, 1)
    jobs = [await submit(plane, HEAVY) for _ in range(5)]
    plane.clock.push(40)
    await beat(plane, 1)
    replayer = Replayer(plane.placement)
    await one_tick(plane, REPLAYER, replayer.tick)
    assert Counter(await states(plane, jobs)) == {JobState.DISPATCHED: 1, JobState.PENDING: 4}
    assert {(await plane.job(job)).version for job in jobs} == {1, 2}
    assert (dict(replayer.statistics().orphan_replayed), replayer.statistics().waiting) == ({HEAVY: 1}, 4)


async def test_one_that_came_back_from_a_worker_stands_aside_when_one_of_its_topic_has_ended(plane: Replica) -> None:
    await beat(plane, 2)
    first, second = [await submit(plane, HEAVY) for _ in range(2)]
    for job in (first, second):
        await plane.scheduler.on_submit(submitted(job))
    await plane.scheduler.on_result(finished(second, 1, run_of(second), status="returned", error="no place"))
    assert (await plane.job(second)).not_before_ns > 0
    await end(plane, first)
    back = await plane.job(second)
    assert (back.state, back.queue) == (JobState.RETRYING, JobQueue.TOPIC)


async def test_one_that_is_tried_again_waits_aside_when_its_time_has_come_and_its_topic_is_full(
    plane: Replica,
) -> None:
    await beat(plane, 1)
    first, second = [await submit(plane, HEAVY) for _ in range(2)]
    await plane.scheduler.on_submit(submitted(first))
    await plane.scheduler.on_result(finished(first, 1, run_of(first), error="again", retry_after_ns=10))
    await plane.scheduler.on_submit(submitted(second))
    plane.clock.push(1)
    await plane.scheduler.on_submit(submitted(first))
    back = await plane.job(first)
    assert (back.state, back.queue, await with_workers(plane)) == (JobState.RETRYING, JobQueue.TOPIC, 1)


async def test_one_that_stands_aside_moves_to_the_pool_that_takes_its_topic_now(plane: Replica) -> None:
    await beat(plane, 1)
    job = await submit(plane, HEAVY)
    await plane.workers.leave("w1")
    await plane.beat("w2", 1, HEAVY, pool="elsewhere")
    await plane.beat("w3", 1, LIGHT)
    taken = await plane.submit(topic=HEAVY, pool="elsewhere")
    await plane.scheduler.on_submit(submitted(taken))
    assert await plane.placement.place(job.id) is PlacementResult.MOVED
    found = await plane.job(job)
    assert (found.pool, found.queue) == ("elsewhere", JobQueue.POOL), (
        "where the topic is not limited, it waits in the queue of the pool"
    )


# The short way.


async def test_a_new_job_of_a_scarce_topic_takes_the_short_way_while_there_is_a_place_and_nobody_waits(
    plane: Replica,
) -> None:
    await beat(plane, 1)
    fast_path = FastPath(plane.placement)

    async def new(topic: str) -> Job:
        [end] = await fast_path.submit_all(
            [plane.store.new(CheckedSubmission(Submission(topic), POOL, (), waiting_in(topic == HEAVY)))]
        )
        assert isinstance(end, tuple)
        return end[0]

    first, second = await new(HEAVY), await new(HEAVY)
    assert (first.state, first.queue) == (JobState.DISPATCHED, JobQueue.TOPIC)
    assert (second.state, second.queue) == (JobState.PENDING, JobQueue.TOPIC)
    assert (await new(LIGHT)).state is JobState.DISPATCHED, "the way of others is not closed by it"
    await end(plane, first)
    fast_path._state.succeeded(f"{POOL} {HEAVY}")
    third = await new(HEAVY)
    assert (third.state, await with_workers(plane)) == (JobState.PENDING, 0), "another job waits for that slot"
    assert fast_path.tally == {"straight": 2, "no_place": 2}
    assert await check_histories(plane) == {}


async def test_a_submission_of_a_scarce_topic_stands_in_the_line_of_its_topic_from_its_first_moment(
    plane: Replica,
) -> None:
    await beat(plane, 1)
    fast_path = FastPath(plane.placement)
    submitting = SubmissionService(plane.store, plane.workers, {}, None, fast_path)
    later = plane.now_ns + 10**12
    wanted = [Submission(topic, tenant="acme", not_before_ns=at) for topic in (HEAVY, LIGHT) for at in (0, later)] * 5
    answers = await submitting.all(Caller("ann", "acme"), wanted, None)
    found = [answer[0] for answer in answers if isinstance(answer, tuple)]
    assert [(job.queue, job.not_before_ns) for job in found] == [
        (JobQueue.TOPIC, 0),
        (JobQueue.DELAYED, later),
        (JobQueue.POOL, 0),
        (JobQueue.DELAYED, later),
    ] * 5
