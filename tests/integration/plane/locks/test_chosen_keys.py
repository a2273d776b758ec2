"""A plane whose lock keys begin with a word of the operator's: every lock of it, and never two words at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.core.history.events import Record
from holdfast.errors import BadInput, LockBusy
from holdfast.guards.bearer import CarriedFence
from holdfast.ops.runbooks.evidence.locks import LocksFact
from holdfast.plane.app import App
from holdfast.plane.approvals.rules import ApprovalVerdict
from holdfast.plane.locks.registry import FAMILIES, SCHEDULER_JOB, WORKER_JOB, Scope
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job, Submission
from holdfast.plane.process.components import Components, open_components, switch_plane_bus, switch_plane_keys
from holdfast.plane.process.plane import PARTS, Plane
from holdfast.plane.scheduler.scheduler import report_of
from holdfast.plane.service.service import Caller
from holdfast.plane.settings import key_prefix
from holdfast.plane.settings.sections import NameSettings
from holdfast.plane.settings.settings import (
    ReconcilerSettings,
    ReplayerSettings,
    Settings,
    SnapshotSettings,
    WorkerSettings,
)
from holdfast.plane.workflows.builder import Flow
from holdfast.plane.workflows.core.run import RunStatus
from holdfast.web.status_cache import StatusCache
from support.fixtures.databases import until
from support.fixtures.fleet import ON_SERVERS, skip_without_servers
from support.fixtures.workers import Gate
from support.ops.runbook_harness import reported
from support.servers.nats import NatsExecutable, NatsServer, nats_executables, own_stream
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables

ME = Caller("test")
OWN = tuple(part for part in PARTS if part != "api")
ACME = NameSettings(keys="acme", metrics="acme")

pytestmark = pytest.mark.asyncio


def on_one_file(tmp_path: Path, names: NameSettings = ACME) -> Settings:
    """A plane on one file, with loops that come round quickly."""
    return Settings(
        database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal",
        worker=WorkerSettings(count=1, heartbeat=0.2, cancel_grace=1.0),
        reconciler=ReconcilerSettings(interval=0.2),
        replayer=ReplayerSettings(interval=0.2),
        snapshot=SnapshotSettings(interval=0.2),
        names=names,
    )


@pytest_asyncio.fixture(params=["embedded", ON_SERVERS])
async def places(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
    nats_servers: Callable[[NatsExecutable], NatsServer],
) -> AsyncIterator[Settings]:
    """Settings of a new plane under `acme`, on each stack."""
    if request.param == "embedded":
        yield on_one_file(tmp_path)
        return
    skip_without_servers(request.param)
    leases: str = request.getfixturevalue("_fleet_leases")
    with _postgres_servers(postgres_executables()[-1]).database() as database:
        bus = own_stream(nats_servers(nats_executables()[-1]))
        yield replace(on_one_file(tmp_path), database=database, bus=bus, leases=leases)


@dataclass(frozen=True, slots=True)
class Counted:
    """What `Keys` has counted."""

    written: int = 0


class Keys:
    """The keys of everything that happened to the leases of a process."""

    def __init__(self) -> None:
        self.of: dict[str, set[str]] = {}

    def note(self, record: Record) -> None:
        self.of.setdefault(record.family or "", set()).add(record.key)

    def statistics(self) -> Counted:
        return Counted()


def an_app(gate: Gate | None = None) -> App:
    app = App("doubling")

    @app.job("double")
    async def double(payload: int) -> int:
        if gate is not None:
            await gate.passed()
        return 2 * payload

    @app.workflow("twice")
    def twice(flow: Flow) -> None:
        asked = flow.approval("ask", message="may it?")
        flow.job("first", topic="double", input=1, after=asked)

    return app


async def submitted(components: Components) -> Job:
    job, _ = await components.service.submit(ME, Submission("double", 21))
    return job


async def ended(components: Components, job: Job) -> Job:
    found = job
    async with asyncio.timeout(60):
        while not found.state.terminal:
            await asyncio.sleep(0.01)
            found = await components.service.job(ME, job.id)
    return found


@pytest.mark.requires("R0")
async def test_every_key_of_a_running_plane_begins_with_the_word(places: Settings) -> None:
    gate, keys = Gate(), Keys()
    async with Plane(places, OWN, app=an_app(gate), audit=keys) as plane:
        components = plane.components
        job = await submitted(components)
        async with asyncio.timeout(60):
            await gate.come.wait()
        assert f"acme:worker:job:{job.id}" in {each.key for each in await components.locks.list("acme:")}
        loops = {family.under("acme").key() for family in FAMILIES.values() if family.scope is Scope.LOOP}
        await until(lambda: all(each.detail["leader"] for each in plane.health() if "leader" in each.detail))
        assert loops <= {each.key for each in await components.locks.list("acme:")}
        shown = await StatusCache(components.service).read(ME)
        assert {each.key for each in shown.loops or ()} == loops
        assert shown.locks is not None
        assert job.id in {each.job for each in shown.locks.items}
        assert {each["key"].partition(":")[0] for each in components.service.inventory()} == {"acme"}
        report = await reported("duplicate-dispatch", places, JOB=job.id)
        (locks,) = (each.fact for each in report.evidence if each.what == "locks")
        assert isinstance(locks, LocksFact)
        assert (found := locks.get(f"acme:worker:job:{job.id}")) is not None
        assert found.held
        wrong = await reported("duplicate-dispatch", replace(places, names=NameSettings()), JOB=job.id)
        assert [each for each in wrong.evidence if "the keys of this plane begin with acme:" in (each.problem or "")]
        gate.go.set()
        done = await ended(components, job)
        assert (done.state, done.result) == (JobState.SUCCEEDED, 42)

        run, _ = await components.flows.start(ME, "twice")
        async with asyncio.timeout(60):
            while not (gates := (await components.flows.approvals(ME)).items):  # noqa: ASYNC110 - it stands in a database
                await asyncio.sleep(0.01)
            await components.flows.decide(Caller("approver"), gates[0].job, ApprovalVerdict.APPROVE)
            status = RunStatus.RUNNING
            while not status.terminal:
                await asyncio.sleep(0.01)
                status = (await components.flows.run(ME, run.run.id)).run.status
        assert status is RunStatus.SUCCEEDED
    assert set(FAMILIES) <= set(keys.of)
    assert {key.partition(":")[0] for found in keys.of.values() for key in found} == {"acme"}


@pytest.mark.parametrize("serving", [False, True], ids=["a command", "a process of the plane"])
async def test_another_word_than_that_of_the_first_process_is_refused(tmp_path: Path, serving: bool) -> None:
    settings = on_one_file(tmp_path)
    async with open_components(settings, serving=True):
        pass
    with pytest.raises(BadInput, match=r"begin with acme:, and here they would begin with holdfast:"):
        async with open_components(on_one_file(tmp_path, NameSettings()), serving=serving):
            pass
    async with open_components(settings, serving=serving):
        pass


async def test_a_plane_without_any_process_refuses_no_command_and_the_first_process_chooses(tmp_path: Path) -> None:
    async with open_components(on_one_file(tmp_path, NameSettings())) as components:
        await submitted(components)
    assert await switch_plane_keys(on_one_file(tmp_path)) == (None, "acme")
    async with open_components(on_one_file(tmp_path), serving=True):
        pass


async def test_a_plane_of_an_older_version_has_the_default_word(tmp_path: Path) -> None:
    await switch_plane_bus(on_one_file(tmp_path))  # all that an older version has stored about itself
    with pytest.raises(BadInput, match=r"names\.keys: the keys of this plane begin with holdfast:"):
        async with open_components(on_one_file(tmp_path), serving=True):
            pass
    assert await switch_plane_keys(on_one_file(tmp_path)) == ("holdfast", "acme")


async def test_a_switch_is_refused_while_a_lease_is_held_or_a_worker_lives(places: Settings) -> None:
    other = replace(places, names=NameSettings())
    async with Plane(places, {"reconciler"}) as plane:
        await until(lambda: plane.health()[0].detail["leader"])
        with pytest.raises(LockBusy, match=r"acme:reconciler:default is held by .*; end all processes of the plane"):
            await switch_plane_keys(other)
    async with Plane(places, {"worker"}, app=an_app()) as plane:
        (worker,) = plane.health()[0].detail["workers"]
        with pytest.raises(LockBusy, match=f"the worker {worker} is alive; end all processes of the plane"):
            await switch_plane_keys(other)
        async with open_components(places, serving=True):
            pass  # a refused switch has changed nothing
    assert await switch_plane_keys(other) == ("acme", "holdfast")


async def test_a_process_that_held_no_lease_when_the_plane_was_switched_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_prefix, "POLL_S", 0.05)
    async with Plane(on_one_file(tmp_path), {"scheduler"}) as idle:
        await switch_plane_keys(on_one_file(tmp_path, NameSettings()))
        async with asyncio.timeout(60):
            with pytest.raises(BadInput, match="begin with holdfast:, and here they would begin with acme:"):
                await idle.wait()


async def test_work_from_before_a_switch_goes_on_after_it_under_higher_fences(places: Settings) -> None:
    before, gate = replace(places, names=NameSettings()), Gate()
    async with Plane(before, {"worker"}, app=an_app(gate)) as worker:
        async with Plane(before, {"scheduler"}) as scheduler:
            job = await submitted(scheduler.components)
            async with asyncio.timeout(60):
                await gate.come.wait()
            waiting = await submitted(scheduler.components)
        old = await worker.components.service.job(ME, job.id)
        gate.go.set()  # its result is sent, and not handled before the switch
        await until(lambda: worker.health()[0].detail["active"] == 0)
    assert (await switch_plane_keys(places))[0] == "holdfast"
    async with Plane(places, {"scheduler", "worker", "replayer"}, app=an_app()) as plane:
        done, later = await ended(plane.components, job), await ended(plane.components, waiting)
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 1)
    assert done.fence is not None
    assert old.fence is not None
    assert done.fence > old.fence
    assert later.state is JobState.SUCCEEDED


async def test_the_result_of_a_worker_is_known_by_its_job_and_not_by_the_word() -> None:
    for prefix in ("holdfast", "acme"):
        run = CarriedFence(WORKER_JOB.under(prefix).key(job="j1"), 7)
        assert report_of(subjects.finished("j1", 1, "w", run, {"status": "succeeded"})).run == run
    other = CarriedFence(SCHEDULER_JOB.key(job="j1"), 7)
    with pytest.raises(BadInput, match="does not carry the fence of a lease on job j1"):
        report_of(subjects.finished("j1", 1, "w", other, {"status": "succeeded"}))
