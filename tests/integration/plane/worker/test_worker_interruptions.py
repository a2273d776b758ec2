"""Stopping what runs: time limits, deadlines, stop messages, lost leases, and functions that will not stop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast.errors import LeaseLost, LockBusy, RetryLater
from holdfast.plane import App, BlockingContext, Context
from holdfast.plane.locks import registry as families
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job, Message
from holdfast.runtime.system import SystemClock
from holdfast.types import MS, NS, Instant
from support.fixtures.databases import until
from support.fixtures.workers import Gate, WorkerStage

pytestmark = pytest.mark.asyncio

MOMENT_NS = 30 * MS
HOUR_NS = 3600 * NS


class StandingClock:
    """Always says the same, so that a deadline is as far away when an attempt begins as when it was requested."""

    def now(self) -> Instant:
        return Instant(NS, NS, 1_700_000_000 * NS)


def endless(app: App, topic: str = "endless") -> list[str]:
    """An async job that never ends, and how it was ended."""
    ends: list[str] = []

    @app.job(topic)
    async def run(ctx: Context, payload: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append(f"cancelled {ctx.lease.held}")
            raise

    return ends


async def stop(work_stage: WorkerStage, worker: str, job: str, attempt: int = 1) -> None:
    row = Job(job, "acme", "t", "default", JobState.RUNNING, 0, attempt, 3, None, 0, 0, 5, 1)
    await work_stage.bus.inner.publish([subjects.stop(row, worker, "cancelled by alice")])


@pytest.mark.parametrize("limit", ["job", "function"])
async def test_an_async_function_that_runs_too_long_is_cancelled_while_it_holds_its_lease(
    work_stage: WorkerStage, limit: str
) -> None:
    app = App("billing")
    ends: list[str] = []

    @app.job("endless", timeout=HOUR_NS / NS if limit == "job" else MOMENT_NS / NS)
    async def run(ctx: Context, payload: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(f"{ctx.cancelled.reason}, held: {ctx.lease.held}")

    worker = await work_stage.worker(app)
    job = await work_stage.send("endless", timeout_ns=MOMENT_NS if limit == "job" else HOUR_NS)
    body = (await work_stage.result(job)).body
    assert (body["status"], body["retryable"]) == ("failed", True)
    assert body["error"] == "timeout: it ran for longer than 0.03 s"
    assert await work_stage.end(job) is None
    assert ends == ["it has run for as long as it may, held: True"]
    assert (worker.statistics().timed_out, worker.statistics().retried, worker.statistics().stuck) == (1, 1, 0)


async def test_a_deadline_ends_an_attempt_as_a_time_limit_does(work_stage: WorkerStage) -> None:
    app = App("billing")
    ends = endless(app)
    await work_stage.worker(app, clock=StandingClock())
    job = await work_stage.send("endless", timeout_ns=HOUR_NS, deadline_ns=StandingClock().now().wall + MOMENT_NS)
    assert (await work_stage.result(job)).body["error"] == "timeout: it ran for longer than 0.03 s"
    assert ends == ["cancelled True"]


async def test_an_attempt_whose_deadline_has_passed_is_not_begun(work_stage: WorkerStage) -> None:
    app = App("billing")
    runs: list[int] = []
    app.job("charge")(runs.append)
    await work_stage.worker(app)
    job = await work_stage.send("charge", 1, deadline_ns=SystemClock().now().wall - 1)
    body = (await work_stage.result(job)).body
    assert (body["error"], body["retryable"]) == ("timeout: its deadline had passed before it began", True)
    assert runs == []


async def test_what_is_finished_within_the_grace_after_a_limit_is_a_success(work_stage: WorkerStage) -> None:
    app = App("billing")

    @app.job("charge")
    def charge(ctx: BlockingContext, payload: Any) -> str:
        assert ctx.cancelled.wait(60)
        ctx.ensure_held()
        return "just in time"

    await work_stage.worker(app)
    job = await work_stage.send("charge", timeout_ns=MOMENT_NS)
    assert (await work_stage.result(job)).body["result"] == "just in time"


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_function_that_ignores_its_limit_loses_its_lease_and_keeps_its_place_until_it_ends(
    work_stage: WorkerStage, colour: str
) -> None:
    app = App("billing")
    over, loop_over = threading.Event(), asyncio.Event()
    seen: list[Any] = []

    def look(ctx: Any) -> None:
        seen.append((ctx.cancelled.is_set(), ctx.lease.held, ctx.remaining()))
        with pytest.raises(LeaseLost):
            ctx.ensure_held()

    def deaf(ctx: BlockingContext, payload: Any) -> None:
        over.wait(60)
        look(ctx)

    async def deaf_on_loop(ctx: Context, payload: Any) -> None:
        while not loop_over.is_set():
            try:
                await loop_over.wait()
            except asyncio.CancelledError:
                continue
        look(ctx)

    app.job("deaf")(deaf if colour == "sync" else deaf_on_loop)
    app.job("other")(lambda payload: payload)
    worker = await work_stage.worker(app, concurrency=1, cancel_grace=0.02)
    job = await work_stage.send("deaf", timeout_ns=MOMENT_NS)
    body = (await work_stage.result(job)).body
    assert body["error"] == "timeout: it ran for longer than 0.03 s; it did not stop when it was told"
    assert await work_stage.end(job) is None
    assert not await work_stage.locks.lock(families.WORKER_JOB.key(job=job)).locked()

    statistics = worker.statistics()
    assert (statistics.active, statistics.stuck, statistics.overran) == (0, 1, 1)
    other = await work_stage.send("other")
    assert work_stage.said(subjects.STARTED, other) == []

    over.set()
    loop_over.set()
    assert (await work_stage.result(other)).body["status"] == "succeeded"  # there is a place again
    assert worker.statistics().stuck == 0
    assert seen == [(True, False, 0.0)]


async def test_a_stopped_attempt_is_cancelled_and_says_nothing(work_stage: WorkerStage) -> None:
    app = App("billing")
    ends = endless(app)
    worker = await work_stage.worker(app)
    job = await work_stage.send("endless")
    await until(lambda: work_stage.said(subjects.STARTED, job) and worker.running())
    await stop(work_stage, worker.name, job, attempt=2)  # another attempt is not meant
    await stop(work_stage, worker.name, "another")
    await stop(work_stage, worker.name, job)
    await until(lambda: ends)
    await until(lambda: not worker.running())
    assert worker.statistics().stopped == 1
    assert work_stage.said(subjects.RESULT) == []
    work = [error for delivery, error in work_stage.bus.ends if delivery.message.subject == "work.default.endless"]
    assert work == [None]


async def test_a_stop_that_names_a_fence_means_the_run_under_that_fence(work_stage: WorkerStage) -> None:
    app = App("billing")
    endless(app)
    worker = await work_stage.worker(app)
    job = await work_stage.send("endless")
    await until(lambda: work_stage.said(subjects.STARTED, job))
    fence = work_stage.said(subjects.STARTED, job)[0].fence
    assert fence is not None
    context = worker.running()[0].context
    assert context is not None

    async def stop_run(number: int) -> None:
        body = {"job": job, "attempt": 1, "reason": "another has taken over", "run_fence": number}
        await work_stage.bus.inner.publish([Message(f"stop-{number}", subjects.stop_subject(worker.name), body)])
        await until(lambda: any(each.message.id == f"stop-{number}" for each, _ in work_stage.bus.ends))

    await stop_run(fence.fence - 1)
    assert not context.cancelled
    await stop_run(fence.fence)
    await until(lambda: worker.statistics().stopped == 1)


async def test_a_thread_is_told_that_its_attempt_was_stopped_and_why(work_stage: WorkerStage) -> None:
    app = App("billing")
    reasons: list[str | None] = []
    waiting = threading.Event()

    @app.job("patient")
    def patient(ctx: BlockingContext, payload: Any) -> None:
        assert not ctx.cancelled
        assert not ctx.cancelled.wait(0)
        assert ctx.cancelled.reason is None
        waiting.set()
        ctx.cancelled.wait()
        reasons.append(ctx.cancelled.reason)

    worker = await work_stage.worker(app)
    job = await work_stage.send("patient")
    await until(waiting.is_set)
    await stop(work_stage, worker.name, job)
    await until(lambda: worker.statistics().stopped and reasons)
    assert reasons == ["stopped: cancelled by alice"]


async def test_a_stop_that_comes_before_the_function_is_begun_keeps_it_from_running(work_stage: WorkerStage) -> None:
    app, gate = App("billing"), Gate()
    runs: list[int] = []
    app.job("charge")(runs.append)

    async def wait(message: Message) -> None:
        await gate.passed()

    work_stage.bus.before = wait
    worker = await work_stage.worker(app)
    job = await work_stage.send("charge", 1)
    await asyncio.wait_for(gate.come.wait(), 60)
    await stop(work_stage, worker.name, job)
    await until(lambda: any(each.message.subject.startswith("stop") for each, _ in work_stage.bus.ends))
    gate.go.set()
    await until(lambda: worker.statistics().stopped)
    assert (runs, work_stage.said(subjects.RESULT)) == ([], [])


async def lose(work_stage: WorkerStage, job: str) -> None:
    """Take the lease away, as an operator does, or as time does after a long pause."""
    assert await work_stage.locks.force_release(families.WORKER_JOB.key(job=job), reason="a test")


async def test_a_lost_lease_cancels_an_async_function_and_nothing_is_said(work_stage: WorkerStage) -> None:
    app = App("billing")
    ends = endless(app)
    worker = await work_stage.worker(app, lease_ttl=1)
    job = await work_stage.send("endless")
    await until(lambda: work_stage.said(subjects.STARTED, job))
    await lose(work_stage, job)
    error = await work_stage.end(job)
    assert isinstance(error, RetryLater)
    assert (error.delay, isinstance(error.__cause__, LockBusy)) == (0.5, True)
    assert ends == ["cancelled False"]
    assert work_stage.said(subjects.RESULT) == []
    assert worker.statistics().lost == 1
    await until(lambda: len(work_stage.said(subjects.STARTED, job)) == 2)  # it was nacked, and is run again
    first, second = (each.fence.fence for each in work_stage.said(subjects.STARTED, job) if each.fence)
    assert second > first


async def test_a_lost_lease_is_seen_in_a_thread_and_nothing_is_said(work_stage: WorkerStage) -> None:
    app = App("billing")
    seen: list[Any] = []

    @app.job("patient")
    def patient(ctx: BlockingContext, payload: Any) -> str:
        if seen:
            return "the second time"
        assert ctx.lease.lost.wait(60)
        seen.append((ctx.cancelled.is_set(), ctx.lease.held, bool(ctx.lease.lost)))
        return "too late"

    worker = await work_stage.worker(app, lease_ttl=1)
    job = await work_stage.send("patient")
    await until(lambda: work_stage.said(subjects.STARTED, job))
    await lose(work_stage, job)
    assert isinstance(await work_stage.end(job), RetryLater)
    assert (await work_stage.result(job)).body["result"] == "the second time"
    assert len(work_stage.said(subjects.RESULT)) == 1
    assert seen == [(True, False, True)]
    assert worker.statistics().lost == 1


async def test_a_late_result_carries_the_lower_fence_so_that_it_can_be_refused(work_stage: WorkerStage) -> None:
    """The pause that cannot be prevented: between the last check of the lease and the publication."""
    app, gate = App("billing"), Gate()
    app.job("charge")(lambda payload: payload)
    fences: list[int] = []

    async def pause(message: Message) -> None:
        if message.subject == subjects.RESULT and message.fence is not None:
            fences.append(message.fence.fence)
            if len(fences) == 1:
                await gate.passed()

    work_stage.bus.before = pause
    await work_stage.worker(app, name="first", concurrency=1, lease_ttl=1)
    job = await work_stage.send("charge", job="j")
    await asyncio.wait_for(gate.come.wait(), 60)
    await lose(work_stage, job)
    await work_stage.worker(app, name="second")
    await work_stage.send("charge", job="j", fence=2)
    successor = await work_stage.result(job)
    assert successor.body["worker"] == "second"
    gate.go.set()
    late = await work_stage.result(job, 2)
    assert late.body["worker"] == "first"
    assert late.fence is not None
    assert successor.fence is not None
    assert late.fence.fence < successor.fence.fence
    assert late.id != successor.id


async def test_a_function_that_releases_its_own_lease_has_failed_for_good(work_stage: WorkerStage) -> None:
    app = App("billing")

    @app.job("charge")
    async def charge(ctx: Context, payload: Any) -> None:
        await ctx.lease.release()

    await work_stage.worker(app)
    body = (await work_stage.result(await work_stage.send("charge"))).body
    assert (body["status"], body["retryable"]) == ("failed", False)
    assert "released the lease" in body["error"]


async def test_while_a_bad_function_blocks_the_loop_its_lease_is_kept(work_stage: WorkerStage) -> None:
    app = App("billing")
    elapsed: list[float] = []

    @app.job("bad")
    async def bad(ctx: Context, payload: Any) -> bool:
        began = ctx.lease.remaining()
        lowest = began
        clock, pause = SystemClock(), threading.Event()
        until_ns = clock.now().mono + 2 * NS
        while clock.now().mono < until_ns:  # two times its TTL, and no other task runs on this loop
            pause.wait(0.01)
            lowest = min(lowest, ctx.lease.remaining())
        elapsed.append(lowest)
        return ctx.lease.held

    worker = await work_stage.worker(app, lease_ttl=1)
    job = await work_stage.send("bad")
    assert (await work_stage.result(job)).body["result"] is True
    assert elapsed[0] > 0
    assert worker.statistics().lost == 0


@pytest.mark.server
async def test_the_same_holds_with_leases_in_redis(redis_stage: WorkerStage) -> None:
    work_stage, app = redis_stage, App("billing")
    ends = endless(app)
    app.job("charge")(lambda payload: payload)
    worker = await work_stage.worker(app, lease_ttl=1)
    assert (await work_stage.result(await work_stage.send("charge", 1))).body["result"] == 1
    job = await work_stage.send("endless")
    await until(lambda: work_stage.said(subjects.STARTED, job))
    await lose(work_stage, job)
    assert isinstance(await work_stage.end(job), RetryLater)
    await until(lambda: len(work_stage.said(subjects.STARTED, job)) == 2)
    first, second = (each.fence.fence for each in work_stage.said(subjects.STARTED, job) if each.fence)
    assert second > first
    assert (await worker.drain(0)).interrupted == 1
    assert ends == ["cancelled False", "cancelled True"]
