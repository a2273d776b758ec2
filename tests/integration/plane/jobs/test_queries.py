"""What people and loops ask about jobs, tenants, dead letters and workers; answers do not slow with the past."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.errors import BadInput, RowMissing
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database, Tx, Work
from holdfast.plane.db.statements import compiled, sql
from holdfast.plane.jobs.dead_letters import DeadLetters
from holdfast.plane.jobs.queries import JobQueries, place_of
from holdfast.plane.jobs.quotas import Tenant
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import ACTIVE, JobState
from holdfast.plane.model.paging import AFTER_ALL, Place
from holdfast.plane.model.records import Heartbeat
from holdfast.plane.process.components import open_components
from holdfast.plane.settings.settings import Settings
from holdfast.types import NS
from support.fixtures.scheduling import POOL, TOPIC, Planes, Replica, cancelled, finished, run_of, submitted

pytestmark = pytest.mark.asyncio

STORED = 20_000

_FILL = (
    "INSERT INTO plane_job (id, tenant, topic, pool, state, priority, attempt, max_attempts, payload, created_ns, "
    "updated_ns, version, not_before_ns, submitted_by, trace, labels) VALUES (:id, :tenant, 'render', 'default', "
    ":state, 0, 1, 3, 'null', :at_ns, :at_ns, 3, 0, 'test', '', '{}')"
)


async def fill(plane: Replica, number: int) -> None:
    """Many jobs that have ended, and a few that wait."""
    rows = [
        {"id": f"j{n}", "tenant": f"t{n % 7}", "state": "SUCCEEDED" if n % 1000 else "PENDING", "at_ns": 10**9 + n}
        for n in range(number)
    ]
    await plane.database.write(lambda tx: tx.query_many(_FILL, rows))
    await plane.database.write(lambda tx: tx.query("ANALYZE"))


async def test_pages_are_newest_first_filtered_and_without_gaps(plane: Replica) -> None:
    jobs = [await plane.submit(tenant=f"t{n % 2}", topic=("a", "b", "c")[n % 3]) for n in range(12)]
    newest = [job.id for job in reversed(jobs)]
    seen: list[str] = []
    after = AFTER_ALL
    while page := await plane.queries.page(after=after, limit=5):
        seen += [job.id for job in page]
        after = place_of(Place(page[-1].created_ns, page[-1].id).text)
    assert seen == newest
    mine = await plane.queries.page(tenant="t1", topic="b")
    assert [job.id for job in mine] == [job.id for job in reversed(jobs) if job.tenant == "t1" and job.topic == "b"]
    await plane.scheduler.on_cancel(cancelled(jobs[0]))
    assert [job.id for job in await plane.queries.page(state="cancelled")] == [jobs[0].id]
    assert len(await plane.queries.page(state=JobState.PENDING, tenant="t0")) == 5
    counts = await plane.queries.counts()
    assert (counts[JobState.PENDING], counts[JobState.CANCELLED], counts[JobState.RUNNING]) == (11, 1, 0)
    assert set(await plane.queries.counts(finished=False, tenant="t0")) == ACTIVE


class Weighing:
    """A database that notes how much each answer to a reader weighs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.heaviest = 0

    async def read(self, work: Work[Any]) -> Any:
        async def weighed(tx: Tx) -> Any:
            return await work(_Weighed(tx, self))  # type: ignore[arg-type]  # readers query, and nothing else

        return await self._database.read(weighed)


class _Weighed:
    def __init__(self, tx: Tx, scales: Weighing) -> None:
        self._tx = tx
        self._scales = scales

    async def query(self, statement: str, parameters: Any = None) -> Any:
        rows = await self._tx.query(statement, parameters)
        self._scales.heaviest = max(self._scales.heaviest, len(str([dict(row) for row in rows])))
        return rows


@pytest.mark.parametrize("tenant", [None, "t1"])
async def test_a_page_reads_nothing_of_what_jobs_were_given_and_have_made(plane: Replica, tenant: str | None) -> None:
    await plane.beat(capacity=100)
    jobs = [await plane.submit(tenant=f"t{n % 2}", payload="x" * 300_000, max_attempts=1) for n in range(6)]
    for job in jobs:
        await plane.scheduler.on_submit(submitted(job))
        await plane.scheduler.on_result(finished(job, 1, run_of(job), error="boom"))
    scales = Weighing(plane.database)
    queries, letters = JobQueries(scales), DeadLetters(plane.store)  # type: ignore[arg-type]  # it reads, and no more
    letters._database = scales  # type: ignore[assignment]
    expected = [job.id for job in reversed(jobs) if tenant in (None, job.tenant)]
    for state in (None, JobState.FAILED):
        seen, after = [], AFTER_ALL
        while page := await queries.page(tenant=tenant, state=state, after=after, limit=2):
            seen += [job.id for job in page]
            after = Place(page[-1].created_ns, page[-1].id)
        assert seen == expected
    seen, after = [], AFTER_ALL
    while dead := await letters.page(tenant=tenant, after=after, limit=2):
        seen += [letter.id for letter in dead]
        after = Place(dead[-1].at_ns, dead[-1].id)
    assert seen == expected
    live = await plane.submit(tenant="t1", payload="x" * 300_000)
    assert [job.id for job in await queries.page(tenant=tenant, state=JobState.PENDING)] == [live.id]
    assert 0 < scales.heaviest < 10_000


async def test_a_list_does_not_read_long_payloads_from_the_disk(tmp_path: Path) -> None:
    """SQLite walks through a long value on the way to the columns behind it."""
    path = tmp_path / "plane.db"
    database = open_database(f"sqlite:///{path}")
    await prepare(database)
    await database.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA mmap_size = 0")
        file.execute("PRAGMA cache_size = 10")
        for number in range(20):
            values = {"id": f"j{number}", "tenant": "t", "state": "FAILED", "at_ns": number}
            file.execute(_FILL, values)
        file.execute("UPDATE plane_job SET payload = ?, result = ?", ["x" * 500_000] * 2)
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        listed = {**_PAGE, "tenant": None, "state": "FAILED", "topic": "render", "most": 100}
        for name in ("job_list_all", "job_list_tenant", "job_list_failed", "job_list_topic", "status_newest_all"):
            before = _bytes_read()
            file.execute(sql(name), listed if name != "job_list_tenant" else {**listed, "tenant": "t"}).fetchall()
            assert _bytes_read() - before < 1_000_000, name  # of 20 MB


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize(
    "asked",
    [{"limit": 0}, {"limit": 1001}, {"limit": True}, {"state": "DONE"}, {"state": 7}, {"tenant": ""}, {"topic": "a b"}],
)
async def test_a_question_that_cannot_be_answered_is_refused(plane: Replica, asked: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        await plane.queries.page(**asked)


@pytest.mark.parametrize("text", ["", "7", "x~y", "-1~a", "9" * 30 + "~a", "²~a", None, "1~\0"])
async def test_what_is_no_place_is_refused(text: Any) -> None:
    with pytest.raises(BadInput):
        place_of(text)


_PAGE = {"created_ns": 10**18, "id": "", "most": 9}
STATEMENTS: dict[str, dict[str, Any]] = {
    "pool_queue_tenants": {"pool": POOL, "after": "", "most": 256},
    "pool_queue_jobs": {"pool": POOL, "tenant": "t1", "most": 10},
    "job_count_live": {"tenant": None},
    "job_list_live": {"state": "PENDING", "tenant": None, "topic": None, **_PAGE},
    "job_list_failed": {"state": "FAILED", "tenant": None, "topic": None, **_PAGE},
    "job_list_topic": {"topic": "a", "tenant": None, "state": None, **_PAGE},
    "job_list_tenant": {"tenant": "t1", "state": None, **_PAGE},
    "job_list_all": {"state": None, **_PAGE},
    "job_get": {"id": "j1"},
    "job_by_key": {"tenant": "t1", "idempotency_key": "k"},
    "status_newest_all": {"most": 100},
    "status_newest_tenant": {"tenant": "t1", "most": 100},
    "status_dead_jobs_all": {"most": 20},
    "status_dead_jobs_tenant": {"tenant": "t1", "most": 20},
    "job_suspects": {"since_ns": 0, "most": 100},
    "status_active": {"state": "PENDING", "tenant": None, "most": 40},
}
INDEXES = {
    "pool_queue_tenants": "plane_job_queue",
    "pool_queue_jobs": "plane_job_queue",
    "job_list_live": "plane_job_live",
    "job_list_failed": "plane_job_failed",
    "job_list_topic": "plane_job_topic",
    "job_list_all": "plane_job_newest",
}


async def test_nothing_reads_the_whole_table_however_many_jobs_are_stored(plane: Replica) -> None:
    await fill(plane, STORED)
    sqlite = plane.database.dialect == "sqlite"
    for name, values in STATEMENTS.items():
        explained = ("EXPLAIN QUERY PLAN " if sqlite else "EXPLAIN ") + sql(name)
        rows = await plane.query(explained, **values)
        plan = "\n".join(str(list(row.values())[-1]) for row in rows)
        assert "plane_job" in plan, plan
        if sqlite:
            # A scan of an index is in order here: a partial one holds the live jobs only, and a page ends it.
            assert [
                line for line in plan.splitlines() if line.startswith("SCAN plane_job") and "INDEX" not in line
            ] == []
        else:
            assert "Seq Scan on plane_job" not in plan, plan
        assert INDEXES.get(name, "") in plan, plan


async def test_a_dead_letter_is_tried_again_as_one_new_job_however_often_it_is_asked_for(planes: Planes) -> None:
    plane, other = await planes.open(), await planes.open()
    await plane.beat()
    job = await plane.submit(payload={"n": 1}, tenant="acme", priority=4, max_attempts=1, labels={"a": "b"})
    await plane.scheduler.on_submit(submitted(job))
    await plane.scheduler.on_result(finished(job, 1, run_of(job), error="boom"))
    calls = [DeadLetters(each.store).retry(job.id, actor="ada") for each in (plane, other) * 4]
    answers = await asyncio.gather(*calls)
    assert sum(made for _, made in answers) == 1
    assert len({again.id for again, _ in answers}) == 1
    again = answers[0][0]
    assert again.id.startswith(f"{job.id}-retry-")
    assert len(again.id) == len(job.id) + len("-retry-") + 8
    assert (again.payload, again.tenant, again.priority, again.labels) == ({"n": 1}, "acme", 4, {"a": "b"})
    assert (again.state, again.attempt, again.submitted_by) == (JobState.PENDING, 0, "ada")
    assert f"job.submit:{again.id}:{again.created_ns}" in [row["id"] for row in await plane.staged(subjects.SUBMIT)]
    letter = await plane.letters.get(job.id)
    assert letter is not None
    assert letter.retried_as == again.id
    assert (await plane.job(job)).state is JobState.FAILED


async def test_dead_letters_are_listed_by_tenant_newest_first_and_forgotten_by_age(plane: Replica) -> None:
    await plane.beat(capacity=100)
    jobs = [await plane.submit(tenant=f"t{n % 2}", max_attempts=1) for n in range(6)]
    for job in jobs:
        await plane.scheduler.on_submit(submitted(job))
        await plane.scheduler.on_result(finished(job, 1, run_of(job), error="boom"))
    first = await plane.letters.page(limit=4)
    rest = await plane.letters.page(after=Place(first[-1].at_ns, first[-1].id))
    assert [each.job for each in first + rest] == [job.id for job in reversed(jobs)]
    assert [each.job for each in await plane.letters.page(tenant="t1")] == [jobs[5].id, jobs[3].id, jobs[1].id]
    assert {(each.attempts, each.retried_as) for each in first + rest} == {(1, None)}
    again, _ = await plane.letters.retry(jobs[5].id, actor="ada")
    assert [each.retried_as for each in await plane.letters.page(limit=2)] == [again.id, None]
    assert await plane.letters.sweep(first[-1].at_ns, limit=1) == 1
    assert await plane.letters.sweep(first[-1].at_ns) == 1
    assert len(await plane.letters.page()) == 4
    assert await plane.letters.get("unknown") is None
    with pytest.raises(RowMissing):
        await plane.letters.retry("unknown")
    with pytest.raises(BadInput):
        await plane.letters.retry("")
    with pytest.raises(BadInput):
        await plane.letters.page(limit=0)


async def test_a_long_id_makes_room_for_what_a_retry_adds(plane: Replica) -> None:
    await plane.beat()
    job = await plane.submit(id="j" * 200, max_attempts=1)
    await plane.scheduler.on_submit(submitted(job))
    await plane.scheduler.on_result(finished(job, 1, run_of(job), error="boom"))
    again, _ = await plane.letters.retry(job.id)
    assert len(again.id) == 200


async def test_a_tenants_limit_is_its_own_or_the_default_and_0_holds_everything_back(planes: Planes) -> None:
    plane = await planes.open(slots=3)
    assert await plane.tenants.get("acme") == Tenant("acme", 0, 3, own=False)
    assert await plane.tenants.limit("acme", 0) == Tenant("acme", 0, 0, own=True)
    await plane.beat()
    job = await plane.submit(tenant="acme")
    await plane.scheduler.on_submit(submitted(job))
    assert (await plane.job(job)).state is JobState.PENDING
    assert await plane.tenants.limit("acme", None) == Tenant("acme", 0, 3, own=False)
    await plane.scheduler.on_submit(submitted(job))
    assert await plane.tenants.get("acme") == Tenant("acme", 1, 3, own=False)
    assert [each.name for each in await plane.tenants.page()] == ["acme"]
    for bad in (-1, True, 1.5, 10**9):
        with pytest.raises(BadInput):
            await plane.tenants.limit("acme", bad)  # type: ignore[arg-type]  # what it must refuse


async def test_a_worker_counts_while_it_is_heard_and_for_what_it_can_take(plane: Replica) -> None:
    await plane.beat("w1", 4)
    await plane.beat("w2", 2, TOPIC, "rare")
    view = await plane.workers.view(fresh=True)
    pool = view.pool(POOL)
    assert (pool.workers, pool.capacity, pool.workers_for(TOPIC), pool.workers_for("rare")) == (2, 6, 2, 1)
    await plane.beat("w1", 4, active=3, draining=True)
    pool = (await plane.workers.view(fresh=True)).pool(POOL)
    assert (pool.workers, pool.capacity, pool.workers_for(TOPIC)) == (1, 5, 1)
    assert await plane.workers.leave("w1")
    assert [each.worker for each in await plane.workers.live(POOL)] == ["w2"]
    plane.clock.push(31)
    view = await plane.workers.view(fresh=True)
    assert (view.pool(POOL).workers, view.known_topics) == (0, frozenset({TOPIC, "rare"}))
    assert await plane.workers.live() == []
    assert len(await plane.workers.all()) == 2
    assert await plane.workers.sweep(plane.now_ns - 10 * NS) == 2


async def test_an_older_word_of_a_worker_does_not_replace_a_newer_and_a_clock_ahead_does_not_keep_it_alive(
    plane: Replica,
) -> None:
    now_ns = plane.now_ns
    assert await plane.workers.record(Heartbeat("w1", POOL, (TOPIC,), 4, 0, now_ns))
    assert not await plane.workers.record(Heartbeat("w1", POOL, (TOPIC,), 9, 0, now_ns - 1))
    assert await plane.workers.record(Heartbeat("w2", POOL, (TOPIC,), 4, 0, now_ns + 3600 * NS))
    plane.clock.push(31)
    assert await plane.workers.live() == []
    for wrong in ({"capacity": -1}, {"worker": ""}, {"pool": "a b"}, {"topics": ("",)}, {"at_ns": -1}):
        with pytest.raises(BadInput):
            said = {"worker": "w", "pool": POOL, "topics": (), "capacity": 1, "active": 0, "at_ns": 1, **wrong}
            await plane.workers.record(Heartbeat(**said))  # type: ignore[arg-type]  # what it must refuse


async def test_postgres_lists_a_rare_topic_by_its_index_without_knowing_the_value(postgres_url: str) -> None:
    async with open_components(Settings(database=postgres_url, leases="memory://")) as components:
        rows = [{"id": f"j{n}", "tenant": "t", "state": "SUCCEEDED", "at_ns": 10**9 + n} for n in range(STORED)]
        await components.database.write(lambda tx: tx.query_many(_FILL, rows))
        await components.database.write(lambda tx: tx.query("ANALYZE"))
    ready = compiled(sql("job_list_topic"), "postgres")
    most = {"topic": "rare", "tenant": None, "state": None, "created_ns": 2**62, "id": "z", "most": 101}
    values = ", ".join("NULL" if each is None else f"'{each}'" for each in ready.ordered(most))

    with psycopg.connect(postgres_url) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")  # as in sessions of the plane
        connection.execute("SET enable_sort = off")
        connection.execute(f"PREPARE listed AS {ready.text}".encode())
        told = connection.execute(f"EXPLAIN EXECUTE listed({values})".encode()).fetchall()
    plan = "\n".join(str(row[0]) for row in told)
    assert "$" in plan, "not the generic plan that sessions of the plane use"
    assert "plane_job_topic" in plan, plan
