"""What is put in a transaction: sent with others and without waiting, and yet all of it or nothing, on every engine."""

from __future__ import annotations

import asyncio
from functools import partial
from urllib.parse import quote

import psycopg
import pytest

from holdfast.errors import BadInput, RowExists, RowMissing, Timeout
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.db.postgres.combined_statement import TOGETHER_MAX, Put, together
from holdfast.plane.db.postgres.database import PostgresDatabase
from support.fixtures.databases import THINGS, insert, numbers, until
from support.fixtures.postgres import PostgresConnect, every_postgres

INSERT = "INSERT INTO thing (id, name) VALUES (:id, :name) RETURNING 1 AS done"
RENAME = "UPDATE thing SET name = :name WHERE id = :id RETURNING 1 AS done"


async def put(tx: Tx, number: int, name: str | None = None) -> None:
    await tx.put(INSERT, {"id": number, "name": name or f"thing {number}"})


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [1, 3, 2 * TOGETHER_MAX + 1])
async def test_what_was_put_is_written(database: Database, count: int) -> None:
    async def work(tx: Tx) -> None:
        for number in range(count):
            await put(tx, number)

    await database.write(work)

    assert await numbers(database) == [*range(count)]


@pytest.mark.asyncio
async def test_a_question_sees_what_was_put_before_it(database: Database) -> None:
    async def work(tx: Tx) -> list[int]:
        await put(tx, 1)
        await put(tx, 2)
        seen = [row["id"] for row in await tx.query("SELECT id FROM thing ORDER BY id")]
        await put(tx, 3)
        assert await tx.query_many("UPDATE thing SET name = name || '!' WHERE id = :id", [{"id": 3}]) == 1
        return seen

    assert await database.write(work) == [1, 2]
    assert await numbers(database) == [1, 2, 3]


@pytest.mark.asyncio
@pytest.mark.parametrize("asks", [True, False], ids=["asks", "one statement"])
async def test_if_one_of_them_fails_nothing_is_written(database: Database, asks: bool) -> None:
    async def work(tx: Tx) -> None:
        if asks:
            await tx.query("SELECT 1")
        await put(tx, 1, "same")
        await put(tx, 2, "same")

    with pytest.raises(RowExists):
        await database.write(work)

    assert await numbers(database) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("swallows", [True, False], ids=["swallows", "lets it out"])
async def test_a_row_that_should_have_been_written_and_was_not_undoes_everything(
    database: Database, swallows: bool
) -> None:
    async def work(tx: Tx) -> None:
        await put(tx, 1)
        try:
            await tx.put(RENAME, {"id": 99, "name": "nobody"}, rows=1)
            await tx.query("SELECT 1")
        except RowMissing:
            if not swallows:
                raise

    with pytest.raises(RowMissing):
        await database.write(work)

    assert await numbers(database) == []


@pytest.mark.asyncio
async def test_the_rows_are_counted_also_if_nothing_else_is_asked(database: Database) -> None:
    await database.write(partial(insert, number=1))

    await database.write(lambda tx: tx.put(RENAME, {"id": 1, "name": "one"}, rows=1))
    with pytest.raises(RowMissing):
        await database.write(lambda tx: tx.put(RENAME, {"id": 2, "name": "two"}, rows=1))


@pytest.mark.asyncio
async def test_an_error_of_the_work_undoes_what_was_put(database: Database) -> None:
    async def work(tx: Tx) -> None:
        await put(tx, 1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await database.write(work)

    assert await numbers(database) == []


@pytest.mark.asyncio
async def test_a_reading_work_can_put_nothing(database: Database) -> None:
    with pytest.raises(BadInput, match="read"):
        await database.read(lambda tx: put(tx, 1))


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["half \ud800 a pair", "zero \0"], ids=["surrogate", "zero"])
async def test_a_value_that_cannot_be_stored_is_refused(database: Database, name: str) -> None:
    with pytest.raises(BadInput):
        await database.write(lambda tx: put(tx, 1, name))

    assert await numbers(database) == []


@pytest.mark.asyncio
@every_postgres
async def test_a_dead_idle_connection_does_not_leave_a_single_statement_in_doubt(
    postgres_url: str, postgres_connect: PostgresConnect
) -> None:
    base = PostgresDatabase(postgres_url, pool_max=1)
    await base.write(lambda tx: tx.query(THINGS))
    killer: psycopg.Connection[tuple[object, ...]] = postgres_connect(autocommit=True)
    ours = "application_name = 'holdfast' AND datname = current_database()"
    killer.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {ours}")

    await base.write(lambda tx: put(tx, 1))

    assert await numbers(base) == [1]
    assert base.statistics()["unknown"] == 0
    await base.close()


@pytest.mark.asyncio
@every_postgres
async def test_a_connection_lost_during_a_single_statement_leaves_the_outcome_open(
    postgres_url: str, postgres_connect: PostgresConnect
) -> None:
    base = PostgresDatabase(postgres_url, pool_max=1)
    await base.write(lambda tx: tx.query(THINGS))
    holder: psycopg.Connection[tuple[object, ...]] = postgres_connect()
    holder.execute("LOCK TABLE thing IN EXCLUSIVE MODE")
    watcher: psycopg.Connection[tuple[object, ...]] = postgres_connect(autocommit=True)
    writing = asyncio.create_task(base.write(lambda tx: put(tx, 1)))
    find = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    await until(lambda: watcher.execute(find).fetchone())
    watcher.execute(f"SELECT pg_terminate_backend(pid) FROM ({find}) AS waiting")

    with pytest.raises(Timeout, match="may or may not"):
        await writing
    holder.rollback()
    await base.close()


@pytest.mark.asyncio
@every_postgres
async def test_a_single_statement_is_the_same_kind_of_transaction_whatever_the_server_is_used_to(
    postgres_url: str,
) -> None:
    usual = quote("-c default_transaction_isolation=serializable")
    base = PostgresDatabase(f"{postgres_url}{'&' if '?' in postgres_url else '?'}options={usual}")
    note = "INSERT INTO thing (id, note) VALUES (1, current_setting('transaction_isolation')) RETURNING 1 AS done"

    await base.write(lambda tx: tx.query(THINGS))
    await base.write(lambda tx: tx.put(note))

    assert await base.read(lambda tx: tx.query("SELECT note FROM thing")) == [{"note": "read committed"}]
    await base.close()


def test_places_are_numbered_on_and_those_in_texts_are_left_alone() -> None:
    text, values = together([Put("A '$1 :x' :x :y :x", (1, 2), None), Put("B :x", (3,), 1)])

    assert values == (1, 2, 3)
    assert "A '$1 :x' $1 $2 $1" in text
    assert "B $3" in text
    assert text.count("count(*)") == 2


def test_numbers_of_rows_are_checked_by_the_statement_where_that_is_wanted() -> None:
    text, values = together([Put("A :x", (1,), None), Put("B :x", (2,), 5), Put("C", (), 6)], checked=True)

    assert values == (1, 2, 5, 6)
    assert "B $2" in text
    assert "SELECT count(*) AS number FROM put_0" in text
    assert "CASE WHEN count(*) = $3 THEN 1 ELSE 0 END AS number FROM put_1" in text
    assert "CASE WHEN count(*) = $4 THEN 1 ELSE 0 END AS number FROM put_2" in text
