"""Runs that wait for a person cost the workflow reconciler the same per tick, however many there are."""

from __future__ import annotations

import re

import pytest

from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.db.statements import script
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.run_reconciler import RunReconciler
from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.run import CheckRun, RunStatus
from support.fixtures.workflows import FlowReplica, FlowStage

pytestmark = pytest.mark.asyncio

GATED = """
name: gated
steps:
  ask: {kind: approval, message: "Go on?"}
"""
SLEEPING = """
name: sleeping
steps:
  rest: {kind: delay, delay: 30d}
"""


async def idle(replica: FlowReplica, workflow: str, copies: int) -> str:
    """One idle run, and so many rows that are like it except for their id."""
    await replica.define(workflow)
    run = await replica.start(re.findall(r"name: (\w+)", workflow)[0], run_id="original")
    await replica.engine.move(run, CheckRun())
    await copy(replica, run, copies)
    return run


async def copy(replica: FlowReplica, run: str, copies: int) -> None:
    async def work(tx: Tx) -> None:
        row = (await tx.query("SELECT * FROM plane_run WHERE id = :id", {"id": run}))[0]
        rows: list[Row] = [{**row, "id": f"copy-{each:05}"} for each in range(copies)]
        await tx.query("DELETE FROM plane_run WHERE id LIKE 'copy-%'")
        await tx.query_many(
            f"INSERT INTO plane_run ({', '.join(row)}) VALUES ({', '.join(f':{name}' for name in row)})", rows
        )

    await replica.components.database.write(work)


async def documents_read(replica: FlowReplica, reconciler: RunReconciler) -> int:
    """How many runs one tick has read."""
    before = reconciler.statistics().looked_at
    async with replica.components.locks.lock("tick", ttl=30) as lease:
        await reconciler.tick(Tick(lease, 0, lambda: False))
    return reconciler.statistics().looked_at - before


@pytest.mark.parametrize("workflow", [GATED, SLEEPING], ids=["waiting for a person", "in a long delay"])
async def test_a_tick_reads_as_many_runs_whether_a_few_hundred_are_idle_or_more(
    flow_stage: FlowStage, workflow: str
) -> None:
    replica = await flow_stage.replica(serve=False)
    reconciler = RunReconciler(replica.engine, replica.components.locks)
    run = await idle(replica, workflow, 300)
    flow_stage.clock.push(60)
    few = await documents_read(replica, reconciler)
    await copy(replica, run, 900)
    many = await documents_read(replica, RunReconciler(replica.engine, replica.components.locks))
    assert few == many, "documents read per tick"
    assert many <= 200


async def test_all_waiting_runs_are_checked_in_turn_and_a_lost_decision_is_found(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    reconciler = RunReconciler(replica.engine, replica.components.locks)
    await idle(replica, GATED, 120)
    run = await replica.start("gated", run_id="decided")
    await replica.engine.move(run, CheckRun())
    await replica.end(f"{run}:ask@1", state=JobState.SUCCEEDED)
    await replica.components.database.write(lambda tx: tx.query("DELETE FROM plane_message"))  # the message is lost
    flow_stage.clock.push(60)
    assert [await documents_read(replica, reconciler) for _ in range(3)] == [50, 50, 22]
    assert (await replica.run(run)).run.status is RunStatus.SUCCEEDED
    assert (reconciler.statistics().told, reconciler.statistics().left) == (1, 0)


@pytest.mark.parametrize("name", ["run_live", "run_live_waiting", "run_count", "run_unchanged"])
async def test_idle_runs_are_found_through_an_index_of_their_own(flow_stage: FlowStage, name: str) -> None:
    replica = await flow_stage.replica(serve=False)
    text = re.sub(r"--.*", "", script(name, "sqlite"))
    values = dict.fromkeys(re.findall(r":(\w+)", text), 1) | ({"id": ""} if ":id" in text else {})
    sqlite = replica.components.database.dialect == "sqlite"
    explain = "EXPLAIN QUERY PLAN " if sqlite else "EXPLAIN "
    rows = await replica.components.database.read(lambda tx: tx.query(explain + text, values))
    plan = "\n".join(str(row.get("detail") or row.get("QUERY PLAN")) for row in rows)
    assert re.search(r"Seq Scan on plane_run|SCAN plane_run(?! USING INDEX| USING COVERING INDEX)", plan) is None, plan
    used = set(re.findall(r"plane_run_\w+", plan))
    wanted = {"run_live": {"plane_run_moving"}, "run_live_waiting": {"plane_run_waiting"}}
    assert used == wanted.get(name, used), plan
    assert used, plan
