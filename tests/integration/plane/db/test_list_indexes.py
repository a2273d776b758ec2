"""Lists for people go by an index of what they list, so that they cost the same however much else is stored.

On Postgres the sessions of the plane plan without knowing the values. A list of one tenant, topic, workflow or status
must not walk through the rows of others then, even where nearly all rows are others'.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.db.statements import compiled, sql

STORED = 20_000
LISTS = {
    "job_list_all": "plane_job_newest",
    "job_list_tenant": "plane_job_recent",
    "job_list_topic": "plane_job_topic",
    "job_list_failed": "plane_job_failed",
    "status_newest_all": "plane_job_newest",
    "status_newest_tenant": "plane_job_recent",
    "run_list_all": "plane_run_newest",
    "run_list_tenant": "plane_run_recent",
    "run_list_status": "plane_run_status",
    "run_list_workflow": "plane_run_workflow",
    "approval_list_all": "plane_approval_newest",
    "approval_list_tenant": "plane_approval_recent",
    "approval_list_status": "plane_approval_status",
    "deadletter_list_all": "plane_dead_letter_age",
    "deadletter_list_tenant": "plane_dead_letter_recent",
    "resource_break_list_all": "plane_resource_break_newest",
    "resource_break_list_tenant": "plane_resource_break_recent",
}
TABLES = {
    "plane_job": "SUCCEEDED",
    "plane_run": "succeeded",
    "plane_approval": "approved",
    "plane_dead_letter": "",
    "plane_resource_break": "",
}
SCHEMAS = ("schema", "run_schema", "approval_schema", "resource_break_schema")
LATEST = 2**62
VALUES = {"tenant": "rare", "topic": "rare", "workflow": "rare", "created_ns": LATEST, "at_ns": LATEST, "most": 101}
VALUES |= {"id": "z", "job": "z", "state": "FAILED", "status": "failed"}


async def prepared(url: str) -> None:
    database = open_database(url)
    for tables in SCHEMAS:
        await prepare(database, tables)
    await database.close()


def used(text: str) -> dict[str, Any]:
    return {key: VALUES[key] for key in set(re.findall(r"(?<!:):(\w+)", re.sub(r"--.*", "", text)))}


def fill(connection: psycopg.Connection[tuple[str, str]], table: str) -> None:
    """Many rows of one tenant that ended well; whatever else is in them does not matter."""
    columns = connection.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s AND is_nullable = 'NO' "
        "AND column_default IS NULL AND is_identity = 'NO' AND table_schema = current_schema()",
        [table],
    ).fetchall()
    values = {name: "n" if kind == "bigint" else "'r' || n" for name, kind in columns}
    same = {"tenant": "most", "topic": "most", "workflow": "most", "state": TABLES[table], "status": TABLES[table]}
    values |= {name: f"'{value}'" for name, value in same.items() if name in values}
    connection.execute(
        f"INSERT INTO {table} ({', '.join(values)}) "
        f"SELECT {', '.join(values.values())} FROM generate_series(1, {STORED}) AS n".encode()
    )
    connection.execute(f"ANALYZE {table}".encode())


@pytest.mark.asyncio
async def test_on_postgres_no_list_walks_through_the_rows_of_others(postgres_url: str) -> None:
    await prepared(postgres_url)
    plans = {}
    with psycopg.connect(postgres_url) as connection:
        for table in TABLES:
            fill(connection, table)
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute("SET enable_sort = off")
        for name in LISTS:
            ready = compiled(sql(name), "postgres")
            values = ", ".join(f"'{each}'" for each in ready.ordered(used(sql(name))))
            connection.execute(f"PREPARE {name} AS {ready.text}".encode())
            told = connection.execute(f"EXPLAIN EXECUTE {name}({values})".encode()).fetchall()
            plans[name] = "\n".join(str(row[0]) for row in told)
    wrong = {name: plan for name, plan in plans.items() if f"using {LISTS[name]} " not in plan}
    assert "$" in plans["run_list_status"], "not the generic plan that sessions of the plane use"
    assert not wrong, "\n\n".join(f"{name}\n{plan}" for name, plan in wrong.items())


@pytest.mark.asyncio
async def test_on_sqlite_every_list_goes_by_its_index(tmp_path: Path) -> None:
    path = tmp_path / "plane.db"
    await prepared(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as file:
        plans = {
            name: "\n".join(row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {sql(name)}", used(sql(name))))
            for name in LISTS
        }
    wrong = {name: plan for name, plan in plans.items() if LISTS[name] not in plan or "TEMP B-TREE" in plan}
    assert not wrong, "\n\n".join(f"{name}\n{plan}" for name, plan in wrong.items())


def test_no_list_of_the_plane_is_left_out() -> None:
    """Except those of live jobs, held resources, definitions and schedules, which do not grow with the past."""
    names = (each.name.removesuffix(".sql") for each in (files("holdfast.plane") / "sql").iterdir())
    bounded = ("resource_list_", "workflow_list_", "schedule_list_")
    lists = {name for name in names if "_list_" in name and not name.startswith(bounded)}
    assert lists - LISTS.keys() == {"job_list_live"}
