"""The workflow of the sample: it runs to its end, its approvals are decided, and no others are."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.plane.approvals.rules import ApprovalStatus
from holdfast.plane.model.caller import Caller
from holdfast.plane.process import sample
from holdfast.plane.process.register_workflows import keep_workflows
from holdfast.plane.workflows.core.run import RunStatus
from support.fixtures.workflows import FlowReplica, FlowStage, holds

pytestmark = pytest.mark.asyncio

VIEWER = Caller("viewer")
OTHERS = "name: mine\nsteps:\n  ask: {kind: approval}\n"


class Eager:
    """Chance that lets everything happen that may."""

    def below(self, number: int) -> int:
        return 0

    def token(self) -> str:
        return "t" * 32


async def _brief(replica: FlowReplica, times: int) -> None:
    for _ in range(times):
        await sample._brief(replica.components.service, Eager())


async def test_runs_are_started_up_to_a_bound_and_only_their_own_approvals_are_decided(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica()
    await keep_workflows(replica.components.runs.definitions, sample.app)
    await replica.define(OTHERS)
    other = await replica.start("mine")
    await replica.becomes(other, RunStatus.WAITING)
    await _brief(replica, 10)
    flows = replica.components.flows
    page = await flows.runs(VIEWER, workflow="briefing")
    assert len(page.items) == sample.RUNS_MAX - 1  # the other one counts, too
    run = page.items[-1].id
    await replica.end(f"{run}:plan@1", {"goal": "x", "tools": ["sql", "mail"]})
    await asyncio.gather(*(replica.end(f"{run}:tools[{number}]@1", {"rows": 1}) for number in range(2)))
    await replica.becomes(run, RunStatus.WAITING)
    await _brief(replica, 1)
    decided = await flows.approval(VIEWER, f"{run}:ask@1")
    assert (decided.status, decided.decided_by) == (ApprovalStatus.REJECTED, "sample-manager")

    async def over() -> bool:
        return (await replica.run(run)).run.status is RunStatus.DENIED

    await holds(over, "a run that was denied")
    await _brief(replica, 3)
    assert (await flows.approval(VIEWER, f"{other}:ask@1")).status is ApprovalStatus.WAITING
