"""What a decision brings: runs continue or end, jobs are dispatched or refused, and no way leads around the rules."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.plane.approvals.rules import ApprovalRules, ApprovalVerdict, SelfApproval
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.caller import Caller, NotAllowed
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Heartbeat, Submission
from holdfast.plane.scheduler.dispatcher import Dispatcher
from holdfast.plane.scheduler.placement import Placement
from holdfast.plane.scheduler.scheduler import Scheduler
from holdfast.plane.workflows.core.run import RunStatus
from holdfast.types import NS
from support.fixtures.workflows import ASKER, FlowStage, holds, older_job
from support.harness.approvals import FROZEN, GATED, HANDLED, PAYMENTS, asked, decide, stage_of, waiting

pytestmark = pytest.mark.asyncio


async def test_an_approved_gate_lets_its_run_go_on_and_a_rejected_one_ends_it(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage, ApprovalRules(), serve=True)
    await replica.define(GATED)
    good, bad = [await replica.start("refund", {"amount": 12}) for _ in range(2)]
    for run in (good, bad):
        await replica.appears(f"{run}:agreed@1")
    await replica.becomes(good, RunStatus.WAITING)
    assert (await decide(replica, f"{good}:agreed@1", note="fine")).job.state is JobState.SUCCEEDED
    paid = await replica.appears(f"{good}:pay@1")
    assert (paid.payload, paid.state) == ("decider", JobState.PENDING)
    await replica.end(paid.id, "paid")
    assert (await replica.becomes(good, RunStatus.SUCCEEDED)).run.output == "paid"
    assert (await decide(replica, f"{bad}:agreed@1", ApprovalVerdict.REJECT, note="no")).job.state is JobState.DENIED
    over = await replica.becomes(bad, RunStatus.DENIED)
    assert over.run.error is not None
    assert "rejected by decider: no" in over.run.error
    assert (await replica.job(f"{bad}:pay@1"), await replica.query("SELECT id FROM plane_dead_letter")) == (None, [])


async def test_a_rejected_gate_has_its_error_step_run(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage, serve=True)
    await replica.define(HANDLED)
    run = await replica.start("handled")
    await replica.appears(f"{run}:agreed@1")
    await decide(replica, f"{run}:agreed@1", ApprovalVerdict.REJECT)
    await replica.steps_become(run, agreed="denied", apologise="succeeded")


async def test_an_approved_job_is_dispatched_by_the_scheduler_and_not_before(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage)
    components = replica.components
    said = Heartbeat("w1", "default", ("bank.pay",), 4, 0, components.clock.now().wall)
    assert await components.workers.record(said)
    placement = Placement(components.store, components.locks, components.workers)
    async with Scheduler(placement, components.bus, dispatcher=Dispatcher(placement)).serving():
        waits = await asked(replica)
        other, _ = await components.service.submit(ASKER, Submission("bank.other", None))
        await components.bus.publish([subjects.submitted(waits.id, again="stray")])

        async def handled() -> bool:
            return not await components.bus.pending(subjects.SUBMIT, subjects.SCHEDULER)

        await holds(handled, "every submission is handled")
        assert [(await replica.appears(each.id)).state for each in (waits, other)] == [JobState.APPROVAL_REQUIRED] * 2
        await decide(replica, waits.id)

        async def dispatched() -> bool:
            return (await replica.appears(waits.id)).state is JobState.DISPATCHED

        await holds(dispatched, "the approved job is with a worker")
    assert (await replica.appears(other.id)).state is JobState.APPROVAL_REQUIRED
    moves = [(each.after, each.actor) for each in await components.store.events(waits.id)]
    assert moves[:2] == [(JobState.APPROVAL_REQUIRED, "asker"), (JobState.PENDING, "decider")]


async def test_an_approved_job_still_waits_for_its_time_if_it_has_one(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage)
    now_ns = flow_stage.clock.now().wall
    soon, later = [await asked(replica, not_before_ns=now_ns + wait * NS) for wait in (60, 3600)]
    flow_stage.clock.push(61)
    assert (await decide(replica, soon.id)).job.not_before_ns == 0
    assert (await decide(replica, later.id)).job.not_before_ns == later.not_before_ns


async def test_a_job_that_rules_refuse_is_never_made(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage, FROZEN)
    with pytest.raises(NotAllowed, match="the rule frozen refuses this job"):
        await replica.components.service.submit(ASKER, Submission("bank.pay", None))
    assert await replica.query("SELECT id FROM plane_job") == []
    job, _ = await replica.components.service.submit(ASKER, Submission("crm.fetch", None))
    assert job.state is JobState.PENDING


async def test_the_same_submission_again_is_the_same_approval(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage)
    wanted = Submission("bank.pay", {"amount": 12}, idempotency_key="k")
    ends = await asyncio.gather(*(replica.components.service.submit(ASKER, wanted) for _ in range(4)))
    assert sorted(made for _, made in ends) == [False, False, False, True]
    assert len({job.id for job, _ in ends}) == len(await waiting(replica)) == 1
    await decide(replica, ends[0][0].id)
    again, made = await replica.components.service.submit(ASKER, wanted)
    assert (again.id, again.state, made) == (ends[0][0].id, JobState.PENDING, False)


async def test_a_rejected_job_leaves_a_letter_and_its_retry_must_be_approved_again(flow_stage: FlowStage) -> None:
    """Trying again must not be a way around the rules."""
    replica = await stage_of(flow_stage)
    service = replica.components.service
    job = await asked(replica)
    await decide(replica, job.id, ApprovalVerdict.REJECT, note="too much")
    letter = await service.dead_letter(ASKER, job.id)
    assert (letter.reason, letter.last_state) == ("rejected by decider: too much", JobState.APPROVAL_REQUIRED)
    replica.components.approvals.rules = FROZEN
    for retry in (service.retry, service.retry_dead_letter):
        with pytest.raises(NotAllowed, match="frozen"):
            await retry(Caller("carol"), job.id)
    assert (await service.dead_letter(ASKER, job.id)).retried_as is None
    replica.components.approvals.rules = PAYMENTS
    again, made = await service.retry(Caller("carol"), job.id)
    assert (made, again.state, again.payload) == (True, JobState.APPROVAL_REQUIRED, job.payload)
    assert await service.retry_dead_letter(Caller("carol"), job.id) == (again, False)
    approval = await replica.components.flows.approval(ASKER, again.id)
    assert (approval.requested_by, approval.rule, approval.message) == ("carol", "payments", "Check the amount.")
    with pytest.raises(SelfApproval):
        await replica.components.flows.decide(Caller("carol"), again.id, ApprovalVerdict.APPROVE)
    assert (await decide(replica, again.id)).job.state is JobState.PENDING


async def test_a_step_of_a_run_passes_the_same_rules_as_any_job(flow_stage: FlowStage) -> None:
    """A workflow must not be a way around the rules."""
    replica = await stage_of(flow_stage, serve=True)
    await replica.define("{name: sly, steps: {pay: {kind: job, topic: bank.pay}}}")
    good, bad = await replica.start("sly"), await replica.start("sly")
    for run in (good, bad):
        job = await replica.appears(f"{run}:pay@1")
        assert job.state is JobState.APPROVAL_REQUIRED
    shown = await replica.components.flows.approval(ASKER, f"{good}:pay@1")
    assert (shown.gate, shown.rule, shown.run, shown.step) == (False, "payments", good, "pay")
    assert shown.requested_by == "asker"
    assert (await decide(replica, f"{good}:pay@1")).job.state is JobState.PENDING
    await decide(replica, f"{bad}:pay@1", ApprovalVerdict.REJECT)
    await replica.becomes(bad, RunStatus.DENIED)
    await replica.end(f"{good}:pay@1")
    await replica.becomes(good, RunStatus.SUCCEEDED)
    replica.components.approvals.rules = FROZEN
    refused = await replica.start("sly")
    over = await replica.becomes(refused, RunStatus.DENIED)
    assert "the rule frozen refuses this job" in str(over.run.error)
    assert await replica.job(f"{refused}:pay@1") is None


async def test_a_gate_whose_name_is_taken_fails_its_step_and_takes_nothing(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage, ApprovalRules(), serve=True)
    await replica.define(GATED)
    for run, tenant in (("mine", "default"), ("theirs", "blue")):
        squatter = await older_job(replica, f"{run}:agreed@1", tenant)
        await replica.start("refund", {"amount": 12}, run_id=run)
        await replica.becomes(run, RunStatus.FAILED)
        assert await replica.job(squatter.id) == squatter
    assert await waiting(replica, status=None) == []
