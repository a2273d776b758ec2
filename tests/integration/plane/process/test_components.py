"""A plane put together: its parts in one process or several, started and stopped in order, well or not."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from holdfast.core.metric_reading import Reading
from holdfast.errors import BadInput, RowMissing, Unavailable
from holdfast.plane.app import App
from holdfast.plane.approvals.service import GATE_TOPIC
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Heartbeat, Job, Submission
from holdfast.plane.process import sample
from holdfast.plane.process.components import Components, open_components
from holdfast.plane.process.parts import State
from holdfast.plane.process.plane import PARTS, Plane, check_parts
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import (
    CleanupSettings,
    LimitSettings,
    ReconcilerSettings,
    ReplayerSettings,
    Settings,
    SnapshotSettings,
    WorkerSettings,
)
from holdfast.plane.worker.context import Context
from support.fixtures.databases import until
from support.fixtures.workers import Gate

ME = Caller("test")
OWN = tuple(part for part in PARTS if part != "api")
LOOPS = ("snapshot", "reconciler", "replayer", "cleanup")


def quick(tmp_path: Path, **changes: Any) -> Settings:
    """Settings of one file, with loops that come round quickly."""
    settings = Settings(
        database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal",
        worker=WorkerSettings(count=1, heartbeat=0.2, cancel_grace=1.0),
        reconciler=ReconcilerSettings(interval=0.2),
        replayer=ReplayerSettings(interval=0.2),
        snapshot=SnapshotSettings(interval=0.2),
        cleanup=CleanupSettings(interval=1.0),
        limits=LimitSettings(replay=1.0),
    )
    return replace(settings, **changes)


def calm(tmp_path: Path) -> Settings:
    """The same with loops whose leases outlive every pause of a busy machine. Each loop ticks when it begins."""
    return quick(
        tmp_path,
        reconciler=ReconcilerSettings(interval=5.0),
        replayer=ReplayerSettings(interval=5.0),
        snapshot=SnapshotSettings(interval=5.0),
    )


def doubling(gate: Gate | None = None) -> App:
    app = App("doubling")

    @app.job("double")
    async def double(payload: int, *, ctx: Context) -> int:
        if gate is not None:
            await gate.passed()
        return 2 * payload

    return app


async def submitted(components: Components, payload: int = 21, **fields: Any) -> Job:
    job, _ = await components.service.submit(ME, Submission("double", payload, **fields))
    return job


async def over(components: Components, job: Job) -> Job:
    """The job, once it has ended."""
    found = job
    async with asyncio.timeout(60):
        while not found.state.terminal:
            await asyncio.sleep(0.01)
            found = await components.service.job(ME, job.id)
    return found


async def ready(components: Components) -> None:
    """Wait until a worker is known."""
    async with asyncio.timeout(60):
        while not await components.workers.live():  # noqa: ASYNC110 - it stands in a database
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_whole_plane_runs_on_one_file(tmp_path: Path) -> None:
    async with Plane(calm(tmp_path), OWN, app=doubling()) as plane:
        done = await over(plane.components, await submitted(plane.components))
        assert (done.state, done.result, done.attempt) == (JobState.SUCCEEDED, 42, 1)
        assert [each.part for each in plane.health()] == list(OWN)
        assert all(each.well for each in plane.health())
        await until(lambda: all(_detail(plane, loop)["leader"] for loop in LOOPS))
        held = {each.key for each in await plane.components.locks.list("holdfast:")}
        assert {"holdfast:reconciler:default", "holdfast:replayer:pending"} <= held
        await until(lambda: _detail(plane, "snapshot")["ticks"] > 0)
        assert (await plane.components.service.snapshot()).fence is not None
    assert _files(tmp_path) == {"plane.db"}


def _files(directory: Path) -> set[str]:
    return {path.name.removesuffix("-wal").removesuffix("-shm") for path in directory.iterdir()}


def _detail(plane: Plane, part: str) -> Mapping[str, Any]:
    return next(each.detail for each in plane.health() if each.part == part)


@pytest.mark.asyncio
async def test_each_part_runs_alone_beside_the_others(tmp_path: Path) -> None:
    settings = calm(tmp_path)
    planes = [Plane(settings, {part}, app=doubling() if part == "worker" else None) for part in OWN]
    async with open_components(settings) as components:
        for plane in planes:
            await plane.start()
            assert [each.state for each in plane.health()] == [State.RUNNING]
        await ready(components)
        assert (await over(components, await submitted(components))).state is JobState.SUCCEEDED
        for plane in planes:
            assert await plane.stop()
            assert [each.state for each in plane.health()] == [State.STOPPED]
        assert await components.locks.list("holdfast:") == []


@pytest.mark.asyncio
@pytest.mark.requires("R46")
@pytest.mark.parametrize("lead", ["sticky", "rotating"])
async def test_of_two_replicas_one_leads_and_the_other_takes_over(tmp_path: Path, lead: str) -> None:
    settings = quick(tmp_path, reconciler=ReconcilerSettings(0.2, lead))
    async with Plane(settings, {"reconciler"}) as first:
        await until(lambda: _detail(first, "reconciler")["ticks"] > 0)
        async with Plane(settings, {"reconciler"}) as second:
            if lead == "sticky":
                await until(lambda: _detail(second, "reconciler")["skipped_busy"] > 0)
                assert _detail(second, "reconciler")["ticks"] == 0
            await first.stop()
            await until(lambda: _detail(second, "reconciler")["ticks"] > 0)


@pytest.mark.asyncio
async def test_stopping_lets_what_runs_finish_and_releases_every_lease(tmp_path: Path) -> None:
    gate = Gate()
    settings = calm(tmp_path)
    plane = Plane(settings, OWN, app=doubling(gate))
    await plane.start()
    job = await submitted(plane.components)
    await gate.come.wait()
    stopping = asyncio.create_task(plane.stop())
    await until(lambda: plane.health()[-1].state is State.STOPPING)
    assert not stopping.done()
    gate.go.set()
    assert await stopping
    assert {each.state for each in plane.health()} == {State.STOPPED}
    async with open_components(settings) as components:
        assert await components.locks.list("holdfast:") == []
        async with Plane(settings, {"scheduler"}):  # the result was published; the next scheduler handles it
            assert (await over(components, job)).result == 42


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["grace", "hurry"])
async def test_what_does_not_finish_in_time_is_given_back_and_run_by_the_next(tmp_path: Path, how: str) -> None:
    gate = Gate()
    settings = quick(tmp_path)
    plane = Plane(settings, OWN, app=doubling(gate))
    await plane.start()
    job = await submitted(plane.components)
    await gate.come.wait()
    stopping = asyncio.create_task(plane.stop(0.0 if how == "grace" else 600.0))
    await until(lambda: plane.health()[-1].state in (State.STOPPING, State.STOPPED))
    if how == "hurry":
        plane.hurry()
    assert not await stopping
    async with Plane(settings, OWN, app=doubling()) as other:
        done = await over(other.components, job)
        assert (done.state, done.result) == (JobState.SUCCEEDED, 42)
        ends = [each for each in await other.components.service.events(ME, job.id) if each.after.terminal]
        assert len(ends) == 1


class Failing:
    """A part that does not start, or that ends unexpectedly."""

    name = "api"

    def __init__(self, at_start: bool) -> None:
        self._at_start = at_start
        self.go = asyncio.Event()

    async def start(self) -> None:
        if self._at_start:
            raise Unavailable("no")

    async def stop(self, grace: float) -> bool:
        return True

    async def ended(self) -> None:
        await self.go.wait()
        raise Unavailable("it broke")

    def detail(self) -> dict[str, Any]:
        return {}

    def readings(self) -> list[Reading]:
        return []


@pytest.mark.asyncio
async def test_a_part_that_cannot_start_stops_those_that_have(tmp_path: Path) -> None:
    settings = calm(tmp_path)
    plane = Plane(settings, PARTS, app=doubling(), api=lambda _: Failing(at_start=True))
    with pytest.raises(Unavailable, match="no"):
        await plane.start()
    assert {each.state for each in plane.health()} == {State.STOPPED}
    async with open_components(settings) as components:
        assert await components.locks.list("holdfast:") == []


@pytest.mark.asyncio
async def test_a_part_that_ends_by_itself_is_told_to_whoever_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part = Failing(at_start=False)
    async with Plane(quick(tmp_path), {"api", "scheduler"}, api=lambda _: part) as plane:
        waiting = asyncio.create_task(plane.wait())
        part.go.set()
        with pytest.raises(Unavailable, match="it broke"):
            await waiting
        assert [each.state for each in plane.health()] == [State.RUNNING, State.FAILED]
    assert "the api has ended" in caplog.text


@pytest.mark.asyncio
async def test_a_scheduler_that_dispatches_nothing_any_more_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_listener(channel: str) -> NoReturn:
        raise ValueError(f"no listener for {channel}")

    async with Plane(quick(tmp_path), {"scheduler"}) as plane:
        components = plane.components
        monkeypatch.setattr(components.database, "listen", no_listener)
        await components.workers.record(Heartbeat("w1", "default", ("double",), 1, 0, components.clock.now().wall))
        with pytest.raises(ExceptionGroup) as raised:
            await asyncio.wait_for(plane.wait(), 60)
        assert raised.value.subgroup(ValueError) is not None
        assert [each.state for each in plane.health()] == [State.FAILED]


@pytest.mark.asyncio
async def test_a_loop_that_has_ended_has_failed(tmp_path: Path) -> None:
    async with Plane(quick(tmp_path), {"reconciler"}) as plane:
        await until(lambda: _detail(plane, "reconciler")["ticks"] > 0)
        await plane.components.locks.close()
        with pytest.raises(RuntimeError, match="the reconciler ended unexpectedly"):
            await asyncio.wait_for(plane.wait(), 60)
        assert [each.state for each in plane.health()] == [State.FAILED]


@pytest.mark.asyncio
async def test_waiting_ends_when_the_plane_was_stopped(tmp_path: Path) -> None:
    plane = Plane(quick(tmp_path), {"scheduler"})
    await plane.start()
    waiting = asyncio.create_task(plane.wait())
    assert all(await asyncio.gather(plane.stop(), plane.stop()))
    await waiting
    with pytest.raises(BadInput, match="make another"):
        await plane.start()


@pytest.mark.asyncio
async def test_a_plane_without_parts_is_the_ground_alone(tmp_path: Path) -> None:
    async with Plane(quick(tmp_path), ()) as plane:
        job = await submitted(plane.components)
        assert (await plane.components.service.job(ME, job.id)).state is JobState.PENDING
        with pytest.raises(BadInput, match="does not run here"):
            plane.part("scheduler")


def test_what_cannot_be_a_plane_is_refused(tmp_path: Path) -> None:
    settings = quick(tmp_path)
    for parts, said in (({"worker"}, "app: is missing"), ({"api"}, "api: is missing"), ({"x"}, "'x' is no part")):
        with pytest.raises(BadInput, match=said):
            Plane(settings, parts)
    with pytest.raises(BadInput, match="is one text"):
        check_parts("api")
    with pytest.raises(BadInput, match="was not started"):
        _ = Plane(settings, ()).components
    assert check_parts(["worker", "api", "snapshot"]) == ("snapshot", "worker", "api")


@pytest.mark.asyncio
async def test_what_was_acknowledged_survives_a_plane_that_is_gone(tmp_path: Path) -> None:
    """Nothing is closed, as after a kill: what is in the file is all that is left."""
    settings = quick(tmp_path)
    async with open_components(settings) as components:
        job = await submitted(components, idempotency_key="once")
    copy = tmp_path / "copy"
    copy.mkdir(0o700)
    with sqlite3.connect(tmp_path / "plane.db") as source, sqlite3.connect(copy / "plane.db") as target:
        source.backup(target)
    source.close()
    target.close()
    async with Plane(quick(copy), OWN, app=doubling()) as plane:
        assert (await over(plane.components, job)).result == 42
        again, made = await plane.components.service.submit(ME, Submission("double", 21, idempotency_key="once"))
        assert (again.id, made) == (job.id, False)


@pytest.mark.asyncio
async def test_the_default_place_is_made_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with open_components(replace(quick(tmp_path), database=None)) as components:
        with pytest.raises(RowMissing):
            await components.service.job(ME, "nobody")
    assert (tmp_path / "holdfast").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "holdfast" / "leases.db").exists()


@pytest.mark.asyncio
async def test_the_sample_workload_makes_jobs_of_several_tenants_that_end(tmp_path: Path) -> None:
    settings = quick(tmp_path)
    async with Plane(settings, OWN, app=sample.app) as plane:
        feeding = asyncio.create_task(sample.feed(plane.components.service))
        try:
            async with asyncio.timeout(100):
                while True:
                    counts = await plane.components.service.counts(ME)
                    page = await plane.components.service.jobs(ME, limit=500)
                    tenants, topics = {job.tenant for job in page.items}, {job.topic for job in page.items}
                    if counts[JobState.SUCCEEDED] >= 3 and len(tenants) > 1 and len(topics) > 1:
                        break
                    await asyncio.sleep(0.05)
            assert topics <= {*sample.app.functions, GATE_TOPIC}
        finally:
            feeding.cancel()
            await asyncio.wait((feeding,))
        await plane.stop(0.0)


@pytest.mark.asyncio
@pytest.mark.server
async def test_two_replicas_of_everything_run_on_postgres_nats_and_redis(
    tmp_path: Path, postgres_url: str, nats_url: str, redis_url: str
) -> None:
    settings = quick(tmp_path, database=postgres_url, bus=nats_url, leases=redis_url)
    async with Plane(settings, OWN, app=doubling()) as first, Plane(settings, OWN, app=doubling()) as second:
        await ready(first.components)
        jobs = [await submitted(each.components, number) for number in range(10) for each in (first, second)]
        ended = [await over(second.components, job) for job in jobs]
        assert {job.state for job in ended} == {JobState.SUCCEEDED}
        assert sorted(job.result for job in ended) == sorted(2 * job.payload for job in jobs)
        await until(lambda: all(_leaders(first, second, loop) == 1 for loop in LOOPS))
        assert first.components.store.duplicate_ends == second.components.store.duplicate_ends == 0


def _leaders(first: Plane, second: Plane, loop: str) -> int:
    return sum(bool(_detail(each, loop)["leader"]) for each in (first, second))
