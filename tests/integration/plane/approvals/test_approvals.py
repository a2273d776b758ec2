"""An approval is decided once, by the first decision, for exactly the request that was read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import RowMissing
from holdfast.plane.approvals.rules import (
    ApprovalConflict,
    ApprovalRules,
    ApprovalStatus,
    ApprovalVerdict,
    SelfApproval,
    parse_rules,
)
from holdfast.plane.approvals.service import ApprovalBusy
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.reconciler import Reconciler
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.caller import Caller, NotAllowed
from holdfast.plane.model.job_states import JobState
from holdfast.plane.process.metrics import of_approvals
from holdfast.plane.workflows.core.run import CancelRequested, CheckRun, RunStatus
from holdfast.types import NS
from support.fixtures.workflows import ASKER, DECIDER, FlowReplica, FlowStage
from support.harness.approvals import (
    FROZEN,
    GATED,
    PAYMENTS,
    asked,
    decide,
    going_on,
    stage_of,
    staged,
    told,
    untouched,
    waiting,
)

pytestmark = pytest.mark.asyncio


# Once.


@pytest.mark.threat("X12")
@pytest.mark.parametrize("gate", [False, True], ids=["job", "gate"])
async def test_of_many_who_decide_at_once_on_several_replicas_one_decision_is_taken(
    flow_stage: FlowStage, gate: bool
) -> None:
    replicas = [await stage_of(flow_stage) for _ in range(3)]
    first = replicas[0]
    if gate:
        await first.define(GATED)
        run = await first.start("refund", {"amount": 12})
        await first.engine.move(run, CheckRun())
        job = f"{run}:agreed@1"
    else:
        job = (await asked(first)).id
    wishes = [(each, verdict) for each in replicas for verdict in ApprovalVerdict] * 2

    async def one(replica: FlowReplica, verdict: ApprovalVerdict, name: str) -> tuple[ApprovalVerdict, bool | str]:
        try:
            decision = await replica.components.flows.decide(Caller(name), job, verdict)
        except (ApprovalConflict, ApprovalBusy) as refused:
            return verdict, str(refused.code)
        assert decision.approval.status is verdict.status
        return verdict, decision.taken

    ends = await asyncio.gather(*(one(*wish, f"boss-{at}") for at, wish in enumerate(wishes)))
    (winner,) = [verdict for verdict, outcome in ends if outcome is True]
    for verdict, outcome in ends:
        assert outcome in ((True, False) if verdict is winner else ("approval_already_resolved",)) or (
            outcome == "approval_retryable_lock"
        )
    found, approval = await first.job(job), await first.components.approvals.get(job)
    assert found is not None
    assert approval is not None
    approved = JobState.SUCCEEDED if gate else JobState.PENDING
    assert found.state is (approved if winner is ApprovalVerdict.APPROVE else JobState.DENIED)
    assert (approval.status, approval.revision, approval.fence) == (winner.status, 1, found.fence)
    events = await first.components.store.events(job)
    assert [(each.after, each.actor) for each in events[1:]] == [(found.state, approval.decided_by)]
    ended = [subjects.RUN_RESULT] if gate else []  # consumers of job.done have no row here
    assert await told(first, job) == ([subjects.SUBMIT] if found.state is JobState.PENDING else ended)
    letters = await first.query("SELECT id FROM plane_dead_letter")
    assert len(letters) == (winner is ApprovalVerdict.REJECT and not gate)
    taken = [sum(each.components.approvals.decided.values()) for each in replicas]
    assert sum(taken) == 1


@pytest.mark.threat("X12")
async def test_the_same_decision_again_changes_nothing_and_says_so(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage)
    job = await asked(replica)
    taken = await decide(replica, job.id, note="checked", revision=0)
    assert (taken.taken, taken.job.state, taken.approval.note) == (True, JobState.PENDING, "checked")
    again = await decide(replica, job.id, note="checked twice")
    assert (again.taken, again.approval, again.job) == (False, taken.approval, taken.job)
    with pytest.raises(ApprovalConflict, match="approved by decider already"):
        await decide(replica, job.id, ApprovalVerdict.REJECT)
    (reading,) = of_approvals(replica.components.approvals)
    assert reading.values["decided"] == {"approve": 1, "reject": 0}
    assert reading.values["repeated"] == {"approve": 1, "reject": 0}
    refused = reading.values["refused"]
    assert isinstance(refused, dict)
    assert {code for code, count in refused.items() if count} == {"approval_already_resolved"}


@pytest.mark.requires("R13")
async def test_who_has_gone_after_the_commit_left_a_decision_and_no_lock(flow_stage: FlowStage) -> None:
    """A crash between the commit and the answer looks like this to a caller that repeats the request."""
    replica, other = await stage_of(flow_stage), await stage_of(flow_stage)
    job = await asked(replica)
    stopped, approvals = asyncio.Event(), staged(replica.components)

    async def stop() -> None:
        stopped.set()
        await asyncio.Event().wait()

    approvals.committed = stop
    async with going_on(approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")) as request:
        await stopped.wait()
        assert (await replica.components.locks.inspect(SCHEDULER_JOB.key(job=job.id))).held
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    assert not (await replica.components.locks.inspect(SCHEDULER_JOB.key(job=job.id))).held
    again = await decide(other, job.id)
    assert (again.taken, again.approval.decided_by) == (False, "boss")
    assert await told(other, job.id) == [subjects.SUBMIT]


# What has changed since.


async def test_rules_that_now_refuse_the_job_make_an_approval_stale_and_others_do_not(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage)
    first, second, third = [await asked(replica) for _ in range(3)]
    replica.components.approvals.rules = FROZEN
    with pytest.raises(ApprovalConflict, match="now refuse it: frozen") as stale:
        await decide(replica, first.id)
    assert stale.value.code == "approval_stale_snapshot"
    await untouched(replica, first.id)
    assert (await decide(replica, first.id, ApprovalVerdict.REJECT)).job.state is JobState.DENIED
    for job, rules in ((second, ApprovalRules()), (third, parse_rules([{"name": "other"}]))):
        replica.components.approvals.rules = rules
        decision = await decide(replica, job.id)
        assert (decision.taken, decision.job.state) == (True, JobState.PENDING)
        assert decision.approval.snapshot == rules.snapshot != PAYMENTS.snapshot


@pytest.mark.threat("X12")
async def test_a_request_or_an_approval_that_has_changed_is_not_what_was_looked_at(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage)
    job = await asked(replica)
    with pytest.raises(ApprovalConflict) as later:
        await decide(replica, job.id, revision=1)
    assert later.value.code == "approval_stale_request"
    changed = "UPDATE plane_job SET payload = '{\"amount\": 1200}' WHERE id = :id"
    await replica.components.database.write(lambda tx: tx.query(changed, {"id": job.id}))
    for verdict in ApprovalVerdict:
        with pytest.raises(ApprovalConflict) as stale:
            await decide(replica, job.id, verdict)
        assert stale.value.code == "approval_stale_request"
    await untouched(replica, job.id)


async def test_a_request_that_changes_under_the_lock_is_found_in_the_commit(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage)
    job = await asked(replica)
    approvals = staged(replica.components)

    async def swap() -> None:
        changed = "UPDATE plane_job SET topic = 'bank.empty' WHERE id = :id"
        await replica.helper.database.write(lambda tx: tx.query(changed, {"id": job.id}))

    approvals.looked = swap
    with pytest.raises(ApprovalConflict) as stale:
        await approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")
    assert stale.value.code == "approval_stale_request"
    await untouched(replica, job.id)


@pytest.mark.parametrize("late", [False, True], ids=["before", "during the decision"])
async def test_a_gate_of_a_run_that_is_over_is_not_decided(flow_stage: FlowStage, late: bool) -> None:
    replica = await stage_of(flow_stage)
    await replica.define(GATED)
    run = await replica.start("refund", {"amount": 12})
    await replica.engine.move(run, CheckRun())
    gate, approvals = f"{run}:agreed@1", staged(replica.components)

    async def end() -> None:
        await replica.engine.move(run, CancelRequested("ada", "not needed"))
        assert (await replica.run(run)).run.status is RunStatus.CANCELLED

    if late:
        approvals.looked = end
    else:
        await end()
    with pytest.raises(ApprovalConflict, match="its run has ended: cancelled") as over:
        await approvals.decide(gate, ApprovalVerdict.APPROVE, actor="boss")
    assert over.value.code == "approval_terminal_run"
    found = await replica.job(gate)
    assert found is not None
    assert (found.state, found.version) == (JobState.APPROVAL_REQUIRED, 1)  # until the scheduler cancels it
    assert await told(replica, gate) == [subjects.CANCEL]


async def test_what_nobody_decides_in_time_ends_and_waits_no_more(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage, serve=True)
    await replica.define(GATED)
    run = await replica.start("refund", {"amount": 12})
    gate = (await replica.appears(f"{run}:agreed@1")).id
    (shown,) = (await replica.components.flows.approvals(ASKER)).items
    assert (shown.job, shown.about, shown.run, shown.step) == (gate, "Refund 12?", run, "agreed")
    assert shown.expires_ns is not None
    assert abs(shown.expires_ns - shown.created_ns - 3600 * NS) < 60 * NS
    flow_stage.clock.push(3601)
    with pytest.raises(ApprovalConflict, match="its deadline has passed") as late:
        await decide(replica, gate)
    assert late.value.code == "approval_not_actionable"
    reconciler = Reconciler(replica.components.store, replica.components.locks)
    async with replica.components.locks.lock("tick", ttl=30) as lease:
        await reconciler.tick(Tick(lease))
    found = await replica.appears(gate)
    assert found.state is JobState.TIMEOUT
    assert await waiting(replica) == []
    assert [await waiting(replica, status=each) for each in (None, "lapsed", "approved")] == [[gate], [gate], []]
    assert (await replica.components.flows.approval(ASKER, gate)).status is ApprovalStatus.LAPSED
    await replica.becomes(run, RunStatus.TIMED_OUT)
    with pytest.raises(ApprovalConflict) as over:
        await decide(replica, gate)
    assert over.value.code == "approval_terminal_run"


# Who, and what about.


@pytest.mark.threat("X12")
async def test_nobody_decides_about_what_they_asked_for_nor_about_what_they_cannot_see(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage)
    job = await asked(replica, tenant="blue")
    flows = replica.components.flows
    for verdict in ApprovalVerdict:
        with pytest.raises(SelfApproval, match="asker requested it"):
            await flows.decide(ASKER, job.id, verdict)
    assert replica.components.approvals.refused == {"self_approval_denied": 2}
    for missing, caller in ((job.id, Caller("boss", "red")), ("unknown", DECIDER), ("no id", DECIDER)):
        with pytest.raises(RowMissing):
            await flows.decide(caller, missing, ApprovalVerdict.APPROVE)
        with pytest.raises(RowMissing):
            await flows.approval(caller, missing)
    assert (await flows.approvals(Caller("boss", "red"), status=None)).items == []
    with pytest.raises(NotAllowed):
        await flows.approvals(Caller("boss", "red"), tenant="blue")
    await untouched(replica, job.id)
    assert (await flows.decide(Caller("boss", "blue"), job.id, ApprovalVerdict.APPROVE)).taken


async def test_what_waits_is_listed_oldest_first_and_the_rest_newest_first_page_by_page(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage)
    jobs = []
    for tenant in ("blue", "red", "blue", "blue", "red"):
        jobs.append((await asked(replica, tenant=tenant)).id)
        flow_stage.clock.push(1)
    flows = replica.components.flows

    async def pages(**more: Any) -> list[str]:
        found: list[str] = []
        after = None
        while True:
            page = await flows.approvals(ASKER, after=after, limit=2, **more)
            found += [each.job for each in page.items]
            if page.after is None:
                return found
            after = page.after

    assert await pages() == jobs
    assert await pages(tenant="blue") == [jobs[0], jobs[2], jobs[3]]
    await decide(replica, jobs[1], ApprovalVerdict.REJECT)
    await decide(replica, jobs[2])
    assert await pages() == [jobs[0], jobs[3], jobs[4]]
    assert await pages(status=None) == jobs[::-1]
    assert await pages(status=None, tenant="red") == [jobs[4], jobs[1]]
    assert (await pages(status="approved"), await pages(status="rejected")) == ([jobs[2]], [jobs[1]])
