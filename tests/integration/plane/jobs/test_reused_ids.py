"""An id that is used again: what is kept of the job that had it before belongs to that job, and to its tenant."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import RowMissing
from holdfast.guards.bearer import carried
from holdfast.plane.approvals.rows import outline_of_approval
from holdfast.plane.approvals.rules import ApprovalStatus, ApprovalVerdict
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Database
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.jobs.rules import End, JobCode
from holdfast.plane.jobs.updates import ending
from holdfast.plane.locks.job_lock import job_lock
from holdfast.plane.locks.registry import DEAD_LETTER_CLEANUP
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.retention import Cleanup, finished_runs, old_approvals
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import InvalidTransition, JobState
from holdfast.plane.model.records import Heartbeat, Job, Submission
from holdfast.plane.service.service import Caller
from holdfast.runtime.system import SystemClock
from support.fixtures.scheduling import Replica, cancelled, delivered, finished, run_of, started, submitted
from support.fixtures.workflows import FlowReplica, FlowStage
from support.harness.approvals import PAYMENTS, decide, stage_of, waiting
from support.harness.loop_ticks import one_tick

pytestmark = pytest.mark.asyncio

DAY = 86_400.0
ID = "order-20"
ACME = Caller("ann", "acme")
GLOBEX = Caller("gil", "globex")
UNBOUND = Caller("root")

# The tables whose keys have changed, as version 1 had them.
LETTERS_1 = """
CREATE TABLE plane_dead_letter (
    id TEXT NOT NULL PRIMARY KEY, job TEXT NOT NULL, tenant TEXT NOT NULL, topic TEXT NOT NULL, reason TEXT NOT NULL,
    code TEXT NOT NULL, last_state TEXT, attempts BIGINT NOT NULL, at_ns BIGINT NOT NULL, body TEXT NOT NULL,
    retried_as TEXT
);
CREATE INDEX plane_dead_letter_recent ON plane_dead_letter (tenant, at_ns, id);
CREATE INDEX plane_dead_letter_age ON plane_dead_letter (at_ns, id);
CREATE TABLE plane_event (job TEXT NOT NULL, version BIGINT NOT NULL);
CREATE TABLE plane_job (
    id TEXT NOT NULL PRIMARY KEY, tenant TEXT NOT NULL, created_ns BIGINT NOT NULL, updated_ns BIGINT NOT NULL,
    topic TEXT NOT NULL, pool TEXT NOT NULL, state TEXT NOT NULL, priority BIGINT NOT NULL,
    not_before_ns BIGINT NOT NULL
);
CREATE TABLE plane_worker (
    worker TEXT NOT NULL PRIMARY KEY, pool TEXT NOT NULL, topics TEXT NOT NULL, capacity BIGINT NOT NULL,
    active BIGINT NOT NULL, at_ns BIGINT NOT NULL, draining BIGINT NOT NULL, host TEXT NOT NULL, pid BIGINT NOT NULL
);
INSERT INTO plane_worker VALUES ('w1', 'default', '["t"]', 4, 1, 7, 0, 'h', 9);
INSERT INTO plane_job VALUES ('here', 'acme', 5, 9, 't', 'default', 'SUCCEEDED', 0, 0);
INSERT INTO plane_dead_letter VALUES
    ('here', 'here', 'acme', 't', 'r', 'c', 'RUNNING', 1, 9, '{}', 'here-retry-1'),
    ('gone', 'gone', 'acme', 't', 'r', 'c', NULL, 1, 8, '{}', NULL),
    ('job.submit:here@scheduler', 'here', '', 't', 'r', 'c', NULL, 1, 9, '{}', NULL);
"""
APPROVALS_1 = """
CREATE TABLE plane_approval (
    job TEXT NOT NULL PRIMARY KEY, tenant TEXT NOT NULL, gate BIGINT NOT NULL, status TEXT NOT NULL, risk TEXT NOT NULL,
    rule TEXT NOT NULL, message TEXT NOT NULL, request TEXT NOT NULL, snapshot TEXT NOT NULL,
    requested_by TEXT NOT NULL, revision BIGINT NOT NULL, created_ns BIGINT NOT NULL, run TEXT, step TEXT,
    expires_ns BIGINT, decided_by TEXT, decided_ns BIGINT, note TEXT, holdfast_fence BIGINT
);
CREATE INDEX plane_approval_run ON plane_approval (run) WHERE run IS NOT NULL;
CREATE INDEX plane_approval_recent ON plane_approval (tenant, created_ns, job);
CREATE INDEX plane_approval_newest ON plane_approval (created_ns, job);
INSERT INTO plane_approval VALUES
    ('here', 'acme', 0, 'approved', '', 'r', '"m"', 'q', 's', 'ann', 1, 5, NULL, NULL, 7, 'boss', 6, 'fine', 4);
"""

TENANTS = pytest.mark.parametrize("later", [ACME, GLOBEX], ids=["the same tenant", "another tenant"])


async def submit(replica: FlowReplica, caller: Caller, payload: Any, topic: str = "mail.send") -> Job:
    assert caller.tenant is not None
    job, made = await replica.components.service.submit(caller, Submission(topic, payload, caller.tenant, ID))
    assert made
    return job


async def ends(replica: FlowReplica, job: Job, state: JobState = JobState.FAILED) -> None:
    """A job has ended, as the scheduler would write it; one that failed leaves a dead letter."""
    components = replica.helper
    async with job_lock(components.locks, job.id) as lease:
        end = End(state, JobCode.MAX_ATTEMPTS, "broken", dead=state is JobState.FAILED)
        fence = carried(lease)
        changed = await components.store.change(lease, job.id, lambda job: ending(job, end, fence, actor="test"))
    assert changed.after is not None


async def forgotten(flow_stage: FlowStage, replica: FlowReplica) -> None:
    """A week has passed: the job is gone, and its id is free."""
    flow_stage.clock.push(8 * DAY)
    components = replica.components
    cleanup = Cleanup(components.database, components.locks, components.clock, flows=(finished_runs, old_approvals))
    async with DEAD_LETTER_CLEANUP.lock(components.locks) as lease:
        await cleanup.tick(Tick(lease))
    assert await replica.job(ID) is None


async def letter(replica: FlowReplica, caller: Caller) -> Any:
    return (await replica.components.service.dead_letter(caller, ID)).body["payload"]


# Dead letters.


@TENANTS
async def test_a_job_that_is_not_over_is_not_tried_again_as_its_predecessor(
    flow_stage: FlowStage, later: Caller
) -> None:
    replica = await flow_stage.replica(serve=False)
    service = replica.components.service
    await ends(replica, await submit(replica, ACME, "old"))
    await forgotten(flow_stage, replica)
    await submit(replica, later, "new")
    with pytest.raises(InvalidTransition):
        await service.retry(later, ID)
    assert [job.id for job in (await service.jobs(UNBOUND)).items] == [ID], "nothing was made"


async def test_another_tenants_dead_letter_is_not_there_for_whoever_uses_its_id(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    service = replica.components.service
    await ends(replica, await submit(replica, ACME, "acme's"))
    await forgotten(flow_stage, replica)
    job = await submit(replica, GLOBEX, "globex's")
    for asks in (service.dead_letter, service.retry_dead_letter, service.forget_dead_letter):
        with pytest.raises(RowMissing):
            await asks(GLOBEX, ID)
    await ends(replica, job)
    assert (await letter(replica, ACME), await letter(replica, GLOBEX)) == ("acme's", "globex's")
    again, _ = await service.retry(GLOBEX, ID)
    assert (again.tenant, again.payload) == ("globex", "globex's")
    older, _ = await service.retry_dead_letter(ACME, ID)
    assert (older.tenant, older.payload) == ("acme", "acme's")
    await service.forget_dead_letter(GLOBEX, ID)
    assert await letter(replica, ACME) == "acme's"
    with pytest.raises(RowMissing):
        await letter(replica, GLOBEX)


async def test_whoever_sees_all_tenants_gets_the_newest_dead_letter_of_an_id(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    service = replica.components.service
    for caller in (ACME, GLOBEX):
        await ends(replica, await submit(replica, caller, caller.tenant))
        assert await letter(replica, UNBOUND) == caller.tenant
        await forgotten(flow_stage, replica)
    again, _ = await service.retry_dead_letter(UNBOUND, ID)
    assert again.tenant == "globex"
    assert [each.tenant for each in (await service.dead_letters(UNBOUND)).items] == ["globex", "acme"]
    await service.forget_dead_letter(UNBOUND, ID)
    assert await letter(replica, UNBOUND) == "acme"


async def test_the_dead_letter_of_a_new_job_takes_the_place_of_the_old_one_and_can_be_tried_again(
    flow_stage: FlowStage,
) -> None:
    replica = await flow_stage.replica(serve=False)
    service = replica.components.service
    await ends(replica, await submit(replica, ACME, "old"))
    first, _ = await service.retry(ACME, ID)
    await forgotten(flow_stage, replica)
    await ends(replica, await submit(replica, ACME, "new"))
    assert await letter(replica, ACME) == "new"
    second, made = await service.retry(ACME, ID)
    assert (made, second.payload) == (True, "new")
    assert second.id != first.id
    assert (await service.retry(ACME, ID)) == (second, False)


async def test_a_second_retry_never_shows_another_tenants_job(flow_stage: FlowStage) -> None:
    """The job of the first retry is gone too, and a client has reused its id."""
    replica = await flow_stage.replica(serve=False)
    service = replica.components.service
    await ends(replica, await submit(replica, ACME, "acme's"))
    again, _ = await service.retry_dead_letter(ACME, ID)
    await ends(replica, again, JobState.CANCELLED)
    await forgotten(flow_stage, replica)
    await service.submit(GLOBEX, Submission("mail.send", "globex's", "globex", again.id))
    with pytest.raises(RowMissing, match="no longer stored"):
        await service.retry_dead_letter(ACME, ID)


async def test_what_is_old_is_forgotten_of_each_tenant_by_itself(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await ends(replica, await submit(replica, ACME, "acme's"))
    await forgotten(flow_stage, replica)
    await ends(replica, await submit(replica, GLOBEX, "globex's"))
    for _ in range(3):  # thirty days, but for the younger one
        await forgotten(flow_stage, replica)
    assert await letter(replica, GLOBEX) == "globex's"
    with pytest.raises(RowMissing):
        await letter(replica, ACME)


# Approvals.


async def wait_for_a_person(flow_stage: FlowStage) -> FlowReplica:
    return await stage_of(flow_stage, PAYMENTS)


@TENANTS
@pytest.mark.parametrize("before", ["approved", "cancelled"])
async def test_a_job_that_waits_for_a_person_can_be_decided_whatever_was_before_it(
    flow_stage: FlowStage, later: Caller, before: str
) -> None:
    replica = await wait_for_a_person(flow_stage)
    flows = replica.components.flows
    old = await submit(replica, ACME, {"amount": 1}, "bank.pay")
    if before == "approved":
        await decide(replica, ID)
    await ends(replica, old, JobState.CANCELLED)
    await forgotten(flow_stage, replica)

    job = await submit(replica, later, {"amount": 999}, "bank.pay")
    assert job.state is JobState.APPROVAL_REQUIRED
    asks = Caller("boss", later.tenant)
    assert await waiting(replica) == [ID]
    (shown,) = (await flows.approvals(asks)).items
    assert shown == outline_of_approval(await flows.approval(asks, ID))
    assert (shown.tenant, shown.status, shown.revision) == (later.tenant, ApprovalStatus.WAITING, 0)
    assert (shown.requested_by, shown.created_ns, shown.decided_by) == (later.name, job.created_ns, None)
    decision = await flows.decide(asks, ID, ApprovalVerdict.APPROVE, revision=0)
    assert (decision.taken, decision.job.state, decision.job.payload) == (True, JobState.PENDING, {"amount": 999})


@pytest.mark.parametrize("before", ["approved", "cancelled"])
async def test_nobody_decides_about_another_tenants_job_of_the_same_id(flow_stage: FlowStage, before: str) -> None:
    replica = await wait_for_a_person(flow_stage)
    flows = replica.components.flows
    old = await submit(replica, ACME, {"amount": 1}, "bank.pay")
    if before == "approved":
        await decide(replica, ID)
    await ends(replica, old, JobState.CANCELLED)
    await forgotten(flow_stage, replica)
    await submit(replica, GLOBEX, {"amount": 999}, "bank.pay")

    boss = Caller("boss", "acme")
    kept = await flows.approval(boss, ID)
    status = ApprovalStatus.APPROVED if before == "approved" else ApprovalStatus.LAPSED
    assert (kept.tenant, kept.status) == ("acme", status), "the state of another job says nothing of it"
    assert [each.status for each in (await flows.approvals(boss, status=None)).items] == [status]
    assert (await flows.approvals(boss)).items == []
    for verdict in ApprovalVerdict:
        with pytest.raises(RowMissing):
            await flows.decide(boss, ID, verdict)
    waits = await replica.job(ID)
    assert waits is not None
    assert (waits.tenant, waits.state) == ("globex", JobState.APPROVAL_REQUIRED)


async def test_an_old_approval_goes_although_another_job_has_its_id(flow_stage: FlowStage) -> None:
    replica = await wait_for_a_person(flow_stage)
    await ends(replica, await submit(replica, ACME, {"amount": 1}, "bank.pay"), JobState.CANCELLED)
    await forgotten(flow_stage, replica)
    await submit(replica, GLOBEX, {"amount": 2}, "bank.pay")
    flow_stage.clock.push(30 * DAY)
    await ends(replica, await replica.appears(ID), JobState.CANCELLED)
    await forgotten(flow_stage, replica)
    with pytest.raises(RowMissing):
        await replica.components.flows.approval(ACME, ID)


# What is said.


async def test_what_is_said_of_the_predecessor_changes_nothing(plane: Replica) -> None:
    await plane.beat()
    old = await plane.submit(id=ID, tenant="acme")
    await plane.scheduler.on_submit(submitted(old))
    await plane.scheduler.on_result(finished(old, 1, run := run_of(old)))
    plane.clock.push(8 * DAY)
    await one_tick(plane, DEAD_LETTER_CLEANUP, Cleanup(plane.database, plane.locks, plane.clock).tick)
    assert await plane.store.get(ID) is None

    new = await plane.submit(id=ID, tenant="globex")
    await plane.beat()
    await plane.scheduler.on_submit(submitted(new))
    before = await plane.job(new)
    assert (before.state, before.attempt) == (JobState.DISPATCHED, 1)
    late = {"status": "succeeded", "result": "acme's"}
    made_ns = old.created_ns
    await plane.scheduler.on_started(delivered(subjects.started(ID, 1, "w1", run, made_ns=made_ns)))
    await plane.scheduler.on_result(delivered(subjects.finished(ID, 1, "w1", run, late, made_ns=made_ns)))
    await plane.scheduler.on_cancel(delivered(subjects.cancel(ID, "ann", "", token="t", made_ns=made_ns)))
    assert await plane.job(new) == before
    assert [row["subject"] for row in await plane.staged("stop.")] == ["stop.w1"], "its worker is told to stop"

    own = subjects.finished(ID, 1, "w1", run_of(new), {**late, "result": "globex's"}, made_ns=new.created_ns)
    await plane.scheduler.on_result(delivered(own))
    assert (await plane.job(new)).result == "globex's"


async def test_no_message_about_a_job_is_taken_for_one_about_its_predecessor(plane: Replica) -> None:
    """A bus that still knows the ids of what it delivered drops nothing that is new."""
    told: list[int] = []
    for tenant in ("acme", "globex"):
        await plane.beat()
        job = await plane.submit(id=ID, tenant=tenant)
        await plane.scheduler.on_submit(submitted(job))
        await plane.scheduler.on_result(finished(job, 1, run_of(job), error="again", retry_after_ns=0))
        await plane.scheduler.on_submit(submitted(job))
        await plane.scheduler.on_started(started(job, 2, run_of(job)))
        await plane.scheduler.on_cancel(cancelled(job))
        told.append(len(await plane.query("SELECT id FROM plane_message")))
        plane.clock.push(8 * DAY)
        await one_tick(plane, DEAD_LETTER_CLEANUP, Cleanup(plane.database, plane.locks, plane.clock).tick)
    assert told == [5, 10]  # of each: two looks, two attempts, and the word to stop


# Databases from before.


async def test_what_an_older_version_has_kept_stays_and_belongs_to_the_job_that_is_there(database: Database) -> None:
    for name, text in (("schema", LETTERS_1), ("approval_schema", APPROVALS_1)):
        await prepare(database, name, text=text, version=1)
        assert await prepare(database, name) is True
        assert await prepare(database, name) is False
    letters = await database.read(lambda tx: tx.query("SELECT id, made_ns, retried_as FROM plane_dead_letter"))
    assert sorted(tuple(row.values()) for row in letters) == [
        ("gone", 0, None),
        ("here", 5, "here-retry-1"),
        ("job.submit:here@scheduler", 0, None),
    ]
    assert await Workers(database, SystemClock()).all() == [
        Heartbeat("w1", "default", ("t",), 4, 1, 7, host="h", pid=9)
    ]
    (approval,) = await database.read(lambda tx: tx.query("SELECT * FROM plane_approval"))
    assert (approval["tenant"], approval["created_ns"], approval["holdfast_fence"]) == ("acme", 5, 4)
