"""A guarded table through psycopg: ids and values of all shapes, schemas, and tables that are not ready for a guard."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from holdfast.errors import BadInput, FencedOut, Misconfigured, RowMissing
from holdfast.guards import postgres
from holdfast.guards.aio import postgres as awaited
from holdfast.guards.settings import sql
from support.fixtures.guards import carried
from support.fixtures.postgres import every_postgres
from support.harness.postgres_tables import Stage

A, B = carried(1), carried(2)
NUMBER = UUID("0f8fad5b-d9cb-469f-a165-70867728950e")


async def table_of(pg: Stage, columns: str, **settings: Any) -> tuple[Any, Any]:
    """A connection, and a guarded table `things` with these columns."""
    connection = await pg.connect()
    await pg.run(connection, f"CREATE TABLE things ({columns}, total BIGINT, holdfast_fence BIGINT)")
    return connection, pg.table(connection, "things", **settings)


@every_postgres
@pytest.mark.parametrize(
    ("kind", "row_id", "twin"),
    [
        ("BIGINT", 42, "42"),
        ("SMALLINT", 7, "7"),
        ("NUMERIC", 2**70, str(2**70)),
        ("TEXT", "42", 42),
        ("VARCHAR(40)", "a%sb' OR 1=1; --", "a%sb' OR 1=1; --"),
        ("UUID", NUMBER, str(NUMBER)),
        ("TEXT", str(NUMBER), NUMBER),
    ],
)
async def test_ids_of_each_type_name_the_same_row_as_value_and_as_text(
    pg: Stage, kind: str, row_id: Any, twin: Any
) -> None:
    connection, table = await table_of(pg, f"id {kind} PRIMARY KEY")
    await table.enter(A, row_id)
    await table.insert(A, twin, {"total": 1})
    await table.update(B, row_id, {"total": 2})
    with pytest.raises(FencedOut):
        await table.update(A, twin, {"total": 3})
    await table.delete(B, twin)
    with pytest.raises(FencedOut):
        await table.upsert(A, row_id, {"total": 4})
    found = await pg.run(connection, "SELECT resource, fence FROM holdfast_guard_fence")
    assert found == [(str(row_id), 2)]


@pytest.mark.parametrize("step", ["enter", "delete"])
@pytest.mark.parametrize(("kind", "row_id"), [("BIGINT", "abc"), ("BIGINT", 2**63), ("UUID", 42), ("DATE", "soon")])
async def test_an_id_that_the_column_cannot_hold_is_bad_input(pg: Stage, kind: str, row_id: Any, step: str) -> None:
    _, table = await table_of(pg, f"id {kind} PRIMARY KEY")
    with pytest.raises(BadInput, match=r"^row_id: Postgres cannot read it"):
        await getattr(table, step)(A, row_id)


@every_postgres
@pytest.mark.parametrize(
    ("kind", "spelt", "shown"),
    [("BIGINT", "042", "42"), ("BIGINT", " 42", "42"), ("UUID", str(NUMBER).upper(), str(NUMBER))],
)
async def test_a_row_is_made_and_deleted_only_under_the_name_that_postgres_shows(
    pg: Stage, kind: str, spelt: str, shown: str
) -> None:
    # Under any other name, a stale holder would not meet the memory of the row that a newer one deleted.
    connection, table = await table_of(pg, f"id {kind} PRIMARY KEY")
    await table.upsert(B, shown, {"total": 1})
    with pytest.raises(BadInput, match=r"^row_id: .* is not how Postgres shows it; give "):
        await table.delete(B, spelt)
    await table.delete(B, shown)
    with pytest.raises(BadInput, match=r"^row_id: .* is not how Postgres shows it; give "):
        await table.insert(A, spelt, {"total": 2})
    assert await pg.run(connection, "SELECT id FROM things") == []
    assert await pg.run(connection, "SELECT resource, fence FROM holdfast_guard_fence") == [(shown, 2)]


@every_postgres
async def test_several_columns_can_name_a_row(pg: Stage) -> None:
    connection, table = await table_of(
        pg, "tenant UUID, number BIGINT, PRIMARY KEY (tenant, number)", id=("tenant", "number")
    )
    await table.upsert(B, (NUMBER, 7), {"total": 1})
    with pytest.raises(FencedOut):
        await table.update(A, (NUMBER, 7), {"total": 2})
    with pytest.raises(RowMissing):
        await table.update(A, (NUMBER, 8), {"total": 2})
    with pytest.raises(BadInput, match=r"row_id.*give 2: tenant, number"):
        await table.enter(A, 7)
    with pytest.raises(BadInput, match="is not how Postgres shows it"):
        await table.delete(B, (NUMBER, "7"))
    await table.delete(B, (NUMBER, 7))
    assert await pg.run(connection, "SELECT resource FROM holdfast_guard_fence") == [(f'["{NUMBER}",7]',)]
    with pytest.raises(FencedOut):
        await table.insert(A, (NUMBER, 7), {"total": 2})


async def test_values_are_passed_as_they_are(pg: Stage) -> None:
    connection, table = await table_of(pg, "id BIGINT PRIMARY KEY, body JSONB, tags TEXT[], note TEXT, at TIMESTAMPTZ")
    moment = datetime(2024, 2, 29, 12, tzinfo=UTC)
    values = {
        "body": Jsonb({"a": [1, None]}),
        "tags": ["x", "%s"],
        "note": "100% '; DROP TABLE things; --",
        "at": moment,
    }
    await table.insert(A, 1, values)
    found = await table.upsert(A, 1, {**values, "total": None})
    assert (found["body"], found["tags"], found["note"], found["at"]) == ({"a": [1, None]}, *list(values.values())[1:])
    await table.update(A, 1, dict.fromkeys(values))
    assert (await table.enter(A, 1))["body"] is None
    assert len(await pg.run(connection, "SELECT 1 FROM things")) == 1


@every_postgres
async def test_a_table_in_a_schema_has_the_ledger_of_that_schema(pg: Stage) -> None:
    connection = await pg.connect()
    await pg.run(connection, 'CREATE SCHEMA "Billing"')
    await pg.run(connection, 'CREATE TABLE "Billing"."Größe" (id BIGINT PRIMARY KEY, total INT, holdfast_fence BIGINT)')
    await pg.run(connection, 'SET search_path TO "Billing"')
    await pg.run(connection, sql("ledger_postgres"))
    await pg.run(connection, "RESET search_path")
    table = pg.table(connection, "Billing.Größe")
    await table.upsert(B, 1, {"total": 1})
    await table.delete(B, 1)
    with pytest.raises(FencedOut, match=r"^Billing\.Größe 1: "):
        await table.upsert(A, 1, {"total": 1})
    assert await pg.run(connection, 'SELECT place, fence FROM "Billing".holdfast_guard_fence') == [("Größe", 2)]
    assert await pg.run(connection, "SELECT * FROM public.holdfast_guard_fence") == []


async def test_the_time_of_a_write_is_kept_where_that_is_asked_for(pg: Stage) -> None:
    connection, table = await table_of(pg, "id BIGINT PRIMARY KEY, changed TIMESTAMPTZ", updated_column="changed")
    await pg.run(connection, "BEGIN")
    now = (await pg.run(connection, "SELECT now()"))[0][0]
    assert (await table.insert(A, 1, {"total": 1}))["changed"] == now
    await pg.run(connection, "COMMIT")
    later = (await table.update(A, 1, {"total": 2}))["changed"]
    assert later > now
    assert (await table.enter(B, 1))["changed"] == later  # a registration is not a write


async def test_a_table_that_was_not_prepared_says_how_to_prepare_it(pg: Stage) -> None:
    connection = await pg.connect()
    await pg.run(connection, "CREATE TABLE plain (id BIGINT PRIMARY KEY, total BIGINT)")
    for step in ("update", "upsert", "insert"):
        with pytest.raises(
            Misconfigured, match=r"plain is not prepared .*holdfast_fence.*: holdfast guard install plain$"
        ):
            await getattr(pg.table(connection, "plain"), step)(A, 1, {"total": 1})
    with pytest.raises(Misconfigured, match=r"nosuch is not prepared .*nosuch.*: holdfast guard install nosuch$"):
        await pg.table(connection, "nosuch").enter(A, 1)
    await pg.run(connection, "DROP TABLE holdfast_guard_fence")
    with pytest.raises(Misconfigured, match=r"holdfast_guard_fence.*: holdfast guard install invoices$"):
        await pg.table(connection).insert(A, 1, {"total": 1})


async def test_a_table_whose_ids_are_not_unique_is_refused(pg: Stage) -> None:
    connection, table = await table_of(pg, "id BIGINT")
    with pytest.raises(Misconfigured, match="things has no unique index on id"):
        await table.insert(A, 1, {"total": 1})
    assert await pg.run(connection, "SELECT * FROM holdfast_guard_fence") == []


async def test_a_connection_of_another_kind_or_colour_is_refused(pg: Stage) -> None:
    connection = await pg.connect()
    right, wrong = (awaited, postgres) if pg.colour == "asyncio" else (postgres, awaited)
    with pytest.raises(BadInput, match=rf"^connection: .*or use {right.__name__} with this one"):
        wrong.GuardedTable(connection, "invoices")
    with pytest.raises(BadInput, match=r"^connection: str cannot be used here; give a psycopg\.(Async)?Connection$"):
        right.GuardedTable(pg.url, "invoices")


async def test_a_closed_connection_gives_psycopgs_own_error(pg: Stage) -> None:
    connection = await pg.connect()
    table = pg.table(connection)
    closing = connection.close()
    if closing is not None:
        await closing
    for step in (table.enter(A, 42), table.insert(A, 42, {"total": 1}), table.delete(A, 42)):
        with pytest.raises(psycopg.OperationalError, match="closed"):
            await step


@pytest.mark.parametrize("module", ["holdfast.guards.postgres", "holdfast.guards.aio.postgres"])
def test_without_psycopg_the_module_says_what_to_install(module: str) -> None:
    code = f"""
import sys
sys.modules["psycopg"] = None
import holdfast.guards
try:
    import {module}
except holdfast.Misconfigured as error:
    print(error)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert 'is not installed (psycopg): pip install "holdfast[postgres-binary]"' in answer.stdout
