"""Outlines are kept beside what they are of: lists leave documents alone, and are right beside older versions too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.plane.workflows.core.run import CancelRequested, CheckRun
from holdfast.plane.workflows.definitions import WorkflowOutline
from holdfast.plane.workflows.run_rows import RunOutline, outline_of_run
from support.fixtures.workflows import ASKER, FlowReplica, FlowStage

pytestmark = pytest.mark.asyncio

WORKFLOW_1 = """CREATE TABLE plane_workflow (
    scope      TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    BIGINT NOT NULL,
    digest     TEXT NOT NULL,
    body       TEXT NOT NULL,
    created_ns BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (scope, name, version)
)"""

RUN_1 = """CREATE TABLE plane_run (
    id               TEXT NOT NULL PRIMARY KEY,
    tenant           TEXT NOT NULL,
    scope            TEXT NOT NULL,
    workflow         TEXT NOT NULL,
    workflow_version BIGINT NOT NULL,
    status           TEXT NOT NULL,
    risk             TEXT NOT NULL,
    document         TEXT NOT NULL,
    created_ns       BIGINT NOT NULL,
    updated_ns       BIGINT NOT NULL,
    version          BIGINT NOT NULL,
    holdfast_fence   BIGINT,
    wake_ns          BIGINT,
    idempotency_key  TEXT,
    submitted_by     TEXT NOT NULL,
    trace            TEXT NOT NULL,
    labels           TEXT NOT NULL,
    rerun_of         TEXT
)"""

# As version 1 of the tables was written.
CHANGE_1 = "UPDATE plane_run SET status = :status, document = :document, version = version + 1 WHERE id = :id"
KEEP_1 = """INSERT INTO plane_workflow (scope, name, version, digest, body, created_ns, created_by)
    SELECT scope, name, version + 1, 'other', :body, created_ns, created_by FROM plane_workflow WHERE name = 'waits'"""

FLOWS: tuple[dict[str, Any], ...] = (
    {
        "name": "waits",
        "description": "größer " * 100,
        "steps": {"z": {"topic": "t"}, "a": {"topic": "t", "after": ["z"]}},
    },
    {"name": "fails", "risk": "high", "steps": {"bad": {"kind": "transform", "input": "${ 1 / 0 }"}}},
    {"name": "outer", "timeout": "1h", "steps": {"sub": {"workflow": "waits", "input": "${ input }"}}},
)


async def at_work(replica: FlowReplica) -> None:
    """Runs of each kind, with documents that are not small."""
    for document in FLOWS:
        await replica.components.flows.define(ASKER, from_document(document))
        run = await replica.start(document["name"], ["x" * 1_000] * 20)
        await replica.engine.move(run, CheckRun())


async def listed(replica: FlowReplica) -> tuple[Sequence[RunOutline], Sequence[WorkflowOutline]]:
    flows = replica.components.flows
    return list((await flows.runs(ASKER)).items), list((await flows.definitions(ASKER))[0])


async def as_version_1(database: Database) -> None:
    """Put the tables back as an older Holdfast had made and filled them."""

    async def work(tx: Tx) -> None:
        for table, made in (("plane_workflow", WORKFLOW_1), ("plane_run", RUN_1)):
            rows = await tx.query(f"SELECT * FROM {table}")
            await tx.query(f"DROP TABLE {table}")
            await tx.query(made)
            for row in rows:
                kept = {name: value for name, value in row.items() if name not in {"outline", "outlined", "root"}}
                names = ", ".join(kept)
                places = ", ".join(f":{name}" for name in kept)
                await tx.query(f"INSERT INTO {table} ({names}) VALUES ({places})", kept)
        await tx.query("UPDATE plane_meta SET value = '1' WHERE name = 'version.run_schema'")

    await database.write(work)


async def test_a_list_does_not_look_into_documents(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await at_work(replica)
    before = await listed(replica)
    assert len(before[0]) == 4

    async def spoil(tx: Tx) -> None:
        await tx.query("UPDATE plane_run SET document = 'no JSON'")
        await tx.query("UPDATE plane_workflow SET body = 'no JSON'")

    await replica.components.database.write(spoil)
    assert await listed(replica) == before


async def test_tables_of_an_older_version_with_rows_in_them_are_brought_up_to_date_and_listed_the_same(
    flow_stage: FlowStage,
) -> None:
    first = await flow_stage.replica(serve=False)
    await at_work(first)
    before = await listed(first)
    database = open_database(flow_stage.database)
    try:
        await as_version_1(database)
        assert await prepare(database, "run_schema") is True
        assert await prepare(database, "run_schema") is False
        rows = await database.read(lambda tx: tx.query("SELECT outline FROM plane_workflow"))
        assert all(row["outline"] for row in rows), "definitions stay, and get outlines immediately"
    finally:
        await database.close()
    replica = await flow_stage.replica(serve=False)
    assert await listed(replica) == before
    # What is written from now on has its outline.
    flows = replica.components.flows
    (waiting,) = [each.id for each in before[0] if each.workflow == "waits" and each.parent is None]
    await replica.engine.move(waiting, CancelRequested("ann"))
    (row,) = await replica.components.database.read(
        lambda tx: tx.query("SELECT outlined, version, status FROM plane_run WHERE id = :id", {"id": waiting})
    )
    assert row["outlined"] == row["version"]
    for each in (await flows.runs(ASKER)).items:
        assert each == outline_of_run(await flows.run(ASKER, each.id))


async def test_what_an_older_process_writes_beside_us_is_listed_as_it_is(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await at_work(replica)
    database, flows = replica.components.database, replica.components.flows
    (run,) = [each for each in (await flows.runs(ASKER)).items if each.workflow == "fails"]
    (row,) = await database.read(lambda tx: tx.query("SELECT document FROM plane_run WHERE id = :id", {"id": run.id}))
    document = {**json.loads(row["document"]), "error": "as an older process says it", "ended_ns": 7}
    values = {"id": run.id, "status": "failed", "document": json.dumps(document)}
    await database.write(lambda tx: tx.query(CHANGE_1, values))
    body = json.dumps({**FLOWS[0], "risk": "high", "description": "newer"})
    await database.write(lambda tx: tx.query(KEEP_1, {"body": body}))
    runs, workflows = await listed(replica)
    (told,) = [each for each in runs if each.id == run.id]
    assert (told.error, told.ended_ns, told.version) == ("as an older process says it", 7, run.version + 1)
    (newer,) = [each for each in workflows if each.name == "waits"]
    assert (newer.version, newer.risk, newer.steps, newer.description) == (2, "high", 2, "newer")
