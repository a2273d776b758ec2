"""Results of one tenant whose outputs cost much hold up no run of another one. On SQLite and Postgres."""

from __future__ import annotations

import pytest

from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.run_reconciler import RunReconciler
from holdfast.plane.workflows.core.run import CheckRun, RunStatus
from holdfast.plane.workflows.expressions.builtins import Budget
from support.fixtures.workflows import FlowStage

pytestmark = [pytest.mark.asyncio, pytest.mark.threat("X20")]

STEPS = 300
COSTLY = "name: costly\nsteps:\n" + "".join(
    f"  s{number}: {{kind: job, topic: work, output: '${{ len([0 for i in range(6000)]) }}'}}\n"
    for number in range(STEPS)
)
ORDER = """
name: order
steps:
  fetch: {kind: job, topic: fetch}
  pay: {kind: job, topic: pay, after: [fetch], input: "${ steps.fetch.output.amount }"}
"""


async def test_costly_results_of_one_tenant_hold_up_no_run_of_another(flow_stage: FlowStage) -> None:
    first = await flow_stage.replica(serve=False)
    await first.define(COSTLY)
    await first.define(ORDER)
    hostile = await first.start("costly", tenant="hostile")
    await first.engine.move(hostile, CheckRun())
    for number in range(STEPS):
        await first.end(f"{hostile}:s{number}@1")
    replica = await flow_stage.replica()  # finds all these results waiting
    for _ in range(3):
        other = await replica.start("order", tenant="other")
        await replica.end(f"{other}:fetch@1", {"amount": 12})
        await replica.end(f"{other}:pay@1", "paid")
        await replica.becomes(other, RunStatus.SUCCEEDED)
    run = (await replica.run(hostile)).run
    assert run.status is RunStatus.RUNNING, "the costly results were worked in first"


async def test_costly_results_are_worked_in_after_all(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(COSTLY.replace("range(6000)", "range(600)"))
    run = await replica.start("costly")
    await replica.engine.move(run, CheckRun())
    for number in range(STEPS):
        await replica.end(f"{run}:s{number}@1")
    await flow_stage.replica()
    over = await replica.becomes(run, RunStatus.SUCCEEDED)
    assert {state.output for state in over.run.steps.values()} == {600}


async def test_the_reconciler_leaves_costly_runs_alone_while_their_tenant_pauses(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    reconciler = RunReconciler(replica.engine, replica.components.locks)
    await replica.define(COSTLY.replace("job, topic: work, output", "transform, input"))
    first, second = [await replica.start("costly") for _ in range(2)]
    flow_stage.clock.push(60)
    quota = replica.components.runs.expression_quota
    acquired = []
    with quota.decision((await replica.run(first)).run, Budget()):
        for _ in range(3):
            async with replica.components.locks.lock("tick", ttl=30) as lease:
                await reconciler.tick(Tick(lease, 0, lambda: False))
            acquired.append(replica.engine.lock_statistics.held.read().number)
    assert acquired == [2, 2, 2], "locks of runs, in which their expressions are evaluated again"
    assert reconciler.statistics().left == 6
    async with replica.components.locks.lock("tick", ttl=30) as lease:
        await reconciler.tick(Tick(lease, 0, lambda: False))
    assert reconciler.statistics().woken == 1, f"{first} or {second}: one costly decision at a time"
