"""The places of a topic in a worker: what it says of them, and the outcome of an attempt that finds none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import LockBusy, RetryLater
from holdfast.plane import App
from holdfast.plane.model.job_states import JobQueue
from holdfast.plane.worker import worker as worker_module
from holdfast.plane.worker.worker import Worker
from support.fixtures.databases import until
from support.fixtures.workers import Gate, WorkerStage

pytestmark = pytest.mark.asyncio


async def test_what_the_scheduler_has_counted_a_place_for_is_left_to_the_worker_that_has_it(
    work_stage: WorkerStage,
) -> None:
    """Two workers with a slot each, two attempts: a worker without a slot nacks, and nothing is returned."""
    gates = [Gate(), Gate()]

    async def charging(gate: Gate) -> Worker:
        app = App("billing")

        @app.job("charge", max_concurrency=1)
        async def charge(payload: Any) -> None:
            await gate.passed()

        return await work_stage.worker(app, concurrency=4)

    first = await charging(gates[0])
    jobs = [await work_stage.send("charge", queue=JobQueue.TOPIC)]
    await asyncio.wait_for(gates[0].come.wait(), 60)
    second = await charging(gates[1])
    jobs.append(await work_stage.send("charge", queue=JobQueue.TOPIC))
    await asyncio.wait_for(gates[1].come.wait(), 60)
    for gate in gates:
        gate.go.set()
    assert {(await work_stage.result(job)).body["status"] for job in jobs} == {"succeeded"}
    assert [worker.statistics().full for worker in (first, second)] == [0, 0]


async def test_what_nobody_has_a_place_for_after_all_goes_back_to_the_scheduler(
    work_stage: WorkerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "PASSES_MAX", 3)
    app, gate = App("billing"), Gate()

    @app.job("charge", max_concurrency=1)
    async def charge(payload: Any) -> None:
        await gate.passed()

    worker = await work_stage.worker(app, concurrency=4)
    first = await work_stage.send("charge", queue=JobQueue.TOPIC)
    await asyncio.wait_for(gate.come.wait(), 60)
    second = await work_stage.send("charge", queue=JobQueue.TOPIC)
    assert (await work_stage.result(second)).body["status"] == "returned"
    ends = [await work_stage.end(second, number) for number in (1, 2, 3, 4)]
    assert [isinstance(each, RetryLater) for each in ends] == [True, True, True, False]
    assert all(isinstance(each.__cause__, LockBusy) for each in ends if each is not None), "no failure of the job"
    assert (worker.statistics().passed_on, worker.statistics().full) == (3, 1)
    gate.go.set()
    await work_stage.result(first)


async def test_a_worker_says_how_many_places_topics_have_that_have_fewer_than_it(work_stage: WorkerStage) -> None:
    app, gate = App("billing"), Gate()

    @app.job("charge", max_concurrency=2)
    async def charge(payload: Any) -> None:
        await gate.passed()

    for topic, most in (("many", 4), ("more", 9), ("all", None), ("one", 1)):
        app.job(topic, max_concurrency=most)(lambda payload: payload)
    app.job("elsewhere", pool="elsewhere", max_concurrency=3)(lambda payload: payload)
    worker = await work_stage.worker(app, concurrency=4, pools=["default"])
    await until(lambda: bool(work_stage.registry.heard))
    assert work_stage.registry.heard[-1].places == {"charge": 2, "one": 1}
    job = await work_stage.send("charge")
    await asyncio.wait_for(gate.come.wait(), 60)
    draining = asyncio.create_task(worker.drain(30))
    await until(lambda: work_stage.registry.heard[-1].draining)
    left = {"all": 0, "charge": 1, "many": 0, "more": 0, "one": 0}
    assert work_stage.registry.heard[-1].places == left, "room for what it still has"
    gate.go.set()
    await draining
    assert (await work_stage.result(job)).body["status"] == "succeeded"
