"""The ids of a run's jobs are the run's own: no caller can take one, and a run touches no job of another owner.

Jobs that have such an id from before the form was reserved are put into the store directly. On SQLite and on Postgres.
"""

from __future__ import annotations

import pytest

from holdfast.errors import BadInput
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.run_reconciler import RunReconciler
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.caller import Caller
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.scheduler.placement import Placement
from holdfast.plane.scheduler.scheduler import Scheduler
from holdfast.plane.workflows.core.run import CancelRequested, CheckRun, RunStatus
from support.fixtures.workflows import FlowReplica, FlowStage, holds, older_job

pytestmark = [pytest.mark.asyncio, pytest.mark.threat("X19")]

ATTACKER = Caller("attacker", tenant="attacker")

ONE_STEP = """
name: order
steps:
  fetch: {kind: job, topic: fetch}
"""

OUTER = """
name: outer
steps:
  inner: {kind: workflow, workflow: order}
"""


async def cancelled(replica: FlowReplica) -> None:
    """Let a scheduler handle every request to cancel a job."""
    components = replica.components

    async def handled() -> bool:
        return not await components.bus.pending(subjects.CANCEL, subjects.SCHEDULER)

    assert not await handled(), "the run has asked for it"
    async with Scheduler(Placement(components.store, components.locks, components.workers), components.bus).serving():
        await holds(handled, "the scheduler has handled all requests")


async def test_a_run_that_ends_cancels_no_job_of_another_tenant(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(ONE_STEP)
    victim = await older_job(replica, "x:fetch@1")
    run, _ = await replica.components.flows.start(ATTACKER, "order", run_id="x")
    await replica.engine.move(run.run.id, CheckRun())
    await replica.engine.move(run.run.id, CancelRequested("attacker"))
    await cancelled(replica)
    assert await replica.job(victim.id) == victim


async def test_a_run_that_ends_cancels_its_own_job(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(ONE_STEP)
    run = await replica.start("order", run_id="x")
    await replica.engine.move(run, CheckRun())
    await replica.engine.move(run, CancelRequested("asker"))
    await cancelled(replica)
    job = await replica.job("x:fetch@1")
    assert job is not None
    assert job.state is JobState.CANCELLED


@pytest.mark.parametrize("identity", ["x:fetch@1", "x:fetch[0]@1", "x:inner@1:fetch@12", "a.b:c/d-e@999"])
async def test_no_caller_takes_the_id_of_a_job_of_a_run(flow_stage: FlowStage, identity: str) -> None:
    replica = await flow_stage.replica(serve=False)
    named = Submission("mail", None, "attacker", id=identity)
    keyed = Submission("mail", None, "attacker", idempotency_key=f"wf:{identity}")
    for wanted in (named, keyed):
        with pytest.raises(BadInput, match="reserved"):
            await replica.components.service.submit(ATTACKER, wanted)
    assert await replica.job(identity) is None


@pytest.mark.parametrize(
    "identity", ["order:7", "a@b.example", "x:fetch", "x:fetch@", "x:@1", "x@1", "x:y@0", "x:y@1-"]
)
async def test_other_ids_are_free_for_everybody(flow_stage: FlowStage, identity: str) -> None:
    replica = await flow_stage.replica(serve=False)
    _, made = await replica.components.service.submit(ATTACKER, Submission("mail", None, "attacker", identity))
    assert made


async def test_the_result_of_another_tenants_job_is_not_taken_for_ones_own(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(ONE_STEP)
    victim = await older_job(replica, "x:fetch@1")
    await replica.end(victim.id, "secret")
    await replica.components.flows.start(ATTACKER, "order", run_id="x")
    await replica.engine.move("x", CheckRun())
    flow_stage.clock.push(60)
    reconciler = RunReconciler(replica.engine, replica.components.locks)
    async with replica.components.locks.lock("tick", ttl=30) as lease:
        await reconciler.tick(Tick(lease, 0, lambda: False))
    over = await replica.becomes("x", RunStatus.FAILED)
    assert over.run.steps["fetch"].output is None


async def test_only_the_run_that_started_it_stops_a_run(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica()
    await replica.define(ONE_STEP)
    await replica.define(OUTER)
    await replica.start("outer", run_id="x", tenant="victim")
    await replica.appears("x:inner@1:fetch@1")
    foreign = [("x", "attacker"), ("y", "victim")]
    await replica.components.bus.publish(
        [subjects.stop_child("x:inner@1", run, tenant, "stop", token=tenant) for run, tenant in foreign]
    )

    async def refused() -> bool:
        return replica.engine.tally["CancelWanted.unknown"] == len(foreign)

    await holds(refused, "both requests are refused")
    assert not (await replica.run("x:inner@1")).run.status.terminal
    await replica.components.bus.publish([subjects.stop_child("x:inner@1", "x", "victim", "stop", token="own")])
    await replica.becomes("x:inner@1", RunStatus.CANCELLED)
