"""Attempts of one step share a name, and say which attempt they are; a cancelled sub-workflow has its handler run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.plane import App
from holdfast.plane.model.messages import attempt_text
from holdfast.plane.model.records import Submission
from holdfast.plane.process.plane import Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Settings
from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.plane.workflows.core.run import RunStatus
from support.fixtures.workflows import ASKER, FlowStage

pytestmark = pytest.mark.asyncio

ME = Caller("test")
RETRIED = {
    "name": "w",
    "steps": {
        "pay": {"topic": "pay", "for_each": ["x"], "input": "${ item }", "retry": {"retries": 3, "initial": 0.001}}
    },
}
OUTER = """
name: outer
steps:
  work: {kind: workflow, workflow: inner, on_error: clean, recover: false}
  clean: {kind: job, topic: clean, input: "${ error.code }"}
"""
INNER = """
name: inner
steps:
  slow: {kind: job, topic: slow}
"""


async def test_attempts_of_a_step_are_counted_and_share_one_idempotency_key(tmp_path: Path) -> None:
    app, seen = App("a"), []

    @app.job("pay")
    async def pay(payload: Any, *, ctx: Any) -> str:
        seen.append((ctx.attempt, ctx.idempotency_key, ctx.run, ctx.step))
        if ctx.attempt < 3 and ctx.run:
            raise ValueError("not yet")
        return "paid"

    settings = Settings(database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal")
    async with Plane(settings, {"scheduler", "worker", "engine"}, app=app) as plane:
        flows, service = plane.components.flows, plane.components.service
        await flows.define(ME, from_document(RETRIED))
        stored, _ = await flows.start(ME, "w", run_id="r")
        async with asyncio.timeout(60):
            while not stored.run.status.terminal:
                await asyncio.sleep(0.02)
                stored = await flows.run(ME, "r")
        assert stored.run.status is RunStatus.SUCCEEDED, stored.run.error
        assert seen == [(attempt, "r:pay[0]", "r", "pay[0]") for attempt in (1, 2, 3)]
        failed = await service.job(ME, "r:pay[0]@2")
        assert attempt_text(failed.id, failed.labels, failed.attempt, failed.max_attempts) == "2 of 4"
        assert failed.reason == "ValueError: not yet"
        seen.clear()
        job, _ = await service.submit(ME, Submission("pay", id="own"))
        async with asyncio.timeout(60):
            while not job.state.terminal:
                await asyncio.sleep(0.02)
                job = await service.job(ME, "own")
        assert seen == [(1, "own", None, None)]
        assert attempt_text(job.id, job.labels, job.attempt, job.max_attempts, "/") == "1/3"
        assert attempt_text("alone", {}, 7, 3) == "7"  # postponed at least four times


async def test_cancelling_a_sub_workflow_runs_the_handler_of_its_step(flow_stage: FlowStage) -> None:
    """The documented way to clean up after a cancellation or a time limit."""
    replica = await flow_stage.replica()
    await replica.define(INNER)
    await replica.define(OUTER)
    run = await replica.start("outer")
    await replica.appears(f"{run}:work@1:slow@1")
    await replica.components.flows.cancel(ASKER, f"{run}:work@1")
    assert (await replica.appears(f"{run}:clean@1")).payload == "run_cancelled"
    await replica.end(f"{run}:clean@1")
    over = await replica.becomes(run, RunStatus.FAILED)
    assert over.run.steps["clean"].status == "succeeded"
