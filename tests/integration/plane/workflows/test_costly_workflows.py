"""A workflow whose expressions cost as much as they may holds up no other tenant, and ends. On SQLite and Postgres."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.plane.db.ports import Consumption
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.records import Delivery
from holdfast.plane.workflows.core.run import RunStatus
from holdfast.plane.workflows.core.run_draft import ADVANCE_COST_MAX
from holdfast.plane.workflows.expressions.builtins import COST_MAX
from support.fixtures.workflows import FlowStage, holds

pytestmark = [pytest.mark.asyncio, pytest.mark.threat("X20")]

STEPS = 500
COST = 15 * 6_000  # of one loop below: a number of the range, a round of the loop and its value, five units each

COSTLY = "name: costly\ntimeout: 4s\nsteps:\n" + "".join(
    f"  s{number}: {{kind: transform, input: '${{ len([0 for i in range(6000)]) }}'}}\n" for number in range(STEPS)
)
TOO_COSTLY = "name: too-costly\nsteps:\n" + "".join(
    f"  s{number}: {{kind: transform, input: '${{ [len(text(input)) for i in range(10)] }}'}}\n"
    for number in range(STEPS)
)
ORDER = """
name: order
steps:
  fetch: {kind: job, topic: fetch}
  pay: {kind: job, topic: pay, after: [fetch], input: "${ steps.fetch.output.amount }"}
"""


async def test_costly_expressions_of_one_tenant_hold_up_no_other_and_end_at_the_deadline(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica()
    await replica.define(COSTLY)
    await replica.define(ORDER)
    hostile = await replica.start("costly", tenant="hostile")
    for _ in range(3):
        other = await replica.start("order", tenant="other")
        await replica.end(f"{other}:fetch@1", {"amount": 12})
        await replica.end(f"{other}:pay@1", "paid")
        await replica.becomes(other, RunStatus.SUCCEEDED)
    over = await replica.becomes(hostile, RunStatus.TIMED_OUT)
    assert over.run.error == "the deadline of the run has passed"
    lines = await replica.timeline(hostile)
    steps = Counter(line.version for line in lines if line.kind == "succeeded" and line.step is not None)
    assert steps
    assert max(steps.values()) <= (ADVANCE_COST_MAX + COST_MAX) // COST, "steps of one advance"
    assert replica.components.runs.decided_apart >= len(steps), "none of them was decided in a transaction"


async def test_an_expression_that_costs_too_much_fails_its_run_with_the_reason(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica()
    await replica.define(TOO_COSTLY)
    run = await replica.start("too-costly", [None] * 30_000)
    over = await replica.becomes(run, RunStatus.FAILED)
    assert "takes more than 20000 steps" in (over.run.error or "")


async def test_a_run_whose_message_is_given_up_ends(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(ORDER)
    run = await replica.start("order")

    async def fails(delivery: Delivery) -> None:
        raise RuntimeError(f"cannot handle {delivery.message.id}")

    how = Consumption(subjects.RUN_LOOK, subjects.ENGINE, max_failures=1, on_dead=replica.engine.give_up)
    async with replica.components.bus.consume(how, fails):
        over = await replica.becomes(run, RunStatus.FAILED)
    assert "given up: message run.look failed 1 times" in (over.run.error or "")
    assert "cannot handle" in (over.run.error or "")

    async def letter() -> bool:
        letters = await replica.query("SELECT topic FROM plane_dead_letter")
        return [row["topic"] for row in letters] == [subjects.RUN_LOOK]

    await holds(letter, "the message is a dead letter")
