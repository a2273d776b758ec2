"""Runs moved by engines: one transaction for a step and its job, one effect for each, whatever comes twice or late."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.aio.lease import Lease
from holdfast.errors import FencedOut, RetryLater
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.jobs.rules import JobCode
from holdfast.plane.locks.registry import WORKFLOW_RUN
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.run_reconciler import RunReconciler
from holdfast.plane.maintenance.timers import Delays
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Delivery, Message, Submission
from holdfast.plane.service.workflows import RunNotFinished
from holdfast.plane.workflows.core.run import CheckRun, EventOutcome, JobEnded, RunStatus
from holdfast.plane.workflows.run_store import ChangedRun
from holdfast.testing.proxy import FaultProxy
from support.fixtures.scheduling import enqueue
from support.fixtures.workflows import ASKER, FlowStage, holds
from support.servers.redis import RedisServer

pytestmark = pytest.mark.asyncio

TWO_STEPS = """
name: order
steps:
  fetch: {kind: job, topic: crm.fetch, input: {id: "${ input.id }"}}
  pay: {kind: job, topic: bank.pay, after: [fetch], input: {amount: "${ steps.fetch.output.amount }"}}
output: "${ steps.pay.output }"
"""

RISKY = """
name: mixed
risk: low
steps:
  note: {kind: transform, input: "noted"}
  pay: {kind: job, topic: bank.pay, risk: high}
"""

SLOW = """
name: slow
steps:
  rest: {kind: delay, delay: 1h}
  then: {kind: transform, after: [rest], input: "rested"}
"""

OUTER = """
name: outer
steps:
  inner: {kind: workflow, workflow: order, input: {id: 7}}
"""


@pytest.fixture
def dead_store() -> Iterator[str]:
    """An address without a store: the port is bound, and no process listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{taken.getsockname()[1]}"


def delivery(message: Message) -> Delivery:
    return Delivery(message, subjects.ENGINE, 1, 0, 0)


@pytest.mark.requires("R47", "R52")
async def test_a_run_goes_from_step_to_step_under_fences_that_rise(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica()
    await replica.define(TWO_STEPS)
    run = await replica.start("order", {"id": 7})
    job = await replica.appears(f"{run}:fetch@1")
    assert (job.topic, job.payload, job.max_attempts) == ("crm.fetch", {"id": 7}, 1)
    own = {"holdfast.run": run, "holdfast.step": "fetch", "holdfast.risk": "low", "holdfast.attempts": "1"}
    assert job.labels == own
    await replica.end(f"{run}:fetch@1", {"amount": 12})
    await replica.end(f"{run}:pay@1", "paid")
    over = await replica.becomes(run, RunStatus.SUCCEEDED)
    assert over.run.output == "paid"
    assert (await replica.appears(f"{run}:pay@1")).payload == {"amount": 12}
    fences = [event.fence for event in await replica.timeline(run) if event.fence is not None]
    assert fences == sorted(fences)
    assert over.fence == fences[-1]
    assert not (await replica.components.locks.inspect(WORKFLOW_RUN.key(run=run))).held


async def test_the_same_key_is_the_same_run_and_starts_once(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica()
    await replica.define(TWO_STEPS)
    run = await replica.start("order", {"id": 7}, idempotency_key="k")
    assert await replica.start("order", {"id": 7}, idempotency_key="k") == run
    await replica.appears(f"{run}:fetch@1")
    assert len(await replica.query("SELECT id FROM plane_run")) == 1


@pytest.mark.requires("R47")
async def test_a_stale_engine_cannot_overwrite_a_newer_run(flow_stage: FlowStage) -> None:
    """W6: the run document was a blind whole overwrite."""
    replica = await flow_stage.replica()
    await replica.define(TWO_STEPS)
    run = await replica.start("order", {"id": 7})
    await replica.appears(f"{run}:fetch@1")
    stored = await replica.run(run)
    assert stored.fence is not None
    stale = CarriedFence(WORKFLOW_RUN.key(run=run), stored.fence - 1)
    ended = JobEnded(f"{run}:fetch@1", JobState.SUCCEEDED, {"amount": 1})
    with pytest.raises(FencedOut):
        await replica.engine.move_held(stale, run, ended)  # type: ignore[arg-type]  # a lease of long ago
    assert await replica.run(run) == stored
    assert await replica.job(f"{run}:pay@1") is None


@pytest.mark.requires("R146", "R147", "R151")
async def test_a_result_whose_run_is_locked_comes_again_after_exactly_half_a_second(flow_stage: FlowStage) -> None:
    """W16, W17: a result that met a busy run was taken for handled."""
    replica = await flow_stage.replica(serve=False)
    other = await flow_stage.replica(serve=False)
    await replica.define(TWO_STEPS)
    await replica.start("order", {"id": 7}, run_id="run-1")
    await replica.engine.move("run-1", CheckRun())
    await replica.end("run-1:fetch@1", {"amount": 12})
    (told,) = await replica.query("SELECT * FROM plane_message WHERE subject = :subject", subject=subjects.RUN_RESULT)
    assert told["id"].startswith("run.result:run-1:fetch@1")
    job = await replica.appears("run-1:fetch@1")
    message = delivery(subjects.step_over(job, None))
    async with WORKFLOW_RUN.lock(other.components.locks, run="run-1"):
        with pytest.raises(RetryLater) as later:
            await replica.engine.handlers[subjects.RUN_RESULT](message)
    assert later.value.delay == 0.5
    assert str(later.value) == "retry after 500ms: run lock busy"
    assert (await replica.status("run-1"))["fetch"] == "running"
    await replica.engine.handlers[subjects.RUN_RESULT](message)
    assert (await replica.status("run-1")) == {"fetch": "succeeded", "pay": "running"}


@pytest.mark.requires("R150")
async def test_the_lock_of_a_run_lasts_30_s_and_is_released_when_its_handler_is_cancelled(
    flow_stage: FlowStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(TWO_STEPS)
    run = await replica.start("order", {"id": 7})
    key = WORKFLOW_RUN.key(run=run)
    leases: list[Lease] = []
    inside = asyncio.Event()

    async def stop(lease: Lease, *_: object, **__: object) -> None:
        leases.append(lease)
        inside.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(replica.engine.runs, "change", stop)
    handler = asyncio.ensure_future(replica.engine.move(run, CheckRun()))
    await inside.wait()
    assert (leases[0].ttl, (await replica.components.locks.inspect(key)).held) == (30.0, True)
    handler.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handler
    assert not (await replica.components.locks.inspect(key)).held


@pytest.mark.requires("R150")
async def test_a_lock_of_a_run_that_cannot_be_released_changes_nothing_for_the_run(
    flow_stage: FlowStage, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(redis_server.port) as proxy:
        replica = await flow_stage.replica(leases=f"redis://{proxy.address}", serve=False)
        await replica.define(TWO_STEPS)
        run = await replica.start("order", {"id": 7})
        change = replica.engine.runs.change

        async def cut_off(*arguments: Any, **more: Any) -> ChangedRun:
            changed = await change(*arguments, **more)
            proxy.refuse()
            proxy.reset()
            return changed

        monkeypatch.setattr(replica.engine.runs, "change", cut_off)
        changed = await replica.engine.move(run, CheckRun())
        assert changed.outcome is EventOutcome.APPLIED
        assert (await replica.status(run))["fetch"] == "running"
        counts, locks = replica.engine.lock_statistics, replica.components.locks.statistics()
        assert (counts.busy, counts.backend_errors, counts.abandoned) == (0, 0, 0)
        assert locks.release_failures == 1
        proxy.refuse(False)


@pytest.mark.requires("R93", "R102")
async def test_what_comes_twice_late_or_for_nobody_changes_nothing_and_is_counted(flow_stage: FlowStage) -> None:
    heard: list[str] = []

    class Ears:
        def step_repeated(self, *, run: str, step: str) -> None:
            heard.append(step)

        def publish_repeated(self, *, job: str) -> None:
            heard.append(job)

    replica = await flow_stage.replica(serve=False, indicators=Ears())
    await replica.define(TWO_STEPS)
    run = await replica.start("order", {"id": 7})
    await replica.engine.move(run, CheckRun())
    ended = JobEnded(f"{run}:fetch@1", JobState.SUCCEEDED, {"amount": 12})
    assert (await replica.engine.move(run, ended)).outcome is EventOutcome.APPLIED
    stored = await replica.run(run)
    assert (await replica.engine.move(run, ended)).outcome is EventOutcome.REPEATED
    assert (await replica.engine.move(run, JobEnded(f"{run}:pay@9", JobState.FAILED))).outcome is EventOutcome.UNKNOWN
    assert (await replica.engine.move(run, JobEnded(f"{run}:none@1", JobState.FAILED))).outcome is EventOutcome.UNKNOWN
    assert (await replica.engine.move(run, CheckRun())).outcome is EventOutcome.NOTHING
    assert await replica.run(run) == stored
    assert (await replica.engine.move("missing", CheckRun())).before is None
    assert heard == ["fetch@1"]
    assert replica.engine.statistics()["Look.missing"] == 1


async def test_a_step_and_its_job_are_one_transaction(flow_stage: FlowStage, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(TWO_STEPS)
    run = await replica.start("order", {"id": 7})
    before = await replica.run(run)

    class Crash(Exception):
        pass

    async def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(replica.components.bus, "stage", crash)
        with pytest.raises(Crash):
            await replica.engine.move(run, CheckRun())
    assert await replica.run(run) == before
    assert await replica.job(f"{run}:fetch@1") is None
    await replica.engine.move(run, CheckRun())
    assert await replica.job(f"{run}:fetch@1") is not None


async def test_a_job_of_another_caller_under_the_id_of_a_step_fails_the_step_and_is_left_alone(
    flow_stage: FlowStage,
) -> None:
    replica = await flow_stage.replica()
    await replica.define(TWO_STEPS)
    await enqueue(replica.components.store, Submission("other", id="run-1:fetch@1"), "default")
    await replica.start("order", {"id": 7}, run_id="run-1")
    over = await replica.becomes("run-1", RunStatus.FAILED)
    assert "the id of another job" in (over.run.steps["fetch"].error or "")
    job = await replica.job("run-1:fetch@1")
    assert job is not None
    assert (job.topic, job.state) == ("other", JobState.PENDING)


@pytest.mark.requires("R80", "R98", "R100", "R105")
async def test_without_the_store_a_low_risk_run_goes_on_and_its_high_risk_steps_wait(
    flow_stage: FlowStage, dead_store: str
) -> None:
    cut_off = await flow_stage.replica(leases=dead_store, serve=False)
    cut_off.components.locks.policy.set("low", "fail_open", reason="test")
    await cut_off.define(RISKY)
    run = await cut_off.start("mixed")
    changed = await cut_off.engine.move(run, CheckRun())
    assert changed.held_back == ("pay",)
    assert await cut_off.status(run) == {"note": "succeeded", "pay": "pending"}
    assert (await cut_off.run(run)).fence is None
    assert (await cut_off.run(run)).wake_ns is not None  # it is checked again automatically
    assert cut_off.engine.lock_statistics.degraded == 1
    well = await flow_stage.replica(serve=False)  # the store is back
    await well.engine.move(run, CheckRun())
    assert (await well.status(run))["pay"] == "running"
    assert (await well.run(run)).fence is not None


@pytest.mark.requires("R99", "R100", "R104")
async def test_without_the_store_a_high_risk_run_waits_until_the_class_is_switched(
    flow_stage: FlowStage, dead_store: str
) -> None:
    cut_off = await flow_stage.replica(leases=dead_store, serve=False)
    cut_off.components.locks.policy.set("high", "fail_closed", reason="test")
    await cut_off.define(RISKY.replace("risk: low", "risk: high"))
    run = await cut_off.start("mixed")
    before = await cut_off.run(run)
    with pytest.raises(RetryLater) as later:
        await cut_off.engine.move(run, CheckRun())
    assert later.value.delay == 1.0
    assert await cut_off.run(run) == before
    cut_off.components.locks.policy.set("high", "fail_open", reason="the operator says so")
    await cut_off.engine.move(run, CheckRun())
    assert await cut_off.status(run) == {"note": "succeeded", "pay": "running"}


@pytest.mark.requires("R90", "R102")
async def test_replicas_that_all_lost_the_store_still_make_each_step_once(
    flow_stage: FlowStage, dead_store: str
) -> None:
    replicas = [await flow_stage.replica(leases=dead_store, serve=False) for _ in range(3)]
    for each in replicas:
        each.components.locks.policy.set("low", "fail_open", reason="test")
    first = replicas[0]
    await first.define(TWO_STEPS)
    runs = [await first.start("order", {"id": number}) for number in range(5)]
    await asyncio.gather(*(each.engine.move(run, CheckRun()) for each in replicas for run in runs))
    ended = [JobEnded(f"{run}:fetch@1", JobState.SUCCEEDED, {"amount": 1}) for run in runs]
    heard = await asyncio.gather(
        *(each.engine.move(run, event) for each in replicas for run, event in zip(runs, ended, strict=True))
    )
    assert sorted(str(each.outcome) for each in heard) == ["applied"] * 5 + ["repeated"] * 10
    jobs = await first.query("SELECT id FROM plane_job")
    assert sorted(row["id"] for row in jobs) == sorted(f"{run}:{step}@1" for run in runs for step in ("fetch", "pay"))


async def test_a_far_delay_is_waited_for_by_the_poller_and_forgotten_only_when_it_did_something(
    flow_stage: FlowStage,
) -> None:
    """W17: a timer was removed though its start had been skipped."""
    replica = await flow_stage.replica(serve=False)
    other = await flow_stage.replica(serve=False)
    poller = Delays(replica.engine, replica.components.locks)
    await replica.define(SLOW)
    run = await replica.start("slow")
    await replica.engine.move(run, CheckRun())
    async with replica.components.locks.lock("tick", ttl=30) as lease:
        tick = Tick(lease, 0, lambda: False)
        await poller.tick(tick)
        assert (await replica.status(run))["rest"] == "running"
        flow_stage.clock.push(3600)
        async with WORKFLOW_RUN.lock(other.components.locks, run=run):
            await poller.tick(tick)
        assert (poller.statistics().left, (await replica.status(run))["rest"]) == (1, "running")
        assert (await replica.run(run)).wake_ns is not None
        await poller.tick(tick)
    over = await replica.becomes(run, RunStatus.SUCCEEDED)
    assert (over.wake_ns, poller.statistics().woken) == (None, 1)


async def test_a_near_delay_does_not_wait_for_the_poller(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica()
    await replica.define(SLOW.replace("1h", "0.2s"))
    run = await replica.start("slow")
    over = await replica.becomes(run, RunStatus.SUCCEEDED)
    assert {each.actor for each in await replica.timeline(run)} == {"asker", "engine"}  # and no poller
    assert over.wake_ns is None


async def test_the_reconciler_tells_a_run_what_it_has_missed(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    reconciler = RunReconciler(replica.engine, replica.components.locks)
    await replica.define(TWO_STEPS)
    run = await replica.start("order", {"id": 7})
    await replica.engine.move(run, CheckRun())
    await replica.end(f"{run}:fetch@1", {"amount": 12})
    await replica.components.database.write(lambda tx: tx.query("DELETE FROM plane_message"))  # the message is lost
    async with replica.components.locks.lock("tick", ttl=30) as lease:
        tick = Tick(lease, 0, lambda: False)
        await reconciler.tick(tick)
        assert (await replica.status(run))["fetch"] == "running"  # it may still be on its way
        flow_stage.clock.push(60)
        await reconciler.tick(tick)
        assert await replica.status(run) == {"fetch": "succeeded", "pay": "running"}
        await replica.components.database.write(
            lambda tx: tx.query("DELETE FROM plane_job WHERE id = :id", {"id": f"{run}:pay@1"})
        )
        flow_stage.clock.push(60)
        await reconciler.tick(tick)
    assert (await replica.run(run)).run.status is RunStatus.FAILED
    counts = reconciler.statistics()
    assert (counts.told, counts.orphaned, counts.errors) == (1, 1, 0)


async def test_a_workflow_in_a_workflow_gives_its_output_and_is_cancelled_with_it(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica()
    await replica.define(TWO_STEPS)
    await replica.define(OUTER)
    run = await replica.start("outer")
    child = f"{run}:inner@1"
    await replica.end(f"{child}:fetch@1", {"amount": 3})
    await replica.end(f"{child}:pay@1", "paid")
    over = await replica.becomes(run, RunStatus.SUCCEEDED)
    assert over.run.output == {"inner": "paid"}

    other = await replica.start("outer")
    child = f"{other}:inner@1"
    await replica.appears(f"{child}:fetch@1")
    _, asked = await replica.components.flows.cancel(ASKER, other)
    assert asked
    await replica.becomes(other, RunStatus.CANCELLED)
    await replica.becomes(child, RunStatus.CANCELLED)

    async def told() -> bool:
        rows = await replica.query("SELECT * FROM plane_message WHERE subject = :subject", subject=subjects.CANCEL)
        return any(row["id"].startswith(f"job.cancel:{child}:fetch@1") for row in rows)

    await holds(told, "the job is to be cancelled")


async def test_a_workflow_that_nobody_knows_fails_its_step_with_a_reason(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica()
    await replica.define(OUTER)
    over = await replica.becomes(await replica.start("outer"), RunStatus.FAILED)
    assert "'order' is not known" in (over.run.steps["inner"].error or "")


async def test_a_run_that_failed_is_run_again_with_what_went_well(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica()
    await replica.define(TWO_STEPS)
    run = await replica.start("order", {"id": 7})
    await replica.end(f"{run}:fetch@1", {"amount": 12})
    with pytest.raises(RunNotFinished):
        await replica.components.flows.rerun(ASKER, run)
    await replica.end(f"{run}:pay@1", state=JobState.FAILED, code=JobCode.FATAL)
    await replica.becomes(run, RunStatus.FAILED)
    second, made = await replica.components.flows.rerun(ASKER, run, keep=True)
    assert made
    job = await replica.appears(f"{second.run.id}:pay@1")
    assert job.payload == {"amount": 12}
    assert await replica.job(f"{second.run.id}:fetch@1") is None
    await replica.end(job.id, "paid")
    assert (await replica.becomes(second.run.id, RunStatus.SUCCEEDED)).about.rerun_of == run
