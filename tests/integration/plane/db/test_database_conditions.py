"""Writes with conditions: no row is locked meanwhile, and yet no write overwrites another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

from holdfast.errors import BadInput, FencedOut, Misconfigured, RowMissing, Unavailable
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.postgres.combined_statement import TOGETHER_MAX
from holdfast.plane.db.postgres.database import PostgresDatabase
from holdfast.plane.jobs.store import PoolFull, TenantFull, Writing
from holdfast.plane.locks import registry as families
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Change, Job
from support.fixtures.databases import THINGS, insert, numbers
from support.fixtures.postgres import PostgresConnect, every_postgres
from support.fixtures.scheduling import POOL, Planes

pytestmark = pytest.mark.asyncio

LOOK = "SELECT note FROM thing WHERE id = 1"
MOVE = "UPDATE thing SET note = :after WHERE id = 1 AND note = :before RETURNING 1 AS done"
MAKE = "INSERT INTO thing (id) VALUES (:id) RETURNING 1 AS done"
DISPATCH = [Change(JobState.SCHEDULED, actor="s"), Change(JobState.DISPATCHED, actor="s")]


@pytest_asyncio.fixture
async def base(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    """One connection, so that each user of it meets the errors of the others."""
    opened = PostgresDatabase(postgres_url, pool_max=1)
    await opened.write(lambda tx: tx.query(THINGS))
    await opened.write(partial(insert, number=1, note="0"))
    yield opened
    await opened.close()


async def raised(tx: Tx) -> int:
    """Part of a work: the number in the row, raised by one if it is still what it was."""
    before = (await tx.query(LOOK))[0]["note"]
    await tx.put(MOVE, {"before": before, "after": str(int(before) + 1)}, rows=1)
    return int(before)


def make_again(connect: PostgresConnect) -> None:
    """A function of the server that asks every caller to repeat its transaction."""
    owner: psycopg.Connection[tuple[object, ...]] = connect(autocommit=True)
    body = "BEGIN RAISE EXCEPTION 'again' USING ERRCODE = 'serialization_failure'; END"
    owner.execute(f"CREATE FUNCTION again() RETURNS INT LANGUAGE plpgsql AS $$ {body} $$")


async def note(database: Database) -> str:
    return str((await database.read(lambda tx: tx.query(LOOK), one_view=False))[0]["note"])


async def test_nobody_writes_over_anybody_however_many_there_are(database: Database, plane_url: str) -> None:
    await database.write(partial(insert, number=1, note="0"))
    other = open_database(plane_url)

    seen = await asyncio.gather(
        *(each.write(raised, checked=True) for _ in range(40) for each in (database, other)), return_exceptions=True
    )

    done = [each for each in seen if isinstance(each, int)]
    assert sorted(done) == [*range(len(done))]  # each has raised another number
    assert await note(database) == str(len(done))
    # On Postgres a work that holds nothing while it reads, and is run again as one transaction, may find its row
    # changed there too: it reads without a lock. That is refused, and nothing is written.
    assert all(isinstance(each, int | RowMissing) for each in seen)
    await other.close()


@every_postgres
async def test_what_has_changed_since_it_was_read_is_read_again_and_held(
    base: PostgresDatabase, postgres_connect: PostgresConnect
) -> None:
    other: psycopg.Connection[tuple[object, ...]] = postgres_connect(autocommit=True)
    held: list[bool] = []

    async def work(tx: Tx) -> str:
        before = str((await tx.query(f"{LOOK} FOR UPDATE" if tx.holds else LOOK))[0]["note"])
        if not held:
            other.execute("UPDATE thing SET note = '7' WHERE id = 1")
        held.append(tx.holds)
        await tx.put(MAKE, {"id": 2 + len(held)})
        await tx.put(MOVE, {"before": before, "after": f"{before}!"}, rows=1)
        return before

    assert await base.write(work, checked=True) == "7"
    assert held == [False, True]
    assert await note(base) == "7!"
    assert await numbers(base) == [1, 4]  # nothing is left of the first try
    assert base.statistics()["held"] == 1
    assert base.statistics()["run_again"] == 0


@every_postgres
async def test_what_can_never_be_written_is_said_after_one_more_try(base: PostgresDatabase) -> None:
    with pytest.raises(RowMissing):
        await base.write(lambda tx: tx.put(MOVE, {"before": "other", "after": "x"}, rows=1), checked=True)
    assert await note(base) == "0"


async def _asks_after_it_has_put(tx: Tx) -> list[Row]:
    await tx.put(MAKE, {"id": 5})
    return await tx.query("SELECT id FROM thing ORDER BY id")


async def _writes_by_asking(tx: Tx) -> list[Row]:
    await tx.query("INSERT INTO thing (id) VALUES (5)")
    return await tx.query("SELECT id FROM thing ORDER BY id")


async def _writes_within_a_question(tx: Tx) -> list[Row]:
    await tx.query("WITH made AS (INSERT INTO thing (id) VALUES (5) RETURNING id) SELECT id FROM made")
    return await tx.query("SELECT id FROM thing ORDER BY id")


async def _writes_many(tx: Tx) -> list[Row]:
    await tx.query_many("INSERT INTO thing (id) VALUES (:id)", [{"id": 5}])
    return await tx.query("SELECT id FROM thing ORDER BY id")


async def _swallows_what_it_is_told(tx: Tx) -> list[Row]:
    await tx.put(MAKE, {"id": 5})
    try:
        return await tx.query("SELECT id FROM thing ORDER BY id")
    except Exception:
        return []


@every_postgres
@pytest.mark.parametrize(
    "work",
    [
        _asks_after_it_has_put,
        _writes_by_asking,
        _writes_within_a_question,
        _writes_many,
        _swallows_what_it_is_told,
    ],
)
async def test_a_work_that_needs_a_transaction_gets_one(base: PostgresDatabase, work: object) -> None:
    assert await base.write(work, checked=True) == [{"id": 1}, {"id": 5}]  # type: ignore[arg-type]  # one of them
    assert await numbers(base) == [1, 5]
    assert base.statistics()["held"] == 1


@every_postgres
async def test_more_than_fits_one_statement_is_one_transaction(base: PostgresDatabase) -> None:
    async def work(tx: Tx) -> None:
        await tx.query(LOOK)
        for number in range(2, 3 + TOGETHER_MAX):
            await tx.put(MAKE, {"id": number})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await base.write(work, checked=True)
    assert await numbers(base) == [1]
    assert base.statistics()["held"] == 1


@every_postgres
async def test_a_work_that_needs_a_transaction_gets_one_also_after_it_was_asked_for_again_and_again(
    base: PostgresDatabase, postgres_connect: PostgresConnect
) -> None:
    """That it needs one is found out at the last of its tries: then it is run once more, and not given up."""
    make_again(postgres_connect)
    held: list[bool] = []

    async def work(tx: Tx) -> list[Row]:
        held.append(tx.holds)
        if len(held) < 5:
            await tx.query("SELECT again()")
        return await _writes_by_asking(tx)

    assert await base.write(work, checked=True) == [{"id": 1}, {"id": 5}]
    assert held == [False] * 5 + [True]
    assert (base.statistics()["held"], base.statistics()["run_again"]) == (1, 4)


@every_postgres
async def test_a_work_that_the_server_never_lets_through_ends_in_an_error_of_the_store(
    base: PostgresDatabase, postgres_connect: PostgresConnect
) -> None:
    make_again(postgres_connect)
    held: list[bool] = []

    async def work(tx: Tx) -> None:
        held.append(tx.holds)
        if len(held) == 3:
            await _writes_by_asking(tx)
        await tx.query("SELECT again()")

    with pytest.raises(Unavailable):
        await base.write(work, checked=True)
    assert held == [False] * 3 + [True] * 3
    assert await numbers(base) == [1]


async def test_a_work_that_raises_writes_nothing(database: Database) -> None:
    async def work(tx: Tx) -> None:
        await tx.query(LOOK)
        await tx.put(MAKE, {"id": 2})
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await database.write(work, checked=True)
    assert await numbers(database) == []


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO thing (id) VALUES (9)", "WITH x AS (INSERT INTO thing (id) VALUES (9) RETURNING id) SELECT * FROM x"],
)
async def test_what_only_reads_writes_nothing_also_without_one_view(database: Database, statement: str) -> None:
    with pytest.raises((BadInput, Misconfigured)):  # the second is a form that SQLite does not know
        await database.read(lambda tx: tx.query(statement), one_view=False)
    assert await numbers(database) == []


@every_postgres
async def test_a_dead_idle_connection_is_replaced_and_leaves_no_doubt(
    base: PostgresDatabase, postgres_connect: PostgresConnect
) -> None:
    killer: psycopg.Connection[tuple[object, ...]] = postgres_connect(autocommit=True)
    ours = "application_name = 'holdfast' AND datname = current_database()"
    killer.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {ours}")

    assert await base.write(raised, checked=True) == 0
    assert await note(base) == "1"
    assert base.statistics()["unknown"] == 0


@every_postgres
async def test_a_connection_that_dies_between_reading_and_writing_leaves_no_doubt(
    base: PostgresDatabase, postgres_connect: PostgresConnect
) -> None:
    killer: psycopg.Connection[tuple[object, ...]] = postgres_connect(autocommit=True)
    tries = 0

    async def work(tx: Tx) -> int:
        nonlocal tries
        tries += 1
        found = await raised(tx)
        if tries == 1:
            ours = "application_name = 'holdfast' AND datname = current_database()"
            killer.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {ours}")
        return found

    assert await base.write(work, checked=True) == 0
    assert await note(base) == "1"
    assert base.statistics()["unknown"] == 0


def fence_of(job: Job, fence: int) -> CarriedFence:
    return CarriedFence(families.SCHEDULER_JOB.key(job=job.id), fence)


async def test_limits_are_kept_to_the_last_place_by_schedulers_that_hold_nothing(planes: Planes) -> None:
    """Each reads that there is room, all write together: as many succeed as there are slots."""
    stores = [(await planes.open(slots=5)).store for _ in range(3)]
    plane = await planes.open()
    jobs = [await plane.submit(tenant=tenant) for tenant in ("a", "b") for _ in range(12)]

    async def dispatch(number: int, job: Job) -> bool:
        try:
            await stores[number % 3].change(fence_of(job, 1), job.id, lambda _: Writing(DISPATCH, capacity=8))
        except (TenantFull, PoolFull):
            return False
        return True

    done = await asyncio.gather(*(dispatch(number, job) for number, job in enumerate(jobs)))

    assert sum(done) == 8
    states = [(await plane.job(job)).state is JobState.DISPATCHED for job in jobs]
    assert states == done
    tenants, pools = await plane.running()
    assert pools == {POOL: 8}
    assert sum(tenants.values()) == 8
    assert max(tenants.values()) <= 5


@every_postgres
@pytest.mark.parametrize("overtaking", ["fence", "version"])
async def test_a_scheduler_that_is_overtaken_between_reading_and_writing_writes_nothing(
    postgres_url: str, postgres_connect: PostgresConnect, tmp_path: Path, overtaking: str
) -> None:
    planes = Planes(postgres_url, f"sqlite:///{tmp_path / 'leases.db'}")
    plane = await planes.open()
    job = await plane.submit()
    other: psycopg.Connection[tuple[object, ...]] = postgres_connect(autocommit=True)
    seen: list[int | None] = []

    def decide(read: Job) -> Writing:
        if not seen:
            changed = "holdfast_fence = 9" if overtaking == "fence" else "version = version + 1"
            other.execute(f"UPDATE plane_job SET {changed}")
        seen.append(read.version)
        return Writing(DISPATCH)

    if overtaking == "fence":
        with pytest.raises(FencedOut):
            await plane.store.change(fence_of(job, 1), job.id, decide)
        assert (await plane.job(job)).state is JobState.PENDING
        assert len(await plane.store.events(job.id)) == 1
        assert await plane.running() == ({}, {})
    else:
        moved = await plane.store.change(fence_of(job, 1), job.id, decide)
        assert moved.after == await plane.job(job)
        assert seen == [1, 2]
    await planes.close()
