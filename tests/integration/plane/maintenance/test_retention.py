"""The cleanup: what is old enough goes, in bounded steps under the leader's fence; what is not over never does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput, FencedOut
from holdfast.guards.bearer import carried
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.locks.registry import DEAD_LETTER_CLEANUP
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.retention import Cleanup, CleanupStatistics
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job
from holdfast.plane.settings.settings import DAY_NS, Retention
from support.fixtures.scheduling import Planes, Replica, finished, run_of, started, submitted
from support.harness.loop_ticks import one_tick, ticking

pytestmark = pytest.mark.asyncio

DAY = 86_400.0


def cleanup(plane: Replica, **settings: Any) -> Cleanup:
    return Cleanup(plane.database, plane.locks, plane.clock, **settings)


async def clean(plane: Replica, made: Cleanup) -> CleanupStatistics:
    await one_tick(plane, DEAD_LETTER_CLEANUP, made.tick)
    return made.statistics()


async def done(plane: Replica, **wanted: Any) -> Job:
    """A job that has succeeded."""
    await plane.beat(capacity=1000)
    job = await plane.submit(**wanted)
    await plane.scheduler.on_submit(submitted(job))
    await plane.scheduler.on_started(started(job, 1, run := run_of(job)))
    await plane.scheduler.on_result(finished(job, 1, run))
    found = await plane.job(job)
    assert found.state is JobState.SUCCEEDED
    return found


async def letter(plane: Replica, name: str, tenant: str = "acme") -> None:
    values = {
        **dict.fromkeys(("job", "topic", "reason", "code"), "x"),
        "id": name,
        "tenant": tenant,
        "last_state": None,
        "attempts": 1,
        "at_ns": plane.now_ns,
        "made_ns": 0,
        "body": "{}",
    }
    await plane.database.write(lambda tx: tx.query(sql("deadletter_insert"), values))


async def letters(plane: Replica) -> list[str]:
    return [row["id"] for row in await plane.query("SELECT id FROM plane_dead_letter ORDER BY at_ns, id")]


async def test_a_finished_job_is_kept_for_seven_days_from_its_end_with_its_history(plane: Replica) -> None:
    job = await plane.submit()
    plane.clock.push(20 * DAY)  # it waited for long: its end is what counts
    await plane.beat()
    await plane.scheduler.on_submit(submitted(job))
    await plane.scheduler.on_started(started(job, 1, run := run_of(job)))
    await plane.scheduler.on_result(finished(job, 1, run))
    made = cleanup(plane)
    plane.clock.push(6.9 * DAY)
    assert (await clean(plane, made)).jobs == 0
    assert len(await plane.store.events(job.id)) > 0
    plane.clock.push(1.1 * DAY)  # and a new walk through all jobs, which comes once a day
    assert (await clean(plane, made)).jobs == 1
    assert await plane.store.get(job.id) is None
    assert await plane.store.events(job.id) == []


async def test_nothing_that_is_not_over_is_ever_removed(plane: Replica) -> None:
    await plane.beat()
    jobs = [await plane.submit() for _ in range(4)]
    await plane.scheduler.on_submit(submitted(jobs[1]))
    await plane.scheduler.on_submit(submitted(jobs[2]))
    await plane.scheduler.on_started(started(jobs[2], 1, run_of(jobs[2])))
    plane.clock.push(1000 * DAY)
    before = [await plane.job(job) for job in jobs]
    statistics = await clean(plane, cleanup(plane))
    assert (statistics.jobs, statistics.emptied) == (0, 0)
    assert [await plane.job(job) for job in jobs] == before
    assert all([await plane.store.events(job.id) for job in jobs])


async def test_an_idempotency_key_outlives_the_content_of_its_job(plane: Replica) -> None:
    """Submitting the same again after a week is still the same job, and is not done twice."""
    job = await done(plane, payload={"secret": 1}, idempotency_key="k", labels={"a": "b"})
    made = cleanup(plane)
    plane.clock.push(8 * DAY)
    assert await clean(plane, made) == CleanupStatistics(jobs=0, emptied=1, workers=1)
    kept = await plane.job(job)
    assert kept == replace(
        job, payload=None, result=None, labels={subjects.EMPTIED_LABEL: "yes"}, version=job.version + 1
    )
    assert await plane.store.events(job.id) == []
    again = await plane.submit(payload={"secret": 1}, idempotency_key="k")
    assert (again.id, again.state) == (job.id, JobState.SUCCEEDED)
    plane.clock.push(2 * DAY)
    assert (await clean(plane, made)).emptied == 1, "what is empty is not emptied again"
    plane.clock.push(81 * DAY)
    assert (await clean(plane, made)).jobs == 1
    assert (await plane.submit(idempotency_key="k")).id != job.id


async def test_dead_letters_are_kept_for_thirty_days(plane: Replica) -> None:
    await letter(plane, "old")
    plane.clock.push(10 * DAY)
    await letter(plane, "new")
    made = cleanup(plane)
    plane.clock.push(19.9 * DAY)
    assert (await clean(plane, made)).letters == 0
    plane.clock.push(0.2 * DAY)
    assert (await clean(plane, made)).letters == 1
    assert await letters(plane) == ["new"]


async def test_of_each_tenant_the_newest_dead_letters_are_kept(plane: Replica) -> None:
    for number in range(7):
        for tenant in ("", "acme", "umbrella"):
            if tenant != "umbrella" or number < 2:
                await letter(plane, f"{tenant}-{number}", tenant)
        plane.clock.push(1)
    made = cleanup(plane, retention=Retention(letters_of_tenant=3), batch=2)
    assert (await clean(plane, made)).letters == 8
    kept = {f"{tenant}-{number}" for tenant in ("", "acme") for number in (4, 5, 6)} | {"umbrella-0", "umbrella-1"}
    assert set(await letters(plane)) == kept
    assert (await clean(plane, made)).letters == 8
    await letter(plane, "acme-7")
    assert (await clean(plane, made)).letters == 9


async def test_a_tick_is_bounded_and_the_next_leader_goes_on_from_there(planes: Planes) -> None:
    one, two = await planes.open(), await planes.open()
    jobs = [await done(one) for _ in range(10)]
    planes.clock.push(8 * DAY)

    async def left() -> int:
        return sum([await one.store.get(job.id) is not None for job in jobs])

    await clean(one, cleanup(one, batch=2, batches=2))
    assert await left() == 6
    document = cleanup(one).document
    place = await document.read()
    assert place is not None
    assert place.body["jobs"][1] == jobs[3].id
    await clean(two, cleanup(two, batch=2, batches=2))
    assert await left() == 2
    for _ in range(2):
        await clean(two, cleanup(two, batch=2, batches=2))
    assert await left() == 0


async def test_a_stale_leader_removes_nothing(plane: Replica) -> None:
    await done(plane)
    await letter(plane, "old")
    made = cleanup(plane)
    plane.clock.push(40 * DAY)
    async with ticking(plane, DEAD_LETTER_CLEANUP) as tick:
        newer = replace(carried(tick.lease), fence=tick.fence + 1)
        entered = 0

        def another_leads() -> bool:
            nonlocal entered
            entered += 1
            return False

        enter = made.document.enter

        async def overtaken(lease: Any, *, writer: str) -> Any:
            found = await enter(lease, writer=writer)
            await enter(newer, writer="newer")
            return found

        made.document.enter = overtaken  # type: ignore[method-assign]  # a newer leader comes between
        with pytest.raises(FencedOut):
            await made.tick(Tick(tick.lease, 0, another_leads))
        assert entered == 1
    assert made.statistics() == CleanupStatistics()
    assert await letters(plane) == ["old"]
    assert len(await plane.query("SELECT id FROM plane_job")) == 1


async def test_a_sqlite_file_shrinks_when_its_jobs_are_forgotten(tmp_path: Path) -> None:
    planes = Planes(f"sqlite:///{tmp_path}/plane.db", f"sqlite:///{tmp_path}/plane.db")
    try:
        plane = await planes.open()
        for _ in range(30):
            await plane.submit(payload="x" * 300_000)
        assert (large := (await _pages(plane))["page_count"]) > 2_000
        await plane.database.write(lambda tx: tx.query("DELETE FROM plane_job"))
        assert (await _pages(plane))["freelist_count"] > large // 2
        await clean(plane, cleanup(plane))
        left = await _pages(plane)
        assert left["freelist_count"] < 1_000
        assert left["page_count"] < large // 2
    finally:
        await planes.close()


async def _pages(plane: Replica) -> dict[str, int]:
    names = ("page_count", "freelist_count")
    return {name: (await plane.query(f"PRAGMA {name}"))[0][name] for name in names}


async def test_a_worker_that_was_silent_for_a_week_is_forgotten(plane: Replica) -> None:
    await plane.beat("gone")
    plane.clock.push(5 * DAY)
    await plane.beat("here")
    made = cleanup(plane)
    plane.clock.push(3 * DAY)
    assert (await clean(plane, made)).workers == 1
    assert [each.worker for each in await plane.workers.all()] == ["here"]


async def test_a_walk_costs_what_is_new_and_not_what_was_passed_over(plane: Replica) -> None:
    """Jobs that are kept for their key are not read again in every tick, but once a day."""
    await done(plane, idempotency_key="k")
    made = cleanup(plane)
    plane.clock.push(8 * DAY)
    await clean(plane, made)
    pages: list[int] = []
    step = made._finished_jobs

    async def watched(tx: Tx, progress: Any) -> Any:
        counts, after, more = await step(tx, progress)
        pages.append(int(after.jobs != progress.jobs))
        return counts, after, more

    made._finished_jobs = watched  # type: ignore[method-assign]  # there is no other way to see what a step reads
    await clean(plane, made)
    assert pages == [0]
    before = await made.document.read()
    plane.clock.push(1.01 * DAY)
    await clean(plane, made)
    after = await made.document.read()
    assert before is not None
    assert after is not None
    assert after.body["lap_ns"] - before.body["lap_ns"] >= DAY_NS


@pytest.mark.parametrize(
    ("retention", "field"),
    [
        (Retention(keys_ns=DAY_NS), "keys_ns"),
        (Retention(letters_of_tenant=0), "letters_of_tenant"),
        (Retention(jobs_ns=-1), "jobs_ns"),
    ],
)
async def test_a_retention_that_cannot_be_meant_is_refused(
    sqlite_planes: Planes, retention: Retention, field: str
) -> None:
    plane = await sqlite_planes.open()
    with pytest.raises(BadInput) as refused:
        cleanup(plane, retention=retention)
    assert refused.value.field == field
