"""Runs of an attempt that were never heard of again: what counts as one, what does not, and when it is enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast.errors import Unavailable
from holdfast.plane import App
from holdfast.plane.bus.delivery_rules import LOST_MAX
from holdfast.plane.locks import registry as families
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job, Submission
from holdfast.plane.process.parts import worker_of
from holdfast.plane.process.plane import Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import SchedulerSettings, Settings, WorkerSettings
from holdfast.plane.worker.staleness import Attempts, Staleness
from support.fixtures.databases import until
from support.fixtures.fleet import ON_SERVERS, skip_without_servers
from support.fixtures.workers import Gate, WorkerStage
from support.servers.nats import NatsExecutable, NatsServer, nats_executables, own_stream
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables

pytestmark = pytest.mark.asyncio

ME = Caller("test")
TIMES: dict[str, Any] = {
    "scheduler": SchedulerSettings(busy_delay=0.02),
    "worker": WorkerSettings(count=1, cancel_grace=1.0),
}


@pytest_asyncio.fixture(params=["embedded", ON_SERVERS])
async def settings(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
    nats_servers: Callable[[NatsExecutable], NatsServer],
) -> AsyncIterator[Settings]:
    """Everything in one file; and Postgres, NATS and Redis."""
    if request.param == "embedded":
        yield Settings(database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal", **TIMES)
        return
    skip_without_servers(request.param)
    leases: str = request.getfixturevalue("_fleet_leases")
    with _postgres_servers(postgres_executables()[-1]).database() as database:
        bus = own_stream(nats_servers(nats_executables()[-1]))
        yield Settings(database=database, bus=bus, leases=leases, **TIMES)


async def came(plane: Plane, job: Job, *states: JobState) -> Job:
    """The job, once it is in one of the states."""
    async with asyncio.timeout(60):
        while job.state not in states:
            await asyncio.sleep(0.01)
            job = await plane.components.service.job(ME, job.id)
    return job


async def heard(plane: Plane, job: Job, runs: int) -> None:
    """Return when the scheduler has heard of so many starts."""
    found = 0
    async with asyncio.timeout(60):
        while found < runs:
            await asyncio.sleep(0.01)
            events = await plane.components.service.events(ME, job.id)
            found = sum(each.after is JobState.RUNNING for each in events)
    assert found == runs


async def looked(plane: Plane, job: Job) -> Staleness:
    """What a worker that came to the job now would be told."""
    return await Attempts(plane.components.database).check((job.id, job.created_ns, 1), 1 << 62, 0)


def waiting(topic: str = "wait") -> tuple[App, Gate]:
    app, gate = App("patience"), Gate()

    @app.job(topic)
    async def wait(payload: Any) -> str:
        await gate.passed()
        return "after all"

    return app, gate


async def test_a_run_that_a_leaving_worker_gives_back_is_not_lost_however_often_they_leave(settings: Settings) -> None:
    async with Plane(settings, {"scheduler"}) as plane:
        app, gate = waiting()
        job, _ = await plane.components.service.submit(ME, Submission("wait", id="j"))
        for runs in range(1, LOST_MAX + 3):
            async with Plane(settings, {"worker"}, app=app) as leaving:
                await asyncio.wait_for(gate.come.wait(), 60)
                await heard(plane, job, runs)
                assert not await leaving.stop(0.0), "it was in the middle of something"
            gate.come.clear()
        assert (await looked(plane, job)).lost == 0
        gate.go.set()
        async with Plane(settings, {"worker"}, app=app):
            ended = await came(plane, job, JobState.SUCCEEDED, JobState.FAILED)
        assert (ended.state, ended.result) == (JobState.SUCCEEDED, "after all")


async def test_a_run_whose_lease_was_lost_is_given_back_and_not_lost(settings: Settings) -> None:
    """As when Redis was away for longer than the lease lasts: the worker lives, and says that it has stopped."""
    async with Plane(settings, {"scheduler"}) as plane:
        app, gate = waiting()
        async with Plane(settings, {"worker"}, app=app) as worker:
            job, _ = await plane.components.service.submit(ME, Submission("wait", id="j"))
            await asyncio.wait_for(gate.come.wait(), 60)
            await heard(plane, job, 1)
            assert (await looked(plane, job)).lost == 1, "it runs, and nothing else was heard of it yet"
            gate.come.clear()
            key = families.WORKER_JOB.key(job=job.id)
            assert await worker.components.locks.force_release(key, reason="a test")
            await heard(plane, job, 2)
            assert (await looked(plane, job)).lost == 1, "the one that runs now"
            gate.go.set()
            assert (await came(plane, job, JobState.SUCCEEDED)).result == "after all"


async def test_deliveries_that_found_the_job_busy_are_not_lost_however_many(settings: Settings) -> None:
    app = App("patience")
    app.job("wait")(lambda payload: "after all")
    async with Plane(settings, {"scheduler"}) as plane, worker_of(plane.components, app) as worker:
        async with plane.components.locks.lock(families.WORKER_JOB.key(job="j"), ttl=30):
            job, _ = await plane.components.service.submit(ME, Submission("wait", id="j"))
            await until(lambda: worker.statistics().busy > 3 * LOST_MAX)
            assert (await looked(plane, job)).lost == 0
        assert (await came(plane, job, JobState.SUCCEEDED)).result == "after all"
        assert not (await plane.components.service.dead_letters(ME)).items


class Told:
    """A database that returns how many runs of every attempt were lost, and records returned ones."""

    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.back: list[tuple[str, int, int]] = []
        self.trouble: Exception | None = None

    async def check(self, name: tuple[str, int, int], fence: int, now_ns: int, sent: int | None = None) -> Staleness:
        return Staleness(wanted=True, lost=self.lost)

    async def returned(self, name: tuple[str, int, int], now_ns: int) -> None:
        self.back.append(name)
        if self.trouble is None:
            await asyncio.Event().wait()
        else:
            raise self.trouble


@pytest.mark.parametrize(("lost", "runs"), [(LOST_MAX - 1, 1), (LOST_MAX, 0)])
async def test_an_attempt_that_so_many_workers_did_not_survive_is_not_begun_once_more(
    work_stage: WorkerStage, lost: int, runs: int
) -> None:
    app, made = App("billing"), list[Any]()
    app.job("charge")(made.append)
    worker = await work_stage.worker(app, currency=Told(lost))
    job = await work_stage.send("charge", at_ns=1)  # it is late, and therefore looked up
    result = await work_stage.result(job)
    assert await work_stage.end(job) is None
    assert len(made) == runs
    if not runs:
        reason = f"{LOST_MAX} consumers took it and were not heard of again"
        assert (result.body["status"], result.body["error"], result.body["code"]) == ("failed", reason, "lost")
        assert (result.body["retryable"], work_stage.said(subjects.STARTED, job)) == (False, [])
        assert worker.statistics().failed == 1


@pytest.mark.parametrize(("lost", "runs"), [(2 * LOST_MAX - 1, 1), (2 * LOST_MAX, 0)])
async def test_what_workers_only_had_in_hand_when_they_died_is_run_all_the_same(
    one_file_stage: WorkerStage, lost: int, runs: int
) -> None:
    """It was taken together with one that kills. But not forever: it may be what kills, before it is even begun."""
    app, made = App("billing"), list[Any]()
    app.job("charge")(made.append)
    job = await one_file_stage.send("charge")
    database = one_file_stage.bus.inner._database  # type: ignore[attr-defined] # of the embedded bus
    await database.write(lambda tx: tx.query("UPDATE plane_message SET deliveries = :number", {"number": lost}))
    await one_file_stage.worker(app)
    await until(lambda: one_file_stage.said(subjects.RESULT, job) or one_file_stage.dead)
    assert (len(made), [code for _, _, code in one_file_stage.dead]) == (runs, [] if runs else ["lost"])


async def test_a_message_that_was_delivered_before_says_its_start_also_where_its_topic_is_brief(
    work_stage: WorkerStage,
) -> None:
    """A run that kills its worker immediately can only be counted if its start was reported."""
    app = App("billing")
    app.job("charge")(lambda payload: payload)
    worker = await work_stage.worker(app, delays=families.RETRY_DELAYS.without_jitter(1_000_000))
    worker._worker_pools[0]._shared.brief.add("charge")
    async with work_stage.locks.lock(families.WORKER_JOB.key(job="j"), ttl=30):
        await work_stage.send("charge", job="j")
        await work_stage.end("j")
    await work_stage.result("j")
    assert len(work_stage.said(subjects.STARTED, "j")) == 1


@pytest.mark.parametrize("trouble", [Unavailable("the database is away"), None])
async def test_a_run_that_cannot_be_excused_is_given_back_all_the_same(
    work_stage: WorkerStage,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Exception | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, gate = waiting()
    told = Told(0)
    told.trouble = trouble  # None: it does not answer
    monkeypatch.setattr("holdfast.plane.worker.staleness.REPORT_LIMIT_S", 0.01)
    worker = await work_stage.worker(app, currency=told)
    job = await work_stage.send("wait")
    await asyncio.wait_for(gate.come.wait(), 60)
    await worker.drain(0)
    assert told.back == [(job, 1, 1)]
    (line,) = [each for each in caplog.messages if "could not be reported" in each]
    assert ("the database is away" if trouble else "no answer within 0.01 s") in line
    assert await work_stage.bus.pending("work.default.wait", "workers") == 1
