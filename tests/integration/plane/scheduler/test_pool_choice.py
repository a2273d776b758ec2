"""Which pool a job goes to: the one that was requested, else wherever a live worker takes its topic."""

from __future__ import annotations

import pytest

from holdfast.plane.fleet.registry import Pool, View
from holdfast.plane.locks.registry import REPLAYER
from holdfast.plane.maintenance.replayer import Replayer
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Delivery, Job, Submission
from holdfast.plane.scheduler.placement import PlacementResult
from holdfast.plane.service.service import Caller, Service, ServiceParts
from holdfast.types import NS
from support.fixtures.scheduling import FakeWorkers, Planes, Replica, check_histories
from support.harness.loop_ticks import one_tick

ANN = Caller("ann")


def submitted(job: Job) -> Delivery:
    return Delivery(subjects.submitted(job.id), subjects.SCHEDULER, 1, 0, job.created_ns)


@pytest.mark.asyncio
async def test_a_job_goes_where_a_live_worker_takes_its_topic(plane: Replica) -> None:
    job = await plane.submit(topic="rare")
    await plane.scheduler.on_submit(submitted(job))
    assert (await plane.job(job)).state is JobState.PENDING
    await plane.beat("specialist", 2, "rare", pool="elsewhere")
    await plane.scheduler.on_submit(submitted(job))
    sent = await plane.job(job)
    assert (sent.state, sent.pool) == (JobState.DISPATCHED, "elsewhere")
    assert await plane.running() == ({sent.tenant: 1}, {"elsewhere": 1})
    [message] = await plane.staged(subjects.work_subject("elsewhere"))
    assert job.id in message["body"]


@pytest.mark.asyncio
@pytest.mark.parametrize("why", ["pool", "tenant"])
async def test_a_job_that_finds_no_place_there_waits_in_that_line_and_is_found_by_its_bell(
    planes: Planes, why: str
) -> None:
    """The idle look is an hour away here."""
    plane = await planes.open(idle_ns=3600 * NS, slots=None if why == "pool" else 1)
    await plane.beat("w1", 1 if why == "pool" else 2, pool="new")
    first = await plane.submit(pool="new")
    await plane.scheduler.on_submit(submitted(first))
    job = await plane.submit(pool="old")
    async with plane.scheduler.serving():
        await plane.heard()
        waiting = await plane.job(job)
        assert (waiting.state, waiting.pool, waiting.updated_ns) == (JobState.PENDING, "new", job.updated_ns)
        async with FakeWorkers(plane, pool="new").serving():
            await plane.in_state(job, JobState.SUCCEEDED)
    assert await check_histories(plane) == {}


@pytest.mark.asyncio
async def test_a_job_whose_time_has_come_waits_in_that_line_too(plane: Replica) -> None:
    await plane.beat("w1", 1, pool="new")
    await plane.scheduler.on_submit(submitted(await plane.submit(pool="new")))
    job = await plane.submit(pool="old", not_before_ns=plane.now_ns + NS)
    plane.clock.push(2)
    assert await plane.placement.place(job.id) is PlacementResult.MOVED
    waiting = await plane.job(job)
    assert (waiting.pool, waiting.not_before_ns) == ("new", 0)
    assert await plane.placement.place(job.id) is PlacementResult.POOL_FULL


@pytest.mark.asyncio
async def test_jobs_of_a_pool_that_was_renamed_take_their_turns_beside_a_busy_tenant(planes: Planes) -> None:
    """All of them after one tick of the replayer, and not a few with each."""
    plane = await planes.open()
    await plane.beat("w1", 1, pool="old")
    stranded = [await plane.submit(tenant="stranded", pool="old") for _ in range(20)]
    await plane.workers.leave("w1")
    await plane.database.write(lambda tx: tx.query("DELETE FROM plane_message"))
    plane.clock.push(31)
    await plane.beat("w2", 1, pool="new")
    busy = [await plane.submit(tenant="busy", pool="new") for _ in range(60)]
    await plane.scheduler.on_submit(submitted(busy[0]))
    replayer = Replayer(plane.placement)
    await one_tick(plane, REPLAYER, replayer.tick)
    found = [await plane.job(job) for job in stranded]
    assert {(job.state, job.pool) for job in found} == {(JobState.PENDING, "new")}
    assert (replayer.statistics().waiting, replayer.statistics().orphan_replayed) == (20, {})

    workers = FakeWorkers(plane, pool="new")
    async with plane.scheduler.serving(), workers.serving():
        await plane.reach(80, JobState.SUCCEEDED)
    last = max(place for place, tenant in enumerate(workers.tenants) if tenant == "stranded")
    assert last <= 2 * len(stranded) + 2, workers.tenants
    assert await plane.running() == ({"stranded": 0, "busy": 0}, {"new": 0})
    assert await check_histories(plane) == {}


@pytest.mark.asyncio
async def test_a_job_in_the_wrong_line_is_moved_though_others_of_its_tenant_wait_rightly(planes: Planes) -> None:
    plane = await planes.open(slots=1)
    await plane.beat("w1", 4, pool="new")
    first, second = [await plane.submit(pool="new") for _ in range(2)]
    await plane.scheduler.on_submit(submitted(first))
    assert await plane.placement.place(second.id) is PlacementResult.TENANT_FULL
    stranded = [await plane.submit(pool="old") for _ in range(3)]
    plane.clock.push(31)
    await plane.beat("w1", 4, pool="new")
    await one_tick(plane, REPLAYER, Replayer(plane.placement, at_once=1).tick)
    assert {(await plane.job(job)).pool for job in stranded} == {"new"}


@pytest.mark.asyncio
async def test_a_line_with_jobs_of_another_pool_at_its_head_goes_on(planes: Planes) -> None:
    """They were submitted to a pool that does not serve their topic, and the one that does is full."""
    plane = await planes.open()
    await plane.beat("w1", 1, "mail", pool="mails")
    await plane.beat("w2", 1)
    await plane.scheduler.on_submit(submitted(blocker := await plane.submit()))
    wrong = [await plane.submit(pool="mails", priority=9) for _ in range(5)]
    right = await plane.submit(topic="mail", pool="mails")
    await plane.database.write(lambda tx: tx.query("DELETE FROM plane_message WHERE subject = 'job.submit'"))
    async with plane.scheduler.serving():
        await plane.in_state(right, JobState.DISPATCHED)
        assert {(await plane.job(job)).pool for job in wrong} == {blocker.pool}
        async with FakeWorkers(plane).serving():
            for job in wrong:
                await plane.in_state(job, JobState.SUCCEEDED)


@pytest.mark.asyncio
async def test_a_job_waits_in_the_pool_that_was_asked_for_whoever_else_would_take_it(plane: Replica) -> None:
    await plane.beat("american", 2, "pay", pool="us")
    parts = ServiceParts(plane.database, plane.bus, plane.locks, plane.store, plane.workers)
    job, _ = await Service(parts).submit(ANN, Submission("pay"), pool="eu")
    assert job.pool == "eu"
    await plane.scheduler.on_submit(submitted(job))
    waits = await plane.job(job)
    assert (waits.state, waits.pool) == (JobState.PENDING, "eu")
    await plane.beat("european", 2, "pay", pool="eu")
    await plane.scheduler.on_submit(submitted(job))
    sent = await plane.job(job)
    assert (sent.state, sent.pool) == (JobState.DISPATCHED, "eu")


@pytest.mark.asyncio
async def test_a_dead_letter_is_tried_again_in_the_pool_that_was_asked_for(planes: Planes) -> None:
    plane = await planes.open(topic_grace_ns=30 * NS)
    service = Service(ServiceParts(plane.database, plane.bus, plane.locks, plane.store, plane.workers))
    job, _ = await service.submit(ANN, Submission("pay"), pool="eu")
    plane.clock.push(31)
    await plane.scheduler.on_submit(submitted(job))  # no worker has ever announced its topic
    await plane.beat("american", 2, "pay", pool="us")
    again, _ = await service.retry(ANN, job.id)
    await plane.scheduler.on_submit(submitted(again))
    waits = await plane.job(again)
    assert (waits.state, waits.pool) == (JobState.PENDING, "eu")


def test_its_own_pool_is_preferred_and_otherwise_the_choice_is_always_the_same() -> None:
    serving = {name: Pool(name, 1, 4, {"t": 1}) for name in ("zebra", "default", "ant")}
    assert View(pools=serving).pool_for("t", "default") == "default"
    del serving["default"]
    assert View(pools=serving).pool_for("t", "default") == "ant"
    assert View(pools=serving).pool_for("unknown", "default") == "default"
    assert View().pool_for("t", "default") == "default"
