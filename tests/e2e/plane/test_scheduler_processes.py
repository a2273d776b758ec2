"""A scheduler process that is killed or stopped while it handles a message: another has the job, and it ends once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.plane.app import App
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.process.components import open_components
from holdfast.plane.process.plane import Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.consistency import takeovers
from holdfast.plane.settings.sources import load
from support.faults.freeze import freeze
from support.fixtures.databases import until
from support.fixtures.scheduling import read_history

ROOT = Path(__file__).resolve().parents[3]
CHILD = ROOT / "tests/support/fleet/scheduler_child.py"
ME = Caller("test")
SETTINGS = """
database = "sqlite:///{folder}/plane.db?synchronous=normal"
leases = "sqlite:///{folder}/leases.db"

[scheduler]
job_ttl = 5

[worker]
count = 1
lease_ttl = 5

[reconciler]
interval = 10

[replayer]
interval = 10
"""


def doubling() -> App:
    app = App("doubling")

    @app.job("double")
    async def double(payload: int) -> int:
        return 2 * payload

    return app


@pytest.mark.asyncio
@pytest.mark.requires("R121", "R123")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_scheduler_that_ends_in_a_handler_costs_the_time_of_its_lock_at_most_and_nothing_else(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The lock of a process that is gone from this host is free immediately, that of a stopped one after its TTL."""
    (tmp_path / "holdfast.toml").write_text(SETTINGS.format(folder=tmp_path))
    settings = load(tmp_path / "holdfast.toml", environment={})
    assert takeovers(settings)[0].seconds == 5.5
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    child = subprocess.Popen([sys.executable, CHILD, tmp_path], env=environment)  # noqa: ASYNC220 - it is only begun here
    try:
        await until((tmp_path / "ready").exists)
        async with open_components(settings) as components:
            job, _ = await components.service.submit(ME, Submission("double", 21))
            await until((tmp_path / "inside").exists)
            seen = await components.locks.inspect(SCHEDULER_JOB.key(job=job.id))
            assert seen.held, "it has the lock in its hands"
            if number is signal.SIGSTOP:
                freeze(child.pid, settings.database_url, settings.lease_url)
            else:
                child.send_signal(number)
            async with Plane(settings, {"scheduler", "worker"}, app=doubling()):
                found = job
                async with asyncio.timeout(60):
                    while not found.state.terminal:
                        await asyncio.sleep(0.02)
                        found = await components.service.job(ME, job.id)
            assert (found.state, found.result) == (JobState.SUCCEEDED, 42)
            events = await components.service.events(ME, job.id)
            assert read_history(events) == []
            assert all(event.fence is None or event.fence > (seen.fence or 0) for event in events)
    finally:
        child.kill()
        child.wait()
