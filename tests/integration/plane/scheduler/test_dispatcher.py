"""Fair dispatch and several schedulers: each attempt once, each end once, no limit exceeded, no tenant starved."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import BRIEF_NS, Delivery, Job, Submission
from holdfast.plane.scheduler.placement import PlacementResult
from holdfast.plane.scheduler.prefetch import AHEAD, IN_A_ROW
from holdfast.plane.worker.staleness import Attempts
from holdfast.types import MS
from support.fixtures.scheduling import (
    POOL,
    TOPIC,
    FakeWorkers,
    Planes,
    Replica,
    check_histories,
    enqueue,
    finished,
    holds,
    run_of,
    started,
    submitted,
)

pytestmark = pytest.mark.asyncio


async def dispatched_jobs(replica: Replica) -> list[str]:
    """Jobs in the order in which they were handed to the workers."""
    return [row["message_key"] for row in await replica.staged(subjects.WORK)]


def over(job: Job, took_ns: int) -> Delivery:
    """The word of a worker that has done a job in so much time."""
    return finished(job, job.attempt, run_of(job), status="succeeded", result=None, took_ns=took_ns)


async def submit_many(replica: Replica, number: int, tenants: list[str], **wanted: Any) -> list[Job]:
    calls = [replica.submit(tenant=tenants[n % len(tenants)], **wanted) for n in range(number)]
    return list(await asyncio.gather(*calls))


async def test_a_worker_that_comes_finds_the_jobs_that_waited_for_it(planes: Planes) -> None:
    """W37: no look-back, no age, no poll: the first heartbeat is the wake-up. The idle look is an hour away here."""
    plane = await planes.open(idle_ns=3600 * 10**9)
    elsewhere = await planes.open()
    await plane.beat("gone", 1)
    plane.clock.push(31)
    jobs = await submit_many(plane, 3, ["acme"])
    async with plane.scheduler.serving():
        await plane.heard()
        assert {(await plane.job(job)).state for job in jobs} == {JobState.PENDING}
        await elsewhere.beat("fresh", 8)
        await plane.reach(3, JobState.DISPATCHED)


async def test_a_row_that_cannot_be_read_ends_no_dispatching_for_good(planes: Planes) -> None:
    """The heartbeat of a worker is broken for a while: jobs wait for as long, and then continue."""
    plane = await planes.open(idle_ns=MS)
    await plane.beat()

    async def write(topics: str) -> None:
        values = {"topics": topics}
        await plane.database.write(lambda tx: tx.query("UPDATE plane_worker SET topics = :topics", values))

    async def looked_in_vain() -> bool:
        return plane.scheduler.dispatcher.statistics().get("errors", 0) >= 3

    async with plane.scheduler.serving():
        await write("no JSON")
        await holds(looked_in_vain)
        job, _ = await enqueue(plane.store, Submission(TOPIC, tenant="acme"), POOL)
        await write(f'["{TOPIC}"]')
        await plane.in_state(job, JobState.DISPATCHED)


async def test_a_place_that_becomes_free_goes_to_the_next_in_line(planes: Planes) -> None:
    plane = await planes.open(idle_ns=3600 * 10**9)
    await plane.beat(capacity=1)
    await submit_many(plane, 3, ["acme"])
    async with plane.scheduler.serving():
        for number in range(3):
            await plane.reach(1, JobState.DISPATCHED)
            [job] = await plane.queries.page(state=JobState.DISPATCHED)
            assert (await plane.running())[1] == {POOL: 1}
            await plane.bus.publish([finished(job.id, 1, run_of(job.id)).message])
            await plane.reach(number + 1, JobState.SUCCEEDED)
    assert await check_histories(plane) == {}


async def test_a_job_that_is_made_without_a_message_is_found_in_line_by_the_bell(planes: Planes) -> None:
    """The idle look is an hour away here; and a listener of another process is as good."""
    plane, elsewhere = await planes.open(idle_ns=3600 * 10**9), await planes.open()
    await plane.beat(capacity=8)
    async with plane.scheduler.serving():
        for maker in (plane, elsewhere):
            job, _ = await enqueue(maker.store, Submission(TOPIC, tenant="acme"), POOL)
            await plane.in_state(job, JobState.DISPATCHED)
    assert await plane.staged(subjects.SUBMIT) == []


async def keep_busy(plane: Replica, took_ns: int, dispatched: int) -> None:
    """End jobs after so long, and submit others, until so many are with workers that have one place."""

    async def there() -> bool:
        for found in await plane.queries.page(state=JobState.DISPATCHED):
            await plane.scheduler.on_result(over(await plane.job(found.id), took_ns))
        await submit_many(plane, dispatched + 2, ["acme"])
        await plane.reach(1, JobState.DISPATCHED)
        return (await plane.queries.counts())[JobState.DISPATCHED] == dispatched

    await holds(there)


async def sent_ahead(plane: Replica) -> None:
    """Finish so many brief jobs that prefetch is at its limit."""
    for _ in range(IN_A_ROW):
        job, _ = await enqueue(plane.store, Submission(TOPIC, tenant="acme"), POOL)
        await plane.in_state(job, JobState.DISPATCHED)
        await plane.scheduler.on_result(over(await plane.job(job), 1))
    await keep_busy(plane, 1, 1 + AHEAD)


async def test_more_is_sent_than_there_are_places_only_while_everything_is_over_at_once(planes: Planes) -> None:
    plane = await planes.open()
    await plane.beat(capacity=1)
    async with plane.scheduler.serving():
        await sent_ahead(plane)
        await keep_busy(plane, BRIEF_NS, 1)


async def test_what_was_sent_ahead_and_nobody_begins_is_put_back_in_line_and_costs_no_attempt(planes: Planes) -> None:
    """All slots may be taken for hours by jobs that were expected to be brief."""
    plane = await planes.open()
    await plane.beat(capacity=1)
    async with plane.scheduler.serving():
        await sent_ahead(plane)
        sent = sorted(await plane.queries.page(state=JobState.DISPATCHED), key=lambda job: (job.updated_ns, job.id))
        plane.clock.push(2)
        await plane.beat(capacity=1)
        plane.scheduler.dispatcher.wake(POOL)
        await plane.reach(AHEAD, JobState.RETRYING)
        assert (await plane.running())[1] == {POOL: 1}
        assert plane.scheduler.dispatcher.statistics()["taken_back"] == AHEAD
        [first] = await plane.queries.page(state=JobState.DISPATCHED)
        assert first.id == sent[0].id  # the others would have been begun after it
        back = await plane.job(sent[-1].id)
        assert (back.attempt, back.code, back.not_before_ns) == (0, "taken_back", 0)
        attempts = Attempts(plane.database)
        for each, wanted in ((sent[-1], False), (first, True)):
            assert (await attempts.check((each.id, 0, 1), 7, 0)).wanted is wanted
        urgent, _ = await enqueue(plane.store, Submission(TOPIC, tenant="acme", priority=9), POOL)
        await plane.scheduler.on_result(over(await plane.job(first.id), 10 * BRIEF_NS))
        await plane.in_state(urgent, JobState.DISPATCHED)
        assert (await plane.queries.counts())[JobState.DISPATCHED] == 1
        await plane.scheduler.on_result(over(await plane.job(urgent), 10 * BRIEF_NS))
        await plane.reach(1, JobState.DISPATCHED)
        [again] = await plane.queries.page(state=JobState.DISPATCHED)
        assert again.attempt == 1
    assert await check_histories(plane) == {}


async def test_what_workers_had_that_have_left_is_put_back_in_line(planes: Planes) -> None:
    plane = await planes.open()
    await plane.beat("w1", 2)
    async with plane.scheduler.serving():
        jobs = await submit_many(plane, 2, ["acme"])
        await plane.reach(2, JobState.DISPATCHED)
        running = await plane.job(jobs[0])
        await plane.scheduler.on_started(started(running, 1, run_of(running)))
        plane.clock.push(31)  # the heartbeat of the worker is older than its TTL
        await plane.workers.view(fresh=True)
        plane.scheduler.dispatcher.wake(POOL)
        await plane.in_state(jobs[1], JobState.RETRYING)
        assert (await plane.job(running)).state is JobState.RUNNING
        await plane.beat("w2", 2)
        await plane.in_state(jobs[1], JobState.DISPATCHED)
    assert await check_histories(plane) == {}


async def test_a_tenant_with_a_long_line_does_not_starve_one_with_a_short_one(planes: Planes) -> None:
    """W23: turns go by tenant. The short line is done after as many turns as it is long, not after the long one."""
    plane = await planes.open()
    await plane.beat(capacity=1)
    await submit_many(plane, 30, ["long"])
    await submit_many(plane, 3, ["short"])
    await submit_many(plane, 3, ["third"])
    workers = FakeWorkers(plane)
    async with plane.scheduler.serving():
        await plane.heard()  # one has the only slot, and all others are queued
        async with workers.serving():
            await plane.reach(36, JobState.SUCCEEDED)
    last = max(place for place, tenant in enumerate(workers.tenants) if tenant != "long")
    assert last <= 3 * 3, workers.tenants
    assert await check_histories(plane) == {}


async def test_within_a_tenant_priority_goes_first_and_then_age(planes: Planes) -> None:
    plane = await planes.open()
    await plane.beat(capacity=1)
    blocker = await plane.submit()
    await plane.scheduler.on_submit(submitted(blocker))
    wanted = [await plane.submit(priority=priority) for priority in (0, 5, -3, 5, 9)]
    expected = [wanted[index].id for index in (4, 1, 3, 0, 2)]
    workers = FakeWorkers(plane)
    async with plane.scheduler.serving(), workers.serving():
        await plane.reach(6, JobState.SUCCEEDED)
    assert [job for job, _ in workers.ran] == [blocker.id, *expected]


async def test_a_job_whose_lock_a_dead_scheduler_left_behind_does_not_hold_up_the_others(planes: Planes) -> None:
    plane, dead = await planes.open(), await planes.open()
    jobs = await submit_many(plane, 5, ["acme"])
    lease = await dead.hold(min(jobs, key=lambda job: (job.created_ns, job.id)))
    await plane.beat(capacity=2)
    workers = FakeWorkers(plane)
    async with plane.scheduler.serving(), workers.serving():
        await plane.reach(4, JobState.SUCCEEDED)
        await lease.release()
        await plane.reach(5, JobState.SUCCEEDED)
    assert await check_histories(plane) == {}


@pytest.mark.parametrize("replicas", [2, 3])
async def test_several_schedulers_hand_out_each_attempt_once_and_end_each_job_once(
    planes: Planes, replicas: int
) -> None:
    opened = [await planes.open() for _ in range(replicas)]
    first = opened[0]
    await first.beat(capacity=6)
    failing = {"status": "failed", "error": "boom", "retry_after_ns": 0}

    def script(body: dict[str, Any]) -> dict[str, Any]:
        number = body["payload"]
        if number % 5 == 0 and body["attempt"] == 1:
            return failing
        return {"status": "failed", "error": "no", "retryable": False} if number % 11 == 0 else {"status": "succeeded"}

    workers = [FakeWorkers(each, script) for each in opened]
    jobs = 44
    async with AsyncExitStack() as stack:
        for each in opened:
            await stack.enter_async_context(each.scheduler.serving())
        for crew in workers:
            await stack.enter_async_context(crew.serving(3))
        calls = [
            opened[n % replicas].submit(tenant=f"t{n % 4}", payload=n, idempotency_key=f"k{n}")
            for n in range(jobs)
            for _ in range(2)  # every job is submitted twice, to different schedulers
        ]
        await asyncio.gather(*calls)
        # Everything that was published is published once more, in another order.
        for row in reversed(await first.staged(subjects.SUBMIT)):
            again = subjects.submitted(row["message_key"], again="by the test")
            await opened[-1].bus.publish([again])
        await first.reach(jobs, JobState.SUCCEEDED, JobState.FAILED)
    assert await check_histories(first) == {}
    counts = await first.queries.counts()
    assert (counts[JobState.SUCCEEDED], counts[JobState.FAILED]) == (40, 4)
    tenants, pools = await first.running()
    assert set(tenants.values()) == {0}
    assert pools == {POOL: 0}
    assert sum(each.store.duplicate_ends for each in opened) == 0
    assert all(each.dead == [] for each in opened)


async def test_limits_of_tenants_and_pools_hold_in_every_order_of_events(planes: Planes) -> None:
    """Random interleavings of rounds, results, cancellations and limits, on two schedulers."""
    first, second = await planes.open(slots=2), await planes.open(slots=2)
    await first.beat(capacity=5)
    await second.workers.view(fresh=True)
    await first.tenants.limit("small", 1)
    jobs = [await first.submit(tenant=tenant) for tenant in ("small", "big", "wide") * 5]
    chance = first.store.entropy
    limits = {"small": 1, "big": 2, "wide": 2}

    async def one(replica: Replica) -> None:
        for _ in range(25):
            job = jobs[chance.below(len(jobs))]
            if chance.below(3):
                await replica.scheduler.handlers[subjects.SUBMIT](submitted(job))
            else:
                await replica.scheduler.handlers[subjects.RESULT](finished(job, 1, run_of(job, 1)))

    async def watch() -> None:
        while True:
            rows = await first.query(
                "SELECT tenant, COUNT(*) AS jobs FROM plane_job WHERE state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING') "
                "GROUP BY tenant"
            )
            found = {row["tenant"]: row["jobs"] for row in rows}
            assert all(number <= limits[tenant] for tenant, number in found.items()), found
            assert sum(found.values()) <= 5
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(one(first), one(first), one(second), one(second))
    watcher.cancel()
    assert (await asyncio.gather(watcher, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    assert await check_histories(first) == {}
    counted = await first.query("SELECT tenant, running FROM plane_tenant")
    rows = await first.query("SELECT tenant FROM plane_job WHERE state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING')")
    for row in counted:
        assert row["running"] == sum(each["tenant"] == row["tenant"] for each in rows)


async def test_a_raised_limit_takes_effect_at_once_on_every_scheduler(planes: Planes) -> None:
    plane = await planes.open(idle_ns=3600 * 10**9)
    elsewhere = await planes.open()
    await plane.tenants.limit("acme", 0)
    await plane.beat(capacity=5)
    jobs = await submit_many(plane, 3, ["acme"])
    async with plane.scheduler.serving():
        await plane.heard()
        assert {(await plane.job(job)).state for job in jobs} == {JobState.PENDING}
        await elsewhere.tenants.limit("acme", 2)
        await plane.reach(2, JobState.DISPATCHED)
        assert (await plane.running())[0] == {"acme": 2}


async def test_a_look_at_a_job_that_somebody_else_has_is_not_waited_for(plane: Replica) -> None:
    await plane.beat()
    job = await plane.submit()
    await plane.scheduler.on_submit(submitted(job))
    assert await plane.placement.place(job.id, timeout=0.0) is PlacementResult.NOTHING
    assert await dispatched_jobs(plane) == [job.id]
