"""Jobs that reach the scheduler from runs locked without the lease store are counted, and no others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.observe.metrics.samples import samples
from holdfast.plane.process.components import Components, open_components
from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.process.workflow_parts import engine_of
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Settings
from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.plane.workflows.core.run import CheckRun
from support.fixtures.redis import StartRedis

pytestmark = [pytest.mark.asyncio, pytest.mark.server]

ME = Caller("test")
STEPS = {"name": "two", "risk": "low", "steps": {each: {"kind": "job", "topic": "t"} for each in ("a", "b")}}


def counted(components: Components) -> object:
    """The value of the metric in this process."""
    found = {each.metric.name: each.value for each in samples(ProcessHealth(components.service).readings())}
    return found["holdfast_scheduler_input_fail_open_total"]


@pytest.mark.requires("R64", "R80")
async def test_jobs_of_a_run_that_fails_open_are_counted_as_unchecked_input(
    tmp_path: Path, own_redis: StartRedis
) -> None:
    server = own_redis()
    chosen = Settings(database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal", leases=server.url)
    async with asyncio.timeout(60), open_components(chosen, serving=True) as plane:
        engine = engine_of(plane)
        await plane.flows.define(ME, from_document(STEPS))
        await plane.flows.start(ME, "two", run_id="checked")
        await engine.move("checked", CheckRun())
        assert counted(plane) == 0
        server.kill()
        await plane.flows.start(ME, "two", run_id="unchecked")
        await engine.move("unchecked", CheckRun())
        assert counted(plane) == 2
        await engine.move("unchecked", CheckRun())  # a second look makes no more jobs
        assert counted(plane) == 2
