"""The id of a run is free when the run is forgotten. A new run with that id is independent: its steps are
run and approved again, and no stored job, gate or run of the first one is taken for its own.
"""

from __future__ import annotations

import pytest

from holdfast.errors import RowExists
from holdfast.plane.approvals.rules import ApprovalStatus, ApprovalVerdict
from holdfast.plane.locks.registry import DEAD_LETTER_CLEANUP
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.retention import Cleanup, finished_runs, old_approvals
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.settings.settings import Retention
from holdfast.plane.workflows.core.run import CancelRequested, CheckRun, RunStatus
from holdfast.types import NS
from support.fixtures.workflows import ASKER, DECIDER, FlowReplica, FlowStage, holds

pytestmark = pytest.mark.asyncio

DAY = 86_400.0
ID = "order-7"

ORDER = """
name: order
steps:
  fetch: {topic: crm.fetch, input: "${ input }", retry: {retries: 1, initial: 1ms}}
  agreed: {kind: approval, message: "${ steps.fetch.output }?", after: [fetch]}
  ship: {workflow: shipping, input: "${ input }", after: [agreed]}
output: "${ [steps.fetch.output, steps.ship.output] }"
"""

SHIPPING = """
name: shipping
steps:
  send: {topic: parcel.send, input: "${ input }"}
output: "${ steps.send.output }"
"""

JOBS = (f"{ID}:fetch@1", f"{ID}:fetch@2", f"{ID}:agreed@1", f"{ID}:ship@1:send@1")

RETENTIONS = pytest.mark.parametrize(
    "kept",
    [
        pytest.param(Retention(), id="as by default"),
        pytest.param(Retention(runs_ns=3 * int(DAY) * NS), id="runs before jobs"),
    ],
)


async def prepared(flow_stage: FlowStage, *, serve: bool = True) -> FlowReplica:
    replica = await flow_stage.replica(serve=serve)
    for text in (SHIPPING, ORDER):
        await replica.define(text)
    return replica


async def whole(replica: FlowReplica, value: str) -> object:
    """A run from its start to its end: what it gives."""
    run = await replica.start("order", value, run_id=ID)
    fetch, again, gate, send = JOBS
    await ended(replica, fetch, state=JobState.FAILED)
    await ended(replica, again, f"{value} fetched")
    await begun(replica, gate)
    approval = await replica.components.flows.approval(ASKER, gate)
    assert (approval.status, approval.message) == (ApprovalStatus.WAITING, f"{value} fetched?")
    await replica.components.flows.decide(DECIDER, gate, ApprovalVerdict.APPROVE)
    await ended(replica, send, f"{value} sent")
    return (await replica.becomes(run, RunStatus.SUCCEEDED)).run.output


async def moved(replica: FlowReplica, value: str, name: str = "order") -> None:
    """A run that has begun, and is not moved any further."""
    await replica.start(name, value, run_id=ID)
    await replica.engine.move(ID, CheckRun())


async def begun(replica: FlowReplica, job: str) -> None:
    """A job is there that is not over: that of an earlier run is."""

    async def there() -> bool:
        found = await replica.job(job)
        return found is not None and not found.state.terminal

    await holds(there, f"job {job}")


async def ended(replica: FlowReplica, job: str, result: object = None, *, state: JobState = JobState.SUCCEEDED) -> None:
    await begun(replica, job)
    await replica.end(job, result, state=state)


async def forgotten(flow_stage: FlowStage, replica: FlowReplica, kept: Retention) -> None:
    """Time passes, until the run is forgotten."""
    flow_stage.clock.push(kept.runs_ns / NS + DAY)
    await cleaned(replica, kept)
    assert await replica.components.runs.get(ID) is None


async def cleaned(replica: FlowReplica, kept: Retention) -> None:
    components = replica.components
    cleanup = Cleanup(
        components.database, components.locks, components.clock, retention=kept, flows=(finished_runs, old_approvals)
    )
    async with DEAD_LETTER_CLEANUP.lock(components.locks) as lease:
        await cleanup.tick(Tick(lease))


async def told(replica: FlowReplica, subject: str) -> str:
    """The one message of a subject that will be delivered."""
    (row,) = await replica.query("SELECT body FROM plane_message WHERE subject = :subject", subject=subject)
    return str(row["body"])


@RETENTIONS
async def test_a_run_with_the_id_of_one_that_is_forgotten_is_run_anew(flow_stage: FlowStage, kept: Retention) -> None:
    replica = await prepared(flow_stage)
    assert await whole(replica, "old") == ["old fetched", "old sent"]
    await forgotten(flow_stage, replica, kept)
    assert await whole(replica, "new") == ["new fetched", "new sent"]
    for each in JOBS:
        job = await replica.job(each)
        assert job is not None
        history = await replica.components.store.events(each)
        assert [line.version for line in history] == list(range(1, len(history) + 1)), "of the new one alone"
        assert history[0].at_ns == job.created_ns


async def test_a_job_of_an_earlier_run_that_is_not_over_is_left_alone_and_the_step_is_refused(
    flow_stage: FlowStage,
) -> None:
    replica = await prepared(flow_stage, serve=False)
    await moved(replica, "old")
    await replica.engine.move(ID, CancelRequested("me", "enough"))  # and the message to its job is lost
    await forgotten(flow_stage, replica, Retention())
    left = await replica.job(JOBS[0])
    assert left is not None
    await moved(replica, "new")
    assert await replica.job(JOBS[0]) == left
    assert f"job {JOBS[0]} of an earlier run {ID} has not finished" in await told(replica, "run.result")


@pytest.mark.parametrize("key", [None, "mine"])
async def test_a_job_of_somebody_else_does_not_give_way_also_when_what_it_was_about_is_forgotten(
    flow_stage: FlowStage, key: str | None
) -> None:
    replica = await prepared(flow_stage, serve=False)
    # As an older version accepted it: today no caller can submit a job under such an id.
    wanted = Submission("mail.send", {"to": "ada"}, id=JOBS[0], idempotency_key=key, submitted_by=ASKER.name)
    await replica.components.database.write(replica.components.store.submission(wanted, "default"))
    await replica.end(JOBS[0], "sent")
    flow_stage.clock.push(3 * DAY if key is None else 30 * DAY)
    await cleaned(replica, Retention())
    there = await replica.job(JOBS[0])
    assert there is not None
    assert there.payload == (None if key else {"to": "ada"})
    await moved(replica, "new")
    assert await replica.job(JOBS[0]) == there
    assert "is the id of another job" in await told(replica, "run.result")


async def test_a_run_that_an_earlier_one_had_started_gives_way_when_it_is_over_and_not_before(
    flow_stage: FlowStage,
) -> None:
    replica = await prepared(flow_stage, serve=False)
    await replica.define("{name: outer, steps: {ship: {workflow: shipping, input: '${ input }'}}}")
    child = f"{ID}:ship@1"
    await moved(replica, "old", "outer")
    await replica.engine.move(child, CheckRun())
    await replica.engine.move(ID, CancelRequested("me", "enough"))
    await forgotten(flow_stage, replica, Retention())
    old = await replica.run(child)
    await moved(replica, "too early", "outer")
    assert await replica.run(child) == old
    assert f"run {child} of an earlier run {ID} has not finished" in await told(replica, "run.child")
    await replica.engine.move(ID, CancelRequested("me", "enough"))
    flow_stage.clock.push(2 * DAY)
    await replica.engine.move(child, CancelRequested("me", "enough"))
    await replica.end(f"{child}:send@1", state=JobState.CANCELLED)
    flow_stage.clock.push(29 * DAY)
    await cleaned(replica, Retention())
    assert (await replica.run(child)).run.status is RunStatus.CANCELLED, "it ended later, and is kept for longer"
    await moved(replica, "new", "outer")
    new = await replica.run(child)
    assert (new.run.status, new.run.input) == (RunStatus.PENDING, "new")
    assert [line.kind for line in await replica.timeline(child)] == ["submitted"]
    await replica.engine.move(child, CheckRun())
    job = await replica.job(f"{child}:send@1")
    assert job is not None
    assert (job.state, job.payload) == (JobState.PENDING, "new")


async def test_an_id_is_not_free_before_its_run_is_forgotten(flow_stage: FlowStage) -> None:
    replica = await prepared(flow_stage, serve=False)
    await moved(replica, "old")
    await replica.engine.move(ID, CancelRequested("me", "enough"))
    with pytest.raises(RowExists, match="is taken"):
        await replica.start("order", "new", run_id=ID)
