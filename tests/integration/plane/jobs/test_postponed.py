"""`RetryLater` postpones a job by exactly its delay and consumes no attempt, in a workflow step too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast import RetryLater
from holdfast.plane import App
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.process.plane import Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Settings
from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.plane.workflows.core.run import RunStatus
from support.fixtures.fleet import ON_SERVERS, skip_without_servers
from support.servers.nats import NatsExecutable, NatsServer, nats_executables, own_stream
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables

pytestmark = pytest.mark.asyncio

ME = Caller("test")
DELAY = 0.7
FLOW = {"name": "w", "steps": {"poll": {"kind": "job", "topic": "poll", "input": 4}}}


@pytest_asyncio.fixture(params=["embedded", ON_SERVERS])
async def settings(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
    nats_servers: Callable[[NatsExecutable], NatsServer],
) -> AsyncIterator[Settings]:
    """Everything in one file; and Postgres, NATS and Redis."""
    if request.param == "embedded":
        yield Settings(database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal")
        return
    skip_without_servers(request.param)
    leases: str = request.getfixturevalue("_fleet_leases")
    with _postgres_servers(postgres_executables()[-1]).database() as database:
        yield Settings(database=database, bus=own_stream(nats_servers(nats_executables()[-1])), leases=leases)


def polling(*, fails: int = 0) -> tuple[App, list[int], list[float]]:
    """An app whose job postpones itself as often as its payload demands, and fails after that so often.

    Also the attempts that it saw, and when each began.
    """
    app = App("polling")
    attempts: list[int] = []
    begun: list[float] = []

    @app.job("poll")
    async def poll(payload: int, *, ctx: Any) -> str:
        begun.append(time.monotonic())
        attempts.append(ctx.attempt)
        if len(attempts) <= payload:
            raise RetryLater(DELAY if len(attempts) == 1 else 0.0)
        if len(attempts) <= payload + fails:
            raise ValueError("not yet")
        return "ready"

    return app, attempts, begun


async def finished(plane: Plane, job_id: str) -> Any:
    async with asyncio.timeout(60):
        while True:
            job = await plane.components.service.job(ME, job_id)
            if job.state.terminal:
                return job
            await asyncio.sleep(0.02)


async def test_a_job_that_postpones_itself_consumes_no_attempt(settings: Settings) -> None:
    app, attempts, begun = polling()
    async with Plane(settings, {"scheduler", "worker"}, app=app) as plane:
        job, _ = await plane.components.service.submit(ME, Submission("poll", 4, max_attempts=1))
        over = await finished(plane, job.id)
        assert (over.state, over.result) == (JobState.SUCCEEDED, "ready"), over.reason
        assert attempts == [1, 2, 3, 4, 5]
        events = await plane.components.service.events(ME, job.id)
        assert begun[1] - begun[0] >= DELAY
        reasons = [each.reason for each in events if each.after is JobState.RETRYING]
        assert len(reasons) == 4
        assert all((each or "").startswith("postponed: RetryLater") for each in reasons)


async def test_errors_still_count_after_postponements(settings: Settings) -> None:
    app, attempts, _ = polling(fails=9)
    async with Plane(settings, {"scheduler", "worker"}, app=app) as plane:
        job, _ = await plane.components.service.submit(ME, Submission("poll", 3, max_attempts=2))
        over = await finished(plane, job.id)
    assert (over.state, over.code) == (JobState.FAILED, "max_attempts")
    assert over.reason == "attempt 2 of 2: ValueError: not yet"
    assert attempts == [1, 2, 3, 4, 5]


async def test_a_step_that_postpones_itself_waits_exactly_that_long_and_needs_no_retry(settings: Settings) -> None:
    app, attempts, begun = polling()
    async with Plane(settings, {"scheduler", "worker", "engine"}, app=app) as plane:
        flows = plane.components.flows
        await flows.define(ME, from_document(FLOW))
        stored, _ = await flows.start(ME, "w", run_id="r")
        async with asyncio.timeout(60):
            while not stored.run.status.terminal:
                await asyncio.sleep(0.02)
                stored = await flows.run(ME, "r")
        assert (stored.run.status, stored.run.output) == (RunStatus.SUCCEEDED, {"poll": "ready"}), stored.run.error
        assert begun[1] - begun[0] >= DELAY
        assert len(attempts) == 5
