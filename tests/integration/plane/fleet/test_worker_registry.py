"""Heartbeats: their contents and times, and what happens when they cannot be stored."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import Unavailable
from holdfast.plane import App
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.runtime.system import SystemClock
from holdfast.types import MS
from support.fixtures.databases import until
from support.fixtures.scheduling import POOL, TOPIC, Replica, submitted
from support.fixtures.workers import Gate, WorkerStage

MOMENT_NS = 30 * MS

pytestmark = pytest.mark.asyncio


def sample() -> App:
    app = App("billing")
    app.job("a")(lambda payload: payload)
    return app


async def test_a_worker_announces_itself_before_long_and_again_and_again(work_stage: WorkerStage) -> None:
    worker = await work_stage.worker(sample(), heartbeat=0.01, concurrency=5)
    await until(lambda: len(work_stage.registry.heard) >= 5)
    heard = work_stage.registry.heard
    assert {(each.worker, each.pool, each.topics, each.capacity) for each in heard} == {
        (worker.name, "default", ("a",), 5)
    }
    assert [each.at_ns for each in heard] == sorted(each.at_ns for each in heard)
    assert all(each.pid and each.host for each in heard)
    assert not any(each.draining for each in heard)


async def test_a_heartbeat_says_how_much_is_being_done(work_stage: WorkerStage) -> None:
    app, gate = App("billing"), Gate()

    @app.job("slow")
    async def slow(payload: Any) -> None:
        await gate.passed()

    await work_stage.worker(app, heartbeat=0.01)
    job = await work_stage.send("slow")
    await until(lambda: work_stage.registry.heard and work_stage.registry.heard[-1].active == 1)
    gate.go.set()
    await work_stage.end(job)
    await until(lambda: work_stage.registry.heard[-1].active == 0)


async def test_a_worker_whose_registry_is_away_works_on_and_is_heard_again(work_stage: WorkerStage) -> None:
    work_stage.registry.trouble = Unavailable("no database")
    worker = await work_stage.worker(sample(), heartbeat=0.01)
    await until(lambda: worker.statistics().beats_failed >= 2)
    assert (await work_stage.result(await work_stage.send("a", 1))).body["result"] == 1
    work_stage.registry.trouble = None
    await until(lambda: work_stage.registry.heard)


async def test_draining_is_told_at_once_and_leaving_at_the_end(work_stage: WorkerStage) -> None:
    app, gate = App("billing"), Gate()

    @app.job("slow")
    async def slow(payload: Any) -> None:
        await gate.passed()

    worker = await work_stage.worker(app, heartbeat=3600)
    await work_stage.send("slow")
    await asyncio.wait_for(gate.come.wait(), 60)
    draining = asyncio.create_task(worker.drain(60))
    await until(lambda: work_stage.registry.heard[-1].draining)
    assert work_stage.registry.left == []
    gate.go.set()
    assert (await draining).finished
    assert work_stage.registry.left == [worker.name]


async def test_a_place_is_not_announced_while_a_function_that_does_not_stop_has_it(work_stage: WorkerStage) -> None:
    """Stored immediately, in both directions: the next heartbeat is an hour away."""
    app, over = App("billing"), threading.Event()

    @app.job("deaf")
    def deaf(payload: Any) -> None:
        over.wait(60)

    await work_stage.worker(app, heartbeat=3600, concurrency=2, cancel_grace=0.02)
    for _ in range(2):
        await work_stage.result(await work_stage.send("deaf", timeout_ns=MOMENT_NS))
    await until(lambda: work_stage.registry.heard[-1].capacity == 0)
    assert work_stage.registry.heard[-1].active == 0, "nothing is expected of it any more"
    assert work_stage.registry.heard[-1].topics == ("deaf",), "its topic stays known"
    over.set()
    await until(lambda: work_stage.registry.heard[-1].capacity == 2)


async def test_jobs_wait_while_all_places_are_blocked_and_go_on_when_one_is_free(plane: Replica) -> None:
    """Longer than the limit of an unknown topic: this one is known, and its jobs stay queued."""
    await plane.beat("w1", 0)
    view = await plane.workers.view(fresh=True)
    assert (view.pool(POOL).workers_for(TOPIC), view.known_topics) == (0, frozenset({TOPIC}))
    job = await plane.submit()
    async with plane.scheduler.serving():
        await plane.heard()
        plane.clock.push(31)
        await plane.beat("w1", 0)
        await plane.scheduler.on_submit(submitted(job))
        assert (await plane.job(job)).state is JobState.PENDING
        await plane.beat("w1", 1)
        await plane.in_state(job, JobState.DISPATCHED)


async def test_a_topic_is_not_given_to_colleagues_of_the_only_worker_that_knows_it(plane: Replica) -> None:
    await plane.beat("w1", 0)
    await plane.beat("w2", 4, "mail")
    job = await plane.submit()
    await plane.scheduler.on_submit(submitted(job))
    assert (await plane.job(job)).state is JobState.PENDING
    assert await plane.staged(subjects.WORK) == []


async def test_the_registry_of_the_plane_knows_a_worker_while_it_runs(work_stage: WorkerStage, tmp_path: Path) -> None:
    database = SqliteDatabase(str(tmp_path / "state.db"), synchronous="normal")
    await prepare(database)
    registry = Workers(database, SystemClock())
    worker = await work_stage.worker(sample(), registry=registry, concurrency=3)
    await until(lambda: worker.statistics().beats)
    assert [(each.worker, each.capacity) for each in await registry.live("default")] == [(worker.name, 3)]
    assert (await registry.view(fresh=True)).pool("default").workers_for("a") == 1
    await worker.drain(0)
    assert await registry.live("default") == []
    await database.close()
