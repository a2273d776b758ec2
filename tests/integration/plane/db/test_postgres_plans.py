"""How Postgres does what the plane asks of it: by index, in a database that has just been made as in a large one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest
import pytest_asyncio

from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.db.postgres.combined_statement import Put, together
from holdfast.plane.db.postgres.database import PostgresDatabase
from holdfast.plane.db.statements import compiled, script
from support.fixtures.databases import THINGS, insert
from support.fixtures.postgres import every_postgres

pytestmark = [pytest.mark.asyncio, every_postgres]

# All that is done for each job, in the order of its life, and what the loops do beside it.
NAMES = (
    "job_make_many",
    "event_insert_many",
    "pool_queue_read",
    "pool_queue_tenants",
    "pool_queue_jobs",
    "pool_queue_empty",
    "pool_not_started",
    "pool_queue_ranks",
    "topic_queue_topics",
    "topic_queue_tenants",
    "topic_queue_jobs",
    "topic_queue_read",
    "topic_count",
    "job_get_many",
    "job_counted_many",
    "slots_get",
    "job_hold",
    "slots_hold",
    "tenant_shift_many",
    "pool_shift_many",
    "job_change_many",
    "outbox_insert_many",
    "outbox_delete_many",
    "outbox_own",
    "outbox_left",
    "attempt_check",
)
GROWING = re.compile(r"Seq Scan on (plane_job|plane_event|plane_outbox)\b|Hash|Merge Join|Bitmap")


@pytest_asyncio.fixture
async def base(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    """A database with the tables of the plane, which were never filled and never looked at by the server."""
    opened = PostgresDatabase(postgres_url)
    await prepare(opened)
    await prepare(opened, "bus_schema")
    yield opened
    await opened.close()


def shown(rows: Sequence[object]) -> str:
    return "\n".join(str(next(iter(dict(row).values()))) for row in rows)  # type: ignore[call-overload]  # one column


async def planned(tx: Tx, text: str) -> str:
    """The plan that is kept for a statement with places, whatever values they will get."""
    await tx.query("SELECT set_config('plan_cache_mode', 'force_generic_plan', true)")
    name = f"asked_{abs(hash(text)):x}"
    await tx.query(f"DO $do$ BEGIN EXECUTE $x$PREPARE {name} AS {text}$x$; END $do$")
    places = len(set(re.findall(r"\$(\d+)", text)))
    values = f"({', '.join(['NULL'] * places)})" if places else ""
    return shown(await tx.query(f"EXPLAIN EXECUTE {name}{values}"))


@pytest.mark.parametrize("name", NAMES)
async def test_a_table_that_was_empty_when_a_statement_was_planned_is_read_by_index(
    base: PostgresDatabase, name: str
) -> None:
    text = compiled(script(name, "postgres"), "postgres").text
    plan = await base.read(lambda tx: planned(tx, text))
    assert GROWING.search(plan) is None, plan


async def test_statements_that_go_together_keep_their_plans(base: PostgresDatabase) -> None:
    names = ("tenant_shift_many", "pool_shift_many", "job_change_many", "event_insert_many", "outbox_insert_many")
    text, _ = together([Put(script(name, "postgres"), ("[]",), None) for name in names])
    plan = await base.read(lambda tx: planned(tx, text))
    assert GROWING.search(plan) is None, plan


@pytest.mark.parametrize("name", ["pool_queue_jobs", "pool_queue_read", "topic_queue_jobs"])
async def test_the_line_of_a_tenant_is_read_in_its_order_and_not_sorted(base: PostgresDatabase, name: str) -> None:
    """Sorted, it would be read to its end each time: a line of a million for the first three of it."""
    plan = await base.read(lambda tx: planned(tx, compiled(script(name, "postgres"), "postgres").text))
    assert "Sort" not in plan, plan


LOOKS = ("pool_queue_read", "job_get_many", "job_counted_many", "slots_get", "topic_queue_topics", "topic_queue_read")


@pytest.mark.parametrize("name", LOOKS)
async def test_a_look_is_one_round_trip(base: PostgresDatabase, name: str) -> None:
    """It is known for one, and goes without a transaction around it."""
    assert compiled(script(name, "postgres"), "postgres").reads


async def test_a_statement_is_prepared_once_for_a_connection_also_when_it_is_read_with(postgres_url: str) -> None:
    base = PostgresDatabase(postgres_url, pool_max=1)

    async def look(tx: Tx) -> list[int]:
        await tx.query("SELECT :number + 1 AS n", {"number": 1})
        rows = await tx.query(
            "SELECT generic_plans + custom_plans AS n FROM pg_prepared_statements WHERE statement = :text",
            {"text": "SELECT $1 + 1 AS n"},
        )
        return [row["n"] for row in rows]

    assert [await base.read(look) for _ in range(4)] == [[1], [2], [3], [4]]
    await base.close()


async def test_tables_that_another_process_changes_are_read_as_they_are_now(postgres_url: str) -> None:
    base, other = PostgresDatabase(postgres_url, pool_max=1), PostgresDatabase(postgres_url)
    await base.write(lambda tx: tx.query(THINGS))
    await base.write(partial(insert, number=1))

    async def everything(tx: Tx) -> list[Row]:
        return await tx.query("SELECT * FROM thing")

    for look in (base.read, base.write):
        columns = len((await look(everything))[0])
        await other.write(lambda tx: tx.query(f"ALTER TABLE thing ADD COLUMN new_{columns} BIGINT"))  # noqa: B023 - called immediately
        assert len((await look(everything))[0]) == columns + 1
    assert base.statistics()["run_again"] == 2
    await other.close()
    await base.close()
