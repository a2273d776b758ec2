"""The audit ledger of a plane: what its processes record, what of that are metrics, and that it can be left out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.history.events import EventKind
from holdfast.core.history.holds import HoldEnd, holds
from holdfast.core.history.invariants import check
from holdfast.errors import BadInput, FencedOut
from holdfast.guards.bearer import CarriedFence
from holdfast.observe.ledger.reader import Findings, Wanted, load, read
from holdfast.observe.ledger.writer import Ledger
from holdfast.observe.metrics.samples import samples
from holdfast.plane.app import App
from holdfast.plane.jobs.store import Writing
from holdfast.plane.locks.registry import SCHEDULER_JOB, WORKER_JOB
from holdfast.plane.model.job_states import InvalidTransition, JobState
from holdfast.plane.model.records import Change, Job, Submission
from holdfast.plane.process.audit_ledger import plane_ledger
from holdfast.plane.process.components import Components
from holdfast.plane.process.plane import PARTS, Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Settings
from holdfast.plane.settings.sources import BadSettings
from holdfast.plane.settings.sources import load as load_settings

OWN = tuple(part for part in PARTS if part != "api")
ADA = Caller("ada")


def configured(tmp_path: Path, **flags: Any) -> Settings:
    given = {name.replace("__", "."): value for name, value in flags.items()}
    places = {"database": f"sqlite:///{tmp_path}/plane.db?synchronous=normal"}
    return load_settings(flags=places | given, environment={}, directory=tmp_path)


def opened(settings: Settings) -> Ledger:
    ledger = plane_ledger(settings)
    assert ledger is not None
    return ledger


def doubling() -> App:
    app = App("works")

    @app.job("double")
    async def double(payload: int) -> int:
        return 2 * payload

    return app


async def ready(components: Components) -> None:
    """Wait until a worker is known."""
    async with asyncio.timeout(30):
        while True:
            if await components.workers.live():
                return
            await asyncio.sleep(0.01)


async def over(components: Components, job: Job) -> Job:
    async with asyncio.timeout(30):
        while True:
            found = await components.store.get(job.id)
            assert found is not None
            if found.state.terminal:
                return found
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_job_leaves_the_leases_under_which_it_was_decided_and_run(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    with opened(settings) as ledger:
        async with Plane(settings, OWN, app=doubling(), audit=ledger) as plane:
            await ready(plane.components)
            job = (await plane.components.service.submit(ADA, Submission("double", 21)))[0]
            assert (await over(plane.components, job)).state is JobState.SUCCEEDED
            shown = {each.metric.name: each.value for each in samples(plane.process_health.readings())}
    path = Path(f"{tmp_path}/plane.db.audit")
    assert settings.audit_path == str(path)
    findings = Findings()
    records = list(read(path, findings=findings))
    assert check(records) == []
    assert (findings.dropped, findings.damaged) == (0, 0)
    for family in (SCHEDULER_JOB, WORKER_JOB):
        held = holds(read(path, Wanted(key=family.key(job=job.id))))
        assert held, family.name
        assert {(hold.family, hold.end) for hold in held} == {(family.name, HoldEnd.RELEASED)}
    assert sorted(map(str, load(path))) == sorted(map(str, records))
    assert shown["holdfast_audit_dropped_total"] == 0
    assert {name for name in shown if name.startswith("holdfast_audit_")} == {
        *("holdfast_audit_records_total", "holdfast_audit_dropped_total", "holdfast_audit_queued"),
        *("holdfast_audit_bytes_total", "holdfast_audit_files_total", "holdfast_audit_files_deleted_total"),
        "holdfast_audit_failures_total",
    }
    assert ledger.statistics().written == len(records)


@pytest.mark.requires("R59")
@pytest.mark.asyncio
async def test_refused_writes_second_ends_and_switches_of_the_policy_are_recorded(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    with opened(settings) as ledger:
        async with Plane(settings, (), audit=ledger) as plane:
            components, store = plane.components, plane.components.store
            job = (await components.service.submit(ADA, Submission("double", 1)))[0]
            key = SCHEDULER_JOB.key(job=job.id)
            await store.change(CarriedFence(key, 7), job.id, lambda _: Writing([Change(JobState.CANCELLED)]))
            with pytest.raises(FencedOut):
                await store.change(CarriedFence(key, 6), job.id, lambda _: None)
            with pytest.raises(InvalidTransition):
                await store.change(CarriedFence(key, 8), job.id, lambda _: Writing([Change(JobState.FAILED)]))
            with pytest.raises(InvalidTransition):
                await store.change(CarriedFence(key, 9), job.id, lambda _: Writing([Change(JobState.SUCCEEDED)]))
            components.locks.policy.set("high", "fail_open", reason="drill", actor="ada")
            assert store.duplicate_ends == 2
    records = list(read(settings.audit_path or ""))
    about = [(record.kind, record.family, record.fence, record.ok) for record in records if record.key == key]
    assert about == [
        (EventKind.WRITE, SCHEDULER_JOB.name, 6, False),
        (EventKind.DUPLICATE, SCHEDULER_JOB.name, 8, False),
        (EventKind.DUPLICATE, SCHEDULER_JOB.name, 9, False),
    ]
    assert [record.detail.endswith("CANCELLED and then FAILED") for record in records].count(True) == 1
    [switch] = [record for record in records if record.kind is EventKind.POLICY]
    assert (switch.owner, switch.risk, switch.reason) == ("ada", "high", "fail_open")
    assert check(records) == []


@pytest.mark.asyncio
async def test_two_processes_write_one_directory_each_into_files_of_its_own(tmp_path: Path) -> None:
    settings = configured(tmp_path, audit__path=f"{tmp_path}/shared")
    with opened(settings) as first, opened(settings) as second:
        async with (
            Plane(settings, ("scheduler",), audit=first) as one,
            Plane(settings, ("reconciler",), audit=second) as two,
        ):
            for number, plane in enumerate((one, two)):
                async with plane.components.locks.lock(f"mine:{number}", ttl=5):
                    pass
    mine = [record.key for record in load(f"{tmp_path}/shared") if record.key.startswith("mine:")]
    assert sorted(mine) == ["mine:0", "mine:0", "mine:1", "mine:1"]
    assert (first.statistics().files, second.statistics().files) == (1, 1)


@pytest.mark.asyncio
async def test_everything_is_more_than_what_is_audited_and_none_is_none(tmp_path: Path) -> None:
    assert plane_ledger(configured(tmp_path, audit__enabled=False)) is None
    elsewhere = {"database": "postgresql://h/db", "leases": "redis://h:6379/0"}
    assert load_settings(flags=elsewhere, environment={}, directory=tmp_path).audit_path is None
    settings = configured(tmp_path, audit__records="everything")
    with opened(settings) as ledger:
        async with Plane(settings, (), audit=ledger) as plane:
            locks = plane.components.locks
            async with locks.lock("k", ttl=5):
                assert await locks.lock("k", ttl=5).try_acquire() is None
            job = (await plane.components.service.submit(ADA, Submission("double", 1)))[0]
            lease = CarriedFence(SCHEDULER_JOB.key(job=job.id), 1)
            await plane.components.store.change(lease, job.id, lambda _: None)
    kinds = {record.kind for record in read(settings.audit_path or "")}
    assert {EventKind.GRANTED, EventKind.RELEASED, EventKind.WRITE} <= kinds
    async with Plane(configured(tmp_path, audit__enabled=False), ()) as plane:
        assert not any(each.source == "audit" for each in plane.process_health.readings())


def test_a_directory_that_cannot_be_used_is_said_with_where_it_was_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"audit.path \(--audit\): .*name another directory with --audit"):
        plane_ledger(configured(tmp_path, audit__path=f"{tmp_path}/file/audit"))
    with pytest.raises(BadSettings, match="30 MiB are kept, and no file is deleted before it is full, at 16 MiB"):
        configured(tmp_path, audit__keep_size=30)


def test_a_plane_at_its_default_place_keeps_its_ledger_beside_a_database_that_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ledger = plane_ledger(Settings())
    assert ledger is not None
    ledger.close()
    assert len(list((tmp_path / "state").rglob("*.audit"))) == 1


def test_a_place_that_is_not_there_is_left_for_the_database_to_complain_about(tmp_path: Path) -> None:
    assert plane_ledger(Settings(database=f"sqlite:///{tmp_path}/nowhere/plane.db")) is None
    assert not (tmp_path / "nowhere").exists()
