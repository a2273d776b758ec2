"""Runbooks about jobs, runs, loops and tenants, on real planes with really induced trouble."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast.ops.runbooks.evidence.plane import JobFact, SnapshotFact
from holdfast.ops.runbooks.model import FindingSeverity
from holdfast.plane.db.ports import Tx
from holdfast.plane.locks.registry import (
    RECONCILER,
    REPLAYER,
    SCHEDULER_JOB,
    SNAPSHOT_WRITER,
    WORKFLOW_DELAYS,
    WORKFLOW_RECONCILER,
    WORKFLOW_RUN,
    LockFamily,
)
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.worker_snapshot import Snapshots, SnapshotWriter
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job
from holdfast.plane.process.components import Components, open_components
from holdfast.plane.settings.sections import EngineSettings
from holdfast.plane.settings.settings import SchedulerSettings, Settings
from holdfast.plane.workflows.core.definition_codec import from_document
from support.fixtures.scheduling import Planes, Replica, finished, holds, run_of, started, submitted
from support.fixtures.workflows import ASKER
from support.ops.runbook_harness import found, reported

pytestmark = pytest.mark.asyncio


def settings_of(planes: Planes, **more: Any) -> Settings:
    return Settings(database=planes.url, leases=planes.locks_url, **more)


@asynccontextmanager
async def led(plane: Replica | Components, *families: LockFamily) -> AsyncIterator[None]:
    """Loops that have a leader."""
    async with AsyncExitStack() as stack:
        for family in families:
            await stack.enter_async_context(family.lock(plane.locks))
        yield


async def done(plane: Replica) -> Job:
    """A job that was dispatched, run and ended, once each."""
    await plane.beat()
    job = await plane.submit(tenant="acme")
    await plane.scheduler.on_submit(submitted(job))
    run = run_of(job)
    await plane.scheduler.on_started(started(job, 1, run))
    await plane.scheduler.on_result(finished(job, 1, run))
    return await plane.job(job)


@pytest.mark.requires("R59", "R128", "R129", "R131")
async def test_a_job_that_ended_once_is_distinguished_from_one_that_ended_twice(planes: Planes) -> None:
    plane = await planes.open()
    job = await done(plane)
    assert job.state is JobState.SUCCEEDED
    place = settings_of(planes)
    async with led(plane, RECONCILER, REPLAYER):
        report = await reported("duplicate-dispatch", place, clock=plane.clock, JOB=job.id)
        assert report.severity is FindingSeverity.FINE, report.findings
        fact = next(each.fact for each in report.evidence if each.what == "job")
        assert isinstance(fact, JobFact)
        assert [each.partition(",")[0] for each in fact.events][-1] == "RUNNING -> SUCCEEDED"

        async def doctor(tx: Tx) -> None:
            values = {"job": job.id, "version": job.version + 1, "at": job.updated_ns + 1, "fence": 1}
            await tx.query(
                "INSERT INTO plane_event (job, version, step, at_ns, before, after, attempt, fence, actor) "
                "VALUES (:job, :version, 0, :at, 'SUCCEEDED', 'FAILED', 1, :fence, 'psql')",
                values,
            )

        await plane.database.write(doctor)
        report = await reported("duplicate-dispatch", place, clock=plane.clock, JOB=job.id)
    wrong = found(report, "wrong history")
    assert "it ended 2 times" in wrong.sentence
    assert "fence 1 wrote after fence" in wrong.sentence
    assert report.severity is FindingSeverity.ACT


async def test_a_missing_job_and_loops_without_a_leader_are_reported(sqlite_planes: Planes) -> None:
    plane = await sqlite_planes.open()
    await plane.locks.ping()
    report = await reported("duplicate-dispatch", settings_of(sqlite_planes), JOB="gone")
    missing = next(each for each in report.evidence if each.what == "job")
    assert missing.problem is not None
    assert missing.problem.startswith("job 'gone' does not exist in that database")
    assert RECONCILER.key() in found(report, "no leader").sentence


@pytest.mark.requires("R61")
async def test_a_snapshot_whose_leader_is_dead_is_told_from_a_fresh_one(planes: Planes) -> None:
    plane, place = await planes.open(), settings_of(planes)
    writer = SnapshotWriter(plane.workers, Snapshots(plane.database, plane.clock), plane.locks, plane.clock)
    await plane.beat()
    await plane.locks.ping()
    assert "ever written" in found(await reported("snapshot-leader", place), "never written").sentence
    async with SNAPSHOT_WRITER.lock(plane.locks) as lease:
        await writer.tick(Tick(lease))
        report = await reported("snapshot-leader", place, clock=plane.clock)
        assert report.severity is FindingSeverity.FINE, report.findings
        fact = next(each.fact for each in report.evidence if each.what == "snapshot")
        assert isinstance(fact, SnapshotFact)
        assert (fact.writer, fact.fence, fact.workers) == (lease.owner, lease.fence, 1)
        plane.clock.push(12)
        assert (
            found(await reported("snapshot-leader", place, clock=plane.clock), "takeover").severity
            is FindingSeverity.WATCH
        )
        plane.clock.push(60)
        silent = await reported("snapshot-leader", place, clock=plane.clock)
        assert f"{lease.owner} holds {SNAPSHOT_WRITER.key()}" in found(silent, "silent leader").sentence
    dead = await reported("snapshot-leader", place, clock=plane.clock)
    assert "No process leads" in found(dead, "no leader").sentence
    assert dead.next[0].command == "holdfast up --only snapshot"


@pytest.mark.requires("R40")
async def test_many_tenants_against_one_limit_are_told_apart(planes: Planes) -> None:
    plane = await planes.open(slots=2)
    await plane.beat(capacity=50)
    place = settings_of(planes, scheduler=SchedulerSettings(tenant_slots=2))
    tenants = {"acme": 24, "globex": 3, "initech": 1}
    async with led(plane, RECONCILER, REPLAYER), plane.scheduler.serving():
        for tenant, jobs in tenants.items():
            for _ in range(jobs):
                await plane.submit(tenant=tenant)
        await plane.reach(5, JobState.DISPATCHED)
        await plane.heard()
        report = await reported("lock-debt", place, clock=plane.clock)
    full = found(report, "tenant at its limit")
    assert "Tenant acme has 22 queued jobs and all of its 2 slots in use" in full.sentence
    assert "globex" not in full.sentence
    assert "tenants/acme/limits" in full.next[0].command
    plane.clock.push(60)
    gone = await reported("lock-debt", place, clock=plane.clock)
    assert "Pool default has 23 queued jobs and no live worker" in found(gone, "no workers").sentence


FLOW = {"name": "flow", "steps": {"wait": {"kind": "approval"}}}


@pytest_asyncio.fixture
async def runs_place(tmp_path: Path) -> AsyncIterator[tuple[Components, Settings]]:
    place = Settings(
        database=f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal",
        leases=f"sqlite:///{tmp_path / 'leases.db'}",
        engine=EngineSettings(run_ttl=1.0),
    )
    async with open_components(place) as components:
        await components.flows.define(ASKER, from_document(FLOW))
        yield components, place


@pytest.mark.requires("R60")
async def test_a_holder_that_is_stuck_in_a_run_is_told_from_one_that_has_just_begun(
    runs_place: tuple[Components, Settings],
) -> None:
    components, place = runs_place
    stored, _ = await components.flows.start(ASKER, "flow", run_id="r-1")
    assert stored.run.id == "r-1"
    async with led(components, WORKFLOW_RECONCILER, WORKFLOW_DELAYS):
        calm = await reported("workflow-contention", place, RUN="r-1")
        assert calm.severity is FindingSeverity.FINE, calm.findings
        lock = WORKFLOW_RUN.timed(1.0, 0.3).lock(components.locks, run="r-1")
        async with open_components(place) as other, lock as lease:
            waiting = asyncio.create_task(WORKFLOW_RUN.lock(other.locks, run="r-1").acquire(timeout=30))

            async def old() -> bool:
                look = await components.locks.inspect(lease.key)
                assert look.since is not None
                return look.waiters >= 1 and components.clock.now().wall / 1e9 - look.since.timestamp() > 1.0

            await holds(old)
            report = await reported("workflow-contention", place, RUN="r-1")
            searched = await reported("workflow-contention", place)
            waiting.cancel()
            await asyncio.wait([waiting])
    stuck = found(report, "stuck holder")
    assert f"{lease.owner} has held the lock of run r-1" in stuck.sentence
    assert "and 1 waits" in stuck.sentence
    assert any(step.command.startswith("holdfast release holdfast:wf:run:lock:r-1 --reason") for step in stuck.next)
    assert all("--url" in step.command for step in stuck.next)
    (suspect,) = searched.suspects
    assert suspect.id == "r-1"
    assert suspect.why.startswith(f"its lock is held by {lease.owner} for ")
    assert [each.command for each in suspect.findings[0].next] == [each.command for each in stuck.next]


async def test_a_holder_with_an_older_fence_than_the_job_is_named(sqlite_planes: Planes) -> None:
    plane = await sqlite_planes.open()
    job = await done(plane)

    async def raised(tx: Tx) -> None:
        await tx.query("UPDATE plane_job SET holdfast_fence = holdfast_fence * 2 WHERE id = :id", {"id": job.id})

    await plane.database.write(raised)
    async with led(plane, RECONCILER, REPLAYER), SCHEDULER_JOB.lock(plane.locks, job=job.id):
        report = await reported("duplicate-dispatch", settings_of(sqlite_planes), JOB=job.id)
    assert "the store has lost a newer grant" in found(report, "stale holder").sentence


async def test_a_database_without_a_plane_is_said_and_left_as_it_is(tmp_path: Path) -> None:
    empty = tmp_path / "other.db"
    empty.touch()
    report = await reported("lock-debt", Settings(database=f"sqlite:///{empty}"))
    assert report.severity is FindingSeverity.UNKNOWN
    assert "there is no plane in that database" in str(report.as_dict())
    assert empty.stat().st_size == 0 or b"plane_" not in empty.read_bytes()
