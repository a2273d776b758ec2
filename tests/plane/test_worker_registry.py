"""Heartbeats: what a worker says about itself, when, and what happens when nobody hears it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fixtures_databases import until
from fixtures_workers import Gate, WorkerStage
from holdfast.errors import Unavailable
from holdfast.plane import App
from holdfast.plane.schema import prepare
from holdfast.plane.sqlite_database import SqliteDatabase
from holdfast.plane.workers import Workers
from holdfast.runtime.system import SystemClock

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
