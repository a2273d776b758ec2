"""The end of a worker: it takes nothing more, finishes what it can, and gives back the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.errors import BadInput, LockBusy, RetryLater, Unavailable
from holdfast.plane import App, BlockingContext, Context, Drained
from holdfast.plane.db.ports import Bus, Consumer, Consumption, Handler
from holdfast.plane.locks import registry as families
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.records import Message
from holdfast.plane.worker.executor import Interruption
from holdfast.plane.worker.worker import Worker, _finishing_ns, _stopping_ns
from holdfast.types import NS
from support.fixtures.databases import until
from support.fixtures.workers import Gate, SocketListener, WorkerStage

pytestmark = pytest.mark.asyncio


def gated(app: App, topic: str = "slow") -> Gate:
    gate = Gate()

    @app.job(topic)
    async def slow(payload: Any) -> Any:
        await gate.passed()
        return payload

    return gate


async def test_what_runs_is_finished_and_nothing_more_is_taken(work_stage: WorkerStage) -> None:
    app = App("billing")
    gate = gated(app)
    worker = await work_stage.worker(app)
    job = await work_stage.send("slow", 1)
    await asyncio.wait_for(gate.come.wait(), 60)
    draining = asyncio.create_task(worker.drain(60))
    await until(lambda: worker._worker_pools[0].draining)
    late = await work_stage.send("slow", 2)
    gate.go.set()
    assert await draining == Drained(interrupted=0, stuck=0)
    assert (await work_stage.result(job)).body["result"] == 1
    assert work_stage.said(subjects.STARTED, late) == []
    assert await work_stage.bus.pending("work.default.slow", "workers") == 1
    other = await work_stage.worker(app)
    assert (await work_stage.result(late)).body["worker"] == other.name


async def test_a_message_that_arrives_while_draining_is_given_back_at_once(work_stage: WorkerStage) -> None:
    app = App("billing")
    runs: list[int] = []
    app.job("charge")(runs.append)
    worker = await work_stage.worker(app)
    worker._worker_pools[0].draining = True  # it is decided, and the bus has not heard of it yet
    job = await work_stage.send("charge")
    error = await work_stage.end(job)
    assert isinstance(error, RetryLater)
    assert (error.delay, isinstance(error.__cause__, LockBusy)) == (0.0, True)
    await worker.drain(0)
    assert (runs, work_stage.bus.published) == ([], [])
    assert worker.statistics().turned_away >= 1


async def test_what_is_not_finished_in_time_is_cancelled_and_given_back_and_nothing_is_said(
    work_stage: WorkerStage,
) -> None:
    app = App("billing")
    gate = gated(app)
    worker = await work_stage.worker(app)
    job = await work_stage.send("slow", 1)
    await asyncio.wait_for(gate.come.wait(), 60)
    drained = await worker.drain(0.01)
    assert (drained.interrupted, drained.finished) == (1, False)
    error = await work_stage.end(job)
    assert isinstance(error, RetryLater)
    assert (error.delay, isinstance(error.__cause__, LockBusy)) == (0.0, True)
    assert work_stage.said(subjects.RESULT) == []
    assert not await work_stage.locks.lock(families.WORKER_JOB.key(job=job)).locked()
    gate.go.set()
    successor = await work_stage.worker(app)
    assert (await work_stage.result(job)).body["worker"] == successor.name
    assert worker.statistics().given_back == 1


async def test_what_finishes_when_it_is_asked_to_stop_is_not_done_again(work_stage: WorkerStage) -> None:
    app = App("billing")

    @app.job("tidy")
    def tidy(ctx: BlockingContext, payload: Any) -> str:
        ctx.cancelled.wait()
        return str(ctx.cancelled.reason)

    worker = await work_stage.worker(app)
    job = await work_stage.send("tidy")
    await until(lambda: work_stage.said(subjects.STARTED, job))
    await worker.drain(0)
    assert (await work_stage.result(job)).body["result"] == "its worker is ending"
    assert await work_stage.end(job) is None


async def test_a_thread_that_does_not_stop_is_left_behind_and_reported(work_stage: WorkerStage) -> None:
    app, over = App("billing"), threading.Event()

    @app.job("deaf")
    def deaf(ctx: BlockingContext, payload: Any) -> None:
        over.wait(60)

    worker = await work_stage.worker(app, cancel_grace=0.01)
    job = await work_stage.send("deaf")
    await until(lambda: work_stage.said(subjects.STARTED, job))
    drained = await worker.drain(0)
    assert drained == Drained(interrupted=1, stuck=1)
    assert not drained.finished
    assert isinstance(await work_stage.end(job), RetryLater)
    assert not await work_stage.locks.lock(families.WORKER_JOB.key(job=job)).locked()
    over.set()
    await until(lambda: worker.statistics().stuck == 0)


async def test_the_time_to_stop_is_part_of_the_grace_period_and_not_on_top_of_it(work_stage: WorkerStage) -> None:
    app = App("billing")
    gate = gated(app)
    worker = await work_stage.worker(app, cancel_grace=3600)
    job = await work_stage.send("slow")
    await asyncio.wait_for(gate.come.wait(), 60)
    assert (await asyncio.wait_for(worker.drain(3600), 60)).interrupted == 1
    assert isinstance(await work_stage.end(job), RetryLater)


@pytest.mark.parametrize(("grace", "cancel_grace", "left_alone"), [(30, 5, 24), (5, 5, 0), (1, 5, 0), (0, 0, 0)])
async def test_what_runs_is_left_alone_until_it_must_be_told(grace: int, cancel_grace: int, left_alone: int) -> None:
    assert _finishing_ns(grace * NS, cancel_grace * NS) == left_alone * NS


@pytest.mark.parametrize(
    ("grace", "cancel_grace", "waited"),
    [(30, 5, 5), (6, 5, 5), (5.5, 5, 4.5), (5, 5, 4), (2, 2, 1), (1, 1, 0.5), (1, 5, 4), (0, 5, 4), (0, 0, 0)],
)
async def test_what_was_told_to_stop_is_waited_for_until_the_rest_of_the_end_needs_the_time(
    grace: float, cancel_grace: float, waited: float
) -> None:
    grace_ns, cancel_grace_ns = round(grace * NS), round(cancel_grace * NS)
    assert _stopping_ns(grace_ns, cancel_grace_ns) == waited * NS
    whole_ns = max(grace_ns, cancel_grace_ns)
    assert _finishing_ns(grace_ns, cancel_grace_ns) + waited * NS + min(NS, whole_ns / 2) <= whole_ns


async def test_the_end_does_not_wait_for_a_function_that_was_told_to_stop_before_and_has_hours_for_it(
    work_stage: WorkerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, over = App("billing"), threading.Event()

    @app.job("deaf")
    def deaf(ctx: BlockingContext, payload: Any) -> None:
        over.wait(60)

    worker = await work_stage.worker(app, cancel_grace=3600)
    job = await work_stage.send("deaf")
    await until(lambda: work_stage.said(subjects.STARTED, job))
    worker.running()[0].interrupt(Interruption.TIME_LIMIT, "it has run for as long as it may")
    monkeypatch.setattr("holdfast.plane.worker.worker._stopping_ns", lambda *_: 0)
    assert (await asyncio.wait_for(worker.drain(3600), 60)).stuck == 1
    over.set()
    await until(lambda: worker.statistics().stuck == 0)


async def test_a_hurry_ends_the_grace_period(work_stage: WorkerStage) -> None:
    app = App("billing")
    gate = gated(app)
    worker = await work_stage.worker(app)
    job = await work_stage.send("slow")
    await asyncio.wait_for(gate.come.wait(), 60)
    draining = asyncio.create_task(worker.drain(3600))
    await until(lambda: worker._worker_pools[0].draining)
    worker.hurry()
    assert (await asyncio.wait_for(draining, 60)).interrupted == 1
    assert isinstance(await work_stage.end(job), RetryLater)


async def test_a_worker_that_cannot_publish_does_not_hold_up_its_end(work_stage: WorkerStage) -> None:
    app = App("billing")
    app.job("charge")(lambda payload: payload)

    async def away(message: Message) -> None:
        if message.subject == subjects.RESULT:
            raise Unavailable("no bus")

    work_stage.bus.before = away
    worker = await work_stage.worker(app)
    job = await work_stage.send("charge")
    await until(lambda: worker.statistics().unreachable)
    assert (await worker.drain(0)).interrupted == 1
    error = await work_stage.end(job)
    assert isinstance(error, RetryLater)
    assert isinstance(error.__cause__, Unavailable)


async def test_draining_twice_is_draining_once_and_a_bad_grace_is_refused(work_stage: WorkerStage) -> None:
    app = App("billing")
    app.job("charge")(lambda payload: payload)
    worker = await work_stage.worker(app)
    with pytest.raises(BadInput) as refused:
        await worker.drain(-1)
    assert refused.value.field == "grace"
    assert set(await asyncio.gather(worker.drain(1), worker.drain(2))) == {Drained(0, 0)}
    await worker.wait()
    assert work_stage.registry.left == [worker.name]


async def test_leaving_the_block_drains(work_stage: WorkerStage) -> None:
    app = App("billing")
    gate = gated(app)
    async with Worker(app, bus=work_stage.bus, locks=work_stage.locks, registry=work_stage.registry) as worker:
        job = await work_stage.send("slow", 5)
        await asyncio.wait_for(gate.come.wait(), 60)
        asyncio.get_running_loop().call_soon(gate.go.set)
    assert (await work_stage.result(job)).body["result"] == 5
    assert not worker.running()


async def test_leaving_the_block_in_an_error_does_not_wait(work_stage: WorkerStage) -> None:
    app = App("billing")
    gate = gated(app)
    with pytest.raises(ZeroDivisionError):
        async with Worker(app, bus=work_stage.bus, locks=work_stage.locks, registry=work_stage.registry):
            job = await work_stage.send("slow", 5)
            await asyncio.wait_for(gate.come.wait(), 60)
            raise ZeroDivisionError
    assert isinstance(await work_stage.end(job), RetryLater)


async def test_a_worker_that_cannot_start_says_why(work_stage: WorkerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("billing")
    app.job("charge")(lambda payload: payload)

    def away(*_: object) -> object:
        raise Unavailable("no bus")

    monkeypatch.setattr(work_stage.bus, "consume", away)
    worker = Worker(app, bus=work_stage.bus, locks=work_stage.locks, registry=work_stage.registry)
    with pytest.raises(Unavailable, match="no bus"):
        await worker.start()


async def test_a_handler_that_the_bus_cancels_gives_its_lease_back(work_stage: WorkerStage) -> None:
    """A bus that has no more patience cancels its handlers; that must not leave a lease behind."""
    app = App("billing")
    leases: list[Any] = []

    @app.job("endless")
    async def endless(ctx: Context, payload: Any) -> None:
        leases.append(ctx.lease)
        await asyncio.Event().wait()

    worker = await work_stage.worker(app)
    job = await work_stage.send("endless")
    await until(lambda: leases)
    work_stage.bus.inner._grace_ns = 0  # type: ignore[attr-defined]
    async with asyncio.timeout(60):
        for consumer in work_stage.bus.inner._consumers:  # type: ignore[attr-defined]
            await consumer.drain(0)
    assert isinstance(await work_stage.end(job), asyncio.CancelledError)
    assert not leases[0].held
    assert not await work_stage.locks.lock(families.WORKER_JOB.key(job=job)).locked()
    assert worker.statistics().given_back == 1


async def test_a_start_that_is_given_up_leaves_nothing_that_an_end_would_wait_for(work_stage: WorkerStage) -> None:
    app, asked = App("billing"), asyncio.Event()
    app.job("charge")(lambda payload: payload)

    class Silent(SocketListener):
        @asynccontextmanager
        async def _consuming(self, how: Consumption, handler: Handler) -> AsyncIterator[Consumer]:
            asked.set()
            await asyncio.Event().wait()
            yield self.consumers[how.subject]  # which is never reached

    bus: Bus = Silent(work_stage.bus.inner)
    worker = Worker(app, bus=bus, locks=work_stage.locks, registry=work_stage.registry)
    starting = asyncio.create_task(worker.start())
    await asyncio.wait_for(asked.wait(), 60)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await asyncio.wait_for(worker.drain(0), 60) == Drained(interrupted=0, stuck=0)
