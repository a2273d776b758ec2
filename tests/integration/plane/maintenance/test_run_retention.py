"""What is forgotten of workflows: what has been over for long enough, in bounded steps; and nothing else, ever."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import RowMissing
from holdfast.plane.approvals.rules import ApprovalVerdict
from holdfast.plane.locks.registry import DEAD_LETTER_CLEANUP
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance import retention
from holdfast.plane.maintenance.retention import Cleanup, CleanupStatistics, finished_runs, old_approvals
from holdfast.plane.maintenance.run_reconciler import RunReconciler
from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.run import CancelRequested, CheckRun, JobEnded, RunStatus
from support.fixtures.workflows import ASKER, DECIDER, FlowReplica, FlowStage

pytestmark = pytest.mark.asyncio

DAY = 86_400.0

LONG = """
name: long
steps:
  first: {kind: job, topic: a}
  ask: {kind: approval, after: [first]}
  rest: {kind: delay, delay: 100d, after: [ask]}
  last: {kind: transform, after: [rest], input: "${ steps.first.output }"}
output: "${ steps.last.output }"
"""


def cleanup(replica: FlowReplica, **settings: Any) -> Cleanup:
    components = replica.components
    return Cleanup(
        components.database, components.locks, components.clock, flows=(finished_runs, old_approvals), **settings
    )


async def clean(replica: FlowReplica, made: Cleanup) -> CleanupStatistics:
    async with DEAD_LETTER_CLEANUP.lock(replica.components.locks) as lease:
        await made.tick(Tick(lease))
    return made.statistics()


async def begun(replica: FlowReplica, **more: Any) -> str:
    """A run that waits for an approval."""
    run = await replica.start("long", **more)
    await replica.engine.move(run, CheckRun())
    await replica.end(f"{run}:first@1", {"found": 7})
    await replica.engine.move(run, JobEnded(f"{run}:first@1", JobState.SUCCEEDED, {"found": 7}))
    return run


async def ended(replica: FlowReplica, **more: Any) -> str:
    run = await begun(replica, **more)
    await replica.engine.move(run, CancelRequested("me", "enough"))
    return run


async def left(replica: FlowReplica, run: str) -> dict[str, int]:
    """How many rows there are of a run."""
    tables = {"plane_run": "id", "plane_run_event": "run", "plane_approval": "run"}
    found = {}
    for table, column in tables.items():
        rows = await replica.query(f"SELECT COUNT(*) AS rows_of FROM {table} WHERE {column} = :run", run=run)
        found[table] = rows[0]["rows_of"]
    return found


async def test_a_run_is_kept_for_thirty_days_from_its_end_with_its_timeline_and_approvals(
    flow_stage: FlowStage,
) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(LONG)
    live = await begun(replica)
    keyed = await ended(replica, idempotency_key="k")
    run = await begun(replica)
    flow_stage.clock.push(20 * DAY)  # it waited for long: its end is what counts
    await replica.engine.move(run, CancelRequested("me", "enough"))
    made = cleanup(replica)
    flow_stage.clock.push(29 * DAY)
    assert (await clean(replica, made)).runs == 0
    assert (await left(replica, run))["plane_approval"] == 1
    flow_stage.clock.push(2 * DAY)
    statistics = await clean(replica, made)
    assert (statistics.runs, statistics.approvals) == (1, 1)
    assert set((await left(replica, run)).values()) == {0}
    with pytest.raises(RowMissing):
        await replica.run(run)
    # One with a key is kept for as long as the key is: the same key is the same run, and nothing is done twice.
    again, new = await replica.components.flows.start(ASKER, "long", idempotency_key="k")
    assert (again.run.id, new) == (keyed, False)
    flow_stage.clock.push(40 * DAY)
    assert (await clean(replica, made)).runs == 2
    assert set((await left(replica, keyed)).values()) == {0}
    # What is not over is never touched, and definitions are kept.
    assert (await replica.run(live)).run.status is RunStatus.WAITING
    assert (await left(replica, live))["plane_run_event"] > 0
    assert (await replica.components.flows.definition(ASKER, "long")).workflow.name == "long"


async def test_many_runs_and_long_timelines_go_in_bounded_steps(
    flow_stage: FlowStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LINES_MAX", 5)
    replica = await flow_stage.replica(serve=False)
    await replica.define(LONG)
    runs = [await ended(replica) for _ in range(3)]
    flow_stage.clock.push(31 * DAY)
    before = [await left(replica, run) for run in runs]
    assert min(each["plane_run_event"] for each in before) > 5
    made = cleanup(replica, batch=2, batches=1)
    assert (await clean(replica, made)).runs == 0
    assert (await left(replica, runs[0]))["plane_run_event"] == before[0]["plane_run_event"] - 5
    assert (await left(replica, runs[0]))["plane_run"] == 1, "a run goes after its timeline"
    assert (await clean(replica, cleanup(replica, batch=2))).runs == 3


async def test_an_approval_of_a_job_goes_after_the_job(flow_stage: FlowStage) -> None:
    """An approval can be read for thirty days, and at least as long as the job exists."""
    replica = await flow_stage.replica(serve=False)
    await replica.define(LONG)
    run = await begun(replica)
    job = f"{run}:ask@1"
    await replica.components.database.write(lambda tx: tx.query("UPDATE plane_approval SET run = NULL"))
    made = cleanup(replica)
    flow_stage.clock.push(40 * DAY)
    assert (await clean(replica, made)).approvals == 0
    await replica.components.database.write(lambda tx: tx.query("DELETE FROM plane_job WHERE id = :id", {"id": job}))
    assert (await clean(replica, made)).approvals == 1


async def test_a_run_that_waits_for_months_does_not_miss_its_forgotten_jobs(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(LONG)
    run = await begun(replica)
    flow_stage.clock.push(10 * DAY)
    made = cleanup(replica)
    statistics = await clean(replica, made)
    assert statistics.jobs + statistics.emptied == 1
    reconciler = RunReconciler(replica.engine, replica.components.locks)
    async with replica.components.locks.lock("tick", ttl=30) as lease:
        await reconciler.tick(Tick(lease))
    assert reconciler.statistics().orphaned == 0
    assert (await replica.status(run))["ask"] == "waiting"
    await replica.components.flows.decide(DECIDER, f"{run}:ask@1", ApprovalVerdict.APPROVE)
    await replica.engine.move(run, JobEnded(f"{run}:ask@1", JobState.SUCCEEDED, None))
    flow_stage.clock.push(101 * DAY)
    await clean(replica, made)
    await replica.engine.move(run, CheckRun())
    over = await replica.run(run)
    assert (over.run.status, over.run.output) == (RunStatus.SUCCEEDED, {"found": 7})


async def test_a_result_that_was_forgotten_unheard_is_not_taken_for_an_empty_one(flow_stage: FlowStage) -> None:
    """No engine ran for a week. The step fails with a reason: it did not succeed without a result."""
    replica = await flow_stage.replica(serve=False)
    await replica.define(LONG)
    run = await replica.start("long")
    await replica.engine.move(run, CheckRun())
    await replica.end(f"{run}:first@1", {"found": 7})
    flow_stage.clock.push(10 * DAY)
    assert (await clean(replica, cleanup(replica))).emptied == 1
    reconciler = RunReconciler(replica.engine, replica.components.locks)
    async with replica.components.locks.lock("tick", ttl=30) as lease:
        await reconciler.tick(Tick(lease))
    over = await replica.run(run)
    assert (over.run.status, reconciler.statistics().orphaned) == (RunStatus.FAILED, 1)
    assert "forgotten with its result" in str(over.run.steps["first"].error)
