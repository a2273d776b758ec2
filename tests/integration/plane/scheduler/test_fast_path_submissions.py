"""The fast path: new jobs are dispatched when they are accepted, if a slot is free and no job waits for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast.errors import Timeout
from holdfast.plane.db.ports import Work
from holdfast.plane.jobs.insert import CheckedSubmission
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import pool_channel
from holdfast.plane.model.records import Heartbeat, Job, Submission
from holdfast.plane.scheduler.fast_path import BATCH_MAX, FastPath
from holdfast.plane.service.service import Caller, Service
from support.fixtures.scheduling import POOL, TOPIC, FakeWorkers, Planes, Replica, check_histories, holds

pytestmark = pytest.mark.asyncio

ANN = Caller("ann", "blue")


async def beat(service: Service, capacity: int = 4) -> None:
    """A worker says that it takes sums."""
    parts = service.parts
    assert await parts.workers.record(Heartbeat("w1", POOL, ("sum",), capacity, 0, parts.store.clock.now().wall))
    await parts.workers.view(fresh=True)


async def prompt(service: Service) -> None:
    """The relay of a bus that has just been opened reads first what is left from before."""

    async def is_prompt() -> bool:
        return service.parts.bus.prompt

    await holds(is_prompt)


async def counts(service: Service) -> tuple[int, int]:
    """How many jobs are with workers: of the tenant, and in the pool."""
    read = service.parts.database.read
    tenant = await read(lambda tx: tx.query("SELECT running FROM plane_tenant WHERE tenant = 'blue'"))
    pool = await read(lambda tx: tx.query("SELECT running FROM plane_pool WHERE pool = :pool", {"pool": POOL}))
    return sum(row["running"] for row in tenant), sum(row["running"] for row in pool)


async def test_a_job_for_which_there_is_a_place_is_with_workers_when_it_is_accepted(every_service: Service) -> None:
    """The same rows, history, fence, counts and message as if a scheduler had looked at it."""
    service = every_service
    await beat(service)
    await prompt(service)
    for number in (1, 2):
        job, made = await service.submit(ANN, Submission("sum", number, "blue"))
        assert (made, job.state, job.attempt, job.version) == (True, JobState.DISPATCHED, 1, 2)
        assert await service.job(ANN, job.id) == job
        events = await service.events(ANN, job.id)
        assert [(each.after, each.actor, each.version) for each in events] == [
            (JobState.PENDING, "ann", 1),
            (JobState.SCHEDULED, "submission", 2),
            (JobState.DISPATCHED, "submission", 2),
        ]
        assert job.fence is not None
        assert [each.fence for each in events] == [None, job.fence, job.fence]
        assert await counts(service) == (number, number)
        assert not await SCHEDULER_JOB.lock(service.parts.locks, job=job.id).locked()
    await pending(service, 2)
    assert service.fast_path.tally == {"straight": 2}


async def pending(service: Service, number: int) -> None:
    """Return when so many attempts wait for workers; one that is just being relayed is counted twice."""

    async def there() -> bool:
        return await service.parts.bus.pending(subjects.work_subject(POOL), subjects.WORKERS) == number

    await holds(there)


async def test_whoever_finds_no_place_stands_in_line_and_whoever_comes_then_stands_behind_it(
    every_service: Service,
) -> None:
    service = every_service
    await beat(service, 1)
    await prompt(service)
    first, _ = await service.submit(ANN, Submission("sum", 1, "blue"))
    listener = service.parts.database.listen(pool_channel(POOL))
    try:
        second, made = await service.submit(ANN, Submission("sum", 2, "blue"))
        assert await listener.wait(30_000_000_000)
    finally:
        listener.close()
    assert (first.state, second.state, second.version, made) == (JobState.DISPATCHED, JobState.PENDING, 1, True)
    await beat(service, 4)  # a slot is free now, and a job waits for it
    service.fast_path._state.succeeded(POOL)
    third, _ = await service.submit(ANN, Submission("sum", 3, "blue", priority=9))
    assert third.state is JobState.PENDING
    assert service.fast_path.tally == {"straight": 1, "no_place": 2}
    assert await counts(service) == (1, 1)


async def test_after_a_try_in_vain_the_long_way_is_gone_at_once(every_service: Service) -> None:
    service = every_service
    await beat(service, 1)
    await prompt(service)
    for number in range(2):
        await service.submit(ANN, Submission("sum", number, "blue"))
    service.fast_path._state.failed(POOL, service.parts.store.clock.now().mono + 60_000_000_000)
    job, _ = await service.submit(ANN, Submission("sum", 2, "blue"))
    assert (job.state, service.fast_path.tally) == (
        JobState.PENDING,
        {"straight": 1, "no_place": 1, "long_way": 1},
    )


async def test_a_crowd_goes_the_long_way(every_service: Service) -> None:
    service = every_service
    await beat(service, 100)
    await prompt(service)
    answers = await service.submit_many(ANN, [Submission("sum", n, "blue") for n in range(BATCH_MAX + 1)])
    assert {each[0].state for each in answers if isinstance(each, tuple)} == {JobState.PENDING}
    assert service.fast_path.tally == {"long_way": BATCH_MAX + 1}
    answers = await service.submit_many(ANN, [Submission("other", n, "blue") for n in range(2)])
    assert {each[0].state for each in answers if isinstance(each, tuple)} == {JobState.PENDING}


async def test_a_submitter_who_leaves_at_any_point_leaves_a_whole_job_or_none_and_is_in_nobodys_way(
    every_service: Service,
) -> None:
    service = every_service
    await beat(service, 100)
    await prompt(service)
    await service.submit(ANN, Submission("sum", 0, "blue"))
    for turns in range(12):
        leaving, staying = (asyncio.create_task(service.submit(ANN, Submission("sum", n, "blue"))) for n in (1, 2))
        for _ in range(turns):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        job, made = await staying
        assert made
        assert job.state in {JobState.DISPATCHED, JobState.PENDING}
    last, _ = await service.submit(ANN, Submission("sum", 3, "blue"))
    assert last.state is JobState.DISPATCHED
    rows = await service.parts.database.read(lambda tx: tx.query("SELECT state FROM plane_job"))
    there = Counter(row["state"] for row in rows)
    assert 14 <= there.total() <= 26
    assert await counts(service) == (there["DISPATCHED"], there["DISPATCHED"])
    await pending(service, there["DISPATCHED"])


async def test_an_idempotency_key_gives_the_first_job_again_whichever_way_it_went(every_service: Service) -> None:
    service = every_service
    await beat(service, 100)
    await prompt(service)
    wanted = Submission("sum", 1, "blue", idempotency_key="once")
    found = await asyncio.gather(*(service.submit(ANN, wanted) for _ in range(8)))
    assert len({job.id for job, _ in found}) == 1
    assert sum(made for _, made in found) == 1
    assert await counts(service) == (1, 1)
    again, made = await service.submit(ANN, wanted)
    assert (again.id, made) == (found[0][0].id, False)


async def test_the_lock_of_an_id_that_somebody_has_chosen_is_not_touched(every_service: Service) -> None:
    service = every_service
    await beat(service)
    await prompt(service)
    async with SCHEDULER_JOB.lock(service.parts.locks, job="chosen"):
        job, made = await service.submit(ANN, Submission("sum", 1, "blue", id="chosen"))
        assert (job.state, made) == (JobState.PENDING, True)
    assert service.fast_path.tally == {"long_way": 1}


def fast_path_of(plane: Replica) -> FastPath:
    return FastPath(plane.placement)


async def submit(plane: Replica, fast_path: FastPath, **wanted: Any) -> Job:
    entry = CheckedSubmission(Submission(**{"topic": TOPIC, **wanted}), POOL)
    [end] = await fast_path.submit_all([plane.store.new(entry)])
    assert isinstance(end, tuple)
    assert end[1] is True
    return end[0]


async def test_a_submission_dispatches_no_job_if_the_fast_path_is_switched_off(plane: Replica) -> None:
    await plane.beat(capacity=5)
    fast_path = FastPath(plane.placement, enabled=False)
    job = await submit(plane, fast_path)
    assert (job.state, fast_path.tally) == (JobState.PENDING, {"long_way": 1})


async def test_limits_hold_for_any_number_of_submitters_and_schedulers_at_once(planes: Planes) -> None:
    """Slots are counted in the transaction that dispatches."""
    replicas = [await planes.open(slots=3) for _ in range(3)]
    for plane in replicas:
        await plane.beat(capacity=5)
    workers = FakeWorkers(replicas[0])
    ways = [fast_path_of(plane) for plane in replicas]
    async with replicas[0].scheduler.serving(), replicas[1].scheduler.serving(), workers.serving():

        async def some(number: int) -> None:
            plane, fast_path = replicas[number % 3], ways[number % 3]
            for _ in range(4):
                await submit(plane, fast_path, tenant=f"t{number % 4}")

        await asyncio.gather(*(some(number) for number in range(15)))
        await replicas[2].reach(60, JobState.SUCCEEDED)
    assert max(workers.most.values()) <= 3
    tally = sum((each.tally for each in ways), Counter[str]())
    assert tally["straight"] >= 1
    tenants, pools = await replicas[0].running()
    assert (set(tenants.values()), pools) == ({0}, {POOL: 0})
    assert await check_histories(replicas[0]) == {}


async def test_a_store_of_leases_that_does_not_answer_keeps_nobody_from_submitting(sqlite_planes: Planes) -> None:
    plane = await sqlite_planes.open()
    await plane.beat(capacity=5)
    fast_path = fast_path_of(plane)
    assert (await submit(plane, fast_path)).state is JobState.DISPATCHED
    await plane.locks.close()
    job = await submit(plane, fast_path)
    assert (job.state, fast_path.tally["long_way"]) == (JobState.PENDING, 1)


async def test_a_job_whose_commit_nobody_could_confirm_is_one_job_and_ours(
    planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = await planes.open()
    await plane.beat(capacity=5)
    fast_path = fast_path_of(plane)
    await submit(plane, fast_path)
    write, lost = plane.database.write, [True]

    async def answer_lost(work: Work[Any], **how: Any) -> Any:
        found = await write(work, **how)
        if lost.pop() if lost else False:
            raise Timeout("the answer was lost")
        return found

    monkeypatch.setattr(plane.database, "write", answer_lost)
    job = await submit(plane, fast_path)
    assert (job.state, fast_path.tally["long_way"]) == (JobState.DISPATCHED, 1)
    assert (await plane.running())[1] == {POOL: 2}
    assert len(await plane.queries.page()) == 2
    assert await check_histories(plane) == {}
