"""A re-run asks for every approval again, whatever it keeps, and none of its requesters may give it.

Each test runs on SQLite and on Postgres.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.plane.approvals.rules import ApprovalRules, ApprovalVerdict, SelfApproval
from holdfast.plane.jobs.rules import JobCode
from holdfast.plane.model.caller import Caller
from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.run import RunStatus
from support.fixtures.workflows import ASKER, DECIDER, FlowReplica, FlowStage, holds
from support.harness.approvals import PAYMENTS, asked, stage_of, waiting

pytestmark = [pytest.mark.asyncio, pytest.mark.threat("X12")]

THIRD = Caller("third")
FREE = ApprovalRules()

REFUND = """
name: refund
steps:
  look: {kind: job, topic: find}
  agreed: {kind: approval, after: [look], message: "Refund?"}
  prepare: {kind: job, topic: ledger, after: [agreed]}
  amount: {kind: transform, after: [prepare], input: "${ steps.agreed.output.approved_by }"}
  pay: {kind: job, topic: bank.pay, after: [amount], input: "${ steps.amount.output }"}
"""

NESTED = """
name: nested
steps:
  ask: {kind: workflow, workflow: question}
  pay: {kind: job, topic: ledger, after: [ask]}
"""

QUESTION = """
name: question
steps:
  agreed: {kind: approval, message: "Go?"}
"""

HELD = """
name: held
steps:
  pay: {kind: job, topic: bank.pay}
  tell: {kind: job, topic: mail, after: [pay]}
"""


async def rerun(replica: FlowReplica, caller: Caller, run: str, *, keep: bool = True) -> str:
    stored, made = await replica.components.flows.rerun(caller, run, keep=keep)
    assert made
    return stored.run.id


async def asks(replica: FlowReplica, job: str) -> None:
    """Wait until a job waits for a person."""

    async def there() -> bool:
        return job in await waiting(replica)

    await holds(there, f"{job} waits for a person")


async def approve(replica: FlowReplica, caller: Caller, job: str) -> Any:
    await asks(replica, job)
    return await replica.components.flows.decide(caller, job, ApprovalVerdict.APPROVE)


async def failed_refund(replica: FlowReplica) -> str:
    """A run that was approved by `DECIDER`, and whose payment failed."""
    await replica.define(REFUND)
    run = await replica.start("refund")
    await replica.end(f"{run}:look@1", "found")
    await approve(replica, DECIDER, f"{run}:agreed@1")
    await replica.end(f"{run}:prepare@1", "prepared")
    await replica.end(f"{run}:pay@1", state=JobState.FAILED, code=JobCode.FATAL)
    await replica.becomes(run, RunStatus.FAILED)
    return run


async def test_a_rerun_that_keeps_results_asks_for_its_approvals_again(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage, FREE, serve=True)
    run = await failed_refund(replica)
    for _ in range(2):
        run = await rerun(replica, THIRD, run)
        await asks(replica, f"{run}:agreed@1")
        steps = await replica.status(run)
        assert steps == {
            "look": "succeeded",
            "agreed": "waiting",
            "prepare": "pending",
            "amount": "pending",
            "pay": "pending",
        }
        assert await replica.job(f"{run}:pay@1") is None
        await replica.components.flows.decide(Caller("boss"), f"{run}:agreed@1", ApprovalVerdict.APPROVE)
        job = await replica.appears(f"{run}:pay@1")
        assert job.payload == "boss", "it goes by the new decision"
        assert await replica.job(f"{run}:prepare@1") is None, "what was done behind the gate is not done twice"
        await replica.end(job.id, state=JobState.FAILED, code=JobCode.FATAL)
        done = await replica.becomes(run, RunStatus.FAILED)
        assert done.run.steps["prepare"].output == "prepared"


async def test_a_rejected_rerun_ends_without_the_kept_results(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage, FREE, serve=True)
    again = await rerun(replica, THIRD, await failed_refund(replica))
    await asks(replica, f"{again}:agreed@1")
    await replica.components.flows.decide(Caller("boss"), f"{again}:agreed@1", ApprovalVerdict.REJECT)
    over = await replica.becomes(again, RunStatus.DENIED)
    assert (over.run.steps["prepare"].status.value, over.run.steps["prepare"].output) == ("skipped", None)
    assert await replica.job(f"{again}:pay@1") is None


async def test_nobody_who_asked_for_a_run_approves_what_repeats_it(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage, FREE, serve=True)
    run = await failed_refund(replica)
    again = await rerun(replica, DECIDER, run)
    for caller in (ASKER, DECIDER):
        with pytest.raises(SelfApproval):
            await approve(replica, caller, f"{again}:agreed@1")
    await replica.components.flows.cancel(ASKER, again)
    await replica.becomes(again, RunStatus.CANCELLED)
    third = await rerun(replica, THIRD, again, keep=False)
    await replica.end(f"{third}:look@1", "found")
    for caller in (ASKER, DECIDER, THIRD):
        with pytest.raises(SelfApproval):
            await approve(replica, caller, f"{third}:agreed@1")
    assert (await approve(replica, Caller("boss"), f"{third}:agreed@1")).taken


async def test_an_approval_within_a_workflow_that_a_step_starts_is_not_kept(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage, FREE, serve=True)
    await replica.define(QUESTION)
    await replica.define(NESTED)
    run = await replica.start("nested")
    await approve(replica, DECIDER, f"{run}:ask@1:agreed@1")
    await replica.end(f"{run}:pay@1", state=JobState.FAILED, code=JobCode.FATAL)
    await replica.becomes(run, RunStatus.FAILED)
    again = await rerun(replica, DECIDER, run)
    for caller in (ASKER, DECIDER):
        with pytest.raises(SelfApproval):
            await approve(replica, caller, f"{again}:ask@1:agreed@1")
    assert await replica.job(f"{again}:pay@1") is None
    await approve(replica, THIRD, f"{again}:ask@1:agreed@1")
    await replica.appears(f"{again}:pay@1")


async def test_a_job_that_a_rule_holds_is_held_again(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage, PAYMENTS, serve=True)
    await replica.define(HELD)
    run = await replica.start("held")
    await approve(replica, DECIDER, f"{run}:pay@1")
    await replica.end(f"{run}:pay@1", "paid")
    await replica.end(f"{run}:tell@1", state=JobState.FAILED, code=JobCode.FATAL)
    await replica.becomes(run, RunStatus.FAILED)
    again = await rerun(replica, DECIDER, run)
    await asks(replica, f"{again}:pay@1")
    assert await replica.job(f"{again}:tell@1") is None
    for caller in (ASKER, DECIDER):
        with pytest.raises(SelfApproval):
            await approve(replica, caller, f"{again}:pay@1")


async def test_nobody_who_asked_for_a_job_approves_a_second_try_of_its_dead_letter(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage, PAYMENTS)
    job, callers = (await asked(replica)).id, [ASKER]
    for caller in (DECIDER, THIRD):
        await asks(replica, job)
        await replica.components.flows.decide(Caller("boss"), job, ApprovalVerdict.REJECT)
        callers.append(caller)
        job = (await replica.components.service.retry(caller, job))[0].id
        for each in callers:
            with pytest.raises(SelfApproval):
                await approve(replica, each, job)
    for number in range(16 - len(callers) + 1):
        await replica.components.flows.decide(Caller("boss"), job, ApprovalVerdict.REJECT)
        job = (await replica.components.service.retry(Caller(f"more-{number}"), job))[0].id
    await replica.components.flows.decide(Caller("boss"), job, ApprovalVerdict.REJECT)
    with pytest.raises(BadInput, match="submit it as something new"):
        await replica.components.service.retry(Caller("one-too-many"), job)
