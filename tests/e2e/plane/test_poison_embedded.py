"""A job that kills every worker that runs it, on one SQLite file: it fails as soon as that was tried often enough."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.plane.bus.delivery_rules import LOST_MAX
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.process.plane import Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.sources import load
from support.fleet.worker_fleet import Places, WorkerProcess

pytestmark = pytest.mark.asyncio

ME = Caller("test")
SETTINGS = """
database = "sqlite:///{folder}/plane.db?synchronous=normal"

[worker]
count = 1
lease_ttl = 1.5
heartbeat = 0.3
"""


@pytest.mark.timeout(300)
async def test_a_job_that_kills_its_workers_ends_as_a_dead_letter_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(SETTINGS.format(folder=tmp_path))
    settings = load(tmp_path / "holdfast.toml", environment={})
    places, workers = Places(settings.database_url, settings.lease_url), list[WorkerProcess]()
    async with Plane(settings, {"scheduler"}) as plane:
        service = plane.components.service
        job, _ = await service.submit(ME, Submission("kills", str(tmp_path)))
        try:
            async with asyncio.timeout(240):
                while not job.state.terminal and len(workers) < 2 * LOST_MAX:
                    if not workers or workers[-1].popen.poll() is not None:  # as a supervisor does
                        options = "--config", str(tmp_path / "holdfast.toml")
                        workers.append(WorkerProcess(places, tmp_path, f"w{len(workers)}", *options))
                    await asyncio.sleep(0.02)
                    job = await service.job(ME, job.id)
        finally:
            for worker in workers:
                await asyncio.to_thread(worker.end)
        assert (job.state, job.code) == (JobState.FAILED, "lost")
        # More than ten only if the scheduler had not heard of the last ones when the next one asked.
        runs = sum(worker.began_before(job.id) for worker in workers)
        assert LOST_MAX <= runs < 2 * LOST_MAX
        assert job.reason == f"{runs} consumers took it and were not heard of again"
        assert [each.code for each in (await service.dead_letters(ME)).items] == ["lost"]
