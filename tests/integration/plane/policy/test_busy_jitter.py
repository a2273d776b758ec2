"""The jitter of busy retries: what the bus of a running plane is asked for, and switches without a restart."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.observe.metrics.samples import samples
from holdfast.plane.app import App
from holdfast.plane.db.open import open_database
from holdfast.plane.locks.registry import SCHEDULER_JOB, WORKER_JOB, WORKFLOW_RUN
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.records import Submission
from holdfast.plane.policy.busy_jitter import check_jitter
from holdfast.plane.policy.model import BUSY_JITTER, JitterPolicy, PolicyConflict, PolicySource
from holdfast.plane.policy.store import PlanePolicy
from holdfast.plane.process.plane import Plane
from holdfast.plane.service.policy import policy_at
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Origin, SchedulerSettings, Settings, WorkerSettings
from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.runtime.system import SystemClock
from holdfast.types import MS, NS, Instant
from support.fixtures.databases import until
from support.harness.policies import ShiftedClock, replica

pytestmark = pytest.mark.asyncio

ME = Caller("test")
EACH = 6  # messages whose lock is busy, of each kind: that all get one delay by chance will not happen
HALF = 500 * MS
SUBJECTS = (subjects.CANCEL, subjects.RUN_LOOK, subjects.WORK)
ONE = {"name": "one", "steps": {"go": {"kind": "job", "topic": "echo"}}}


class StandingClock:
    """A wall clock that stands still, so that the time at which a message is due tells the delay that was requested."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self.wall_ns = self._real.now().wall

    def now(self) -> Instant:
        mono, boot, _ = self._real.now()
        return Instant(mono, boot, self.wall_ns)


class Contended:
    """A running plane in which every lock of a job, a run and an attempt is held by this test."""

    def __init__(self, plane: Plane, clock: StandingClock) -> None:
        self.plane = plane
        self.components = plane.components
        self._clock = clock
        self._held = AsyncExitStack()
        self._named = 0

    async def delays(self) -> dict[str, list[int]]:
        """The delays for which the bus is asked, by subject, of messages that find their locks busy from now on."""
        ids = [f"c{self._named + number}" for number in range(EACH)]
        self._named += EACH
        for each in ids:
            await self._held.enter_async_context(WORKER_JOB.lock(self.components.locks, job=each))
            await self._held.enter_async_context(WORKFLOW_RUN.lock(self.components.locks, run=each))
            await self.components.service.submit(ME, Submission("echo", id=each))
            await self.components.flows.start(ME, "one", run_id=each)
        await self._given_back(ids, subjects.WORK)  # so a worker has it, and the scheduler has let go of its lock
        for each in ids:
            await self._held.enter_async_context(SCHEDULER_JOB.lock(self.components.locks, job=each))
            await self.components.service.cancel(ME, each)
        return await self._given_back(ids, *SUBJECTS)

    async def _given_back(self, ids: list[str], *wanted: str) -> dict[str, list[int]]:
        """Wait until each message of these subjects was nacked once."""
        statement = "SELECT subject, body, due_ns FROM plane_message WHERE state = 1 AND excused = 1"
        found: dict[str, list[int]] = {}
        async with asyncio.timeout(60):
            while any(len(found.get(subject, [])) < EACH for subject in wanted):
                await asyncio.sleep(0.02)
                found = {}
                for row in await self.components.database.read(lambda tx: tx.query(statement)):
                    subject = next((each for each in SUBJECTS if row["subject"].startswith(each)), None)
                    if subject is not None and any(f'"{each}"' in row["body"] for each in ids):
                        found.setdefault(subject, []).append(row["due_ns"] - self._clock.wall_ns)
        return found

    async def close(self) -> None:
        """Release what is held."""
        await self._held.aclose()


def settings_at(folder: Path, **scheduler: float) -> Settings:
    return Settings(
        database=f"sqlite:///{folder}/plane.db?synchronous=normal",
        scheduler=SchedulerSettings(**scheduler),  # type: ignore[arg-type]  # only times are given
        worker=WorkerSettings(count=1, concurrency=64),
    )


def echo() -> App:
    app = App("echo")

    @app.job("echo")
    async def _echo(payload: object) -> object:
        return payload

    return app


def varies(delays: list[int]) -> bool:
    """Whether these are 500 ms ± 200 ms, and differ."""
    return all(300 * MS <= each < 700 * MS for each in delays) and len(set(delays)) > 1


@pytest.mark.requires("R165", "R168")
async def test_a_running_plane_spreads_busy_retries_and_stops_without_a_restart(tmp_path: Path) -> None:
    settings, clock = settings_at(tmp_path, busy_jitter=0.2), StandingClock()
    async with Plane(settings, ("scheduler", "engine", "worker"), app=echo(), clock=clock) as plane:
        await plane.components.flows.define(ME, from_document(ONE))
        contended = Contended(plane, clock)
        async with asyncio.timeout(60):
            while not await plane.components.workers.live():  # noqa: ASYNC110 - it stands in a database
                await asyncio.sleep(0.01)
        try:
            delays = await contended.delays()
            assert varies(delays[subjects.CANCEL])
            assert varies(delays[subjects.RUN_LOOK])
            assert varies(delays[subjects.WORK])
            async with policy_at(settings) as operator:  # another process
                await operator.set_jitter(0, actor="ada", reason="p99 rose", source=PolicySource.COMMAND)
            await until(lambda: plane.components.policing.jitter.seconds == 0)
            fixed = await contended.delays()
            assert set(fixed[subjects.CANCEL]) == {HALF}
            assert set(fixed[subjects.RUN_LOOK]) == {HALF}
            assert set(fixed[subjects.WORK]) == {HALF}
            async with policy_at(settings) as operator:
                await operator.set_jitter(0.1, actor="ada", reason="waves again", source=PolicySource.COMMAND)
            await until(lambda: plane.components.policing.jitter.seconds == 0.1)
            (shown,) = (
                each.value
                for each in samples(plane.process_health.readings())
                if each.metric.name == "holdfast_policy_busy_jitter_seconds"
            )
            assert shown == 0.1
            assert all(varies(each) and max(each) < 600 * MS for each in (await contended.delays()).values())
        finally:
            await contended.close()


@pytest.mark.requires("R168")
async def test_switches_are_in_one_history_with_those_of_risk_classes(plane_url: str) -> None:
    database = open_database(plane_url)
    try:
        policy = PlanePolicy(database, SystemClock())
        assert (await policy.view()).jitter is None
        await policy.set("high", "wait", actor="ada", reason="store moves")
        standing, changed = await policy.set_jitter(0.2, actor="bob", reason="waves", source=PolicySource.API)
        assert changed
        assert standing == JitterPolicy(0.2, 2, standing.since_ns, "bob", "waves", PolicySource.API)
        again, changed = await policy.set_jitter(0.2, actor="ada", reason="me too")
        assert (again, changed) == (standing, False)
        with pytest.raises(PolicyConflict, match=r"busy_jitter was changed .*revision 1, now 2"):
            await policy.set_jitter(0, actor="ada", reason="r", expect=1)
        await policy.set_jitter(0, actor="ada", reason="p99 rose", expect=2)
        view = await policy.view()
        assert view.jitter is not None
        assert (view.revision, view.jitter.seconds, view.jitter.actor) == (3, 0.0, "ada")
        assert list(view.classes) == ["high"]  # it is no risk class
        found = [(each.revision, each.risk, each.before, each.after) for each in await policy.history()]
        assert found == [
            (3, BUSY_JITTER, "0.2", "0"),
            (2, BUSY_JITTER, "0", "0.2"),
            (1, "high", "fail_closed", "wait"),
        ]
        assert [each.revision for each in await policy.history(10, BUSY_JITTER, below=3)] == [2]
        assert [each.revision for each in await policy.history(1)] == [3]
        for wrong in (-0.1, float("nan")):
            with pytest.raises(BadInput):
                await policy.set_jitter(wrong, actor="ada", reason="r")
        with pytest.raises(BadInput, match="busy_jitter is no risk class"):
            await policy.set(BUSY_JITTER, "wait", actor="ada", reason="r")
    finally:
        await database.close()


async def test_tables_of_the_first_version_are_brought_up_to_date_and_keep_their_history(plane_url: str) -> None:
    database = open_database(plane_url)
    try:
        policy = PlanePolicy(database, SystemClock())
        await policy.set("high", "wait", actor="ada", reason="store moves")
        await database.write(lambda tx: tx.query("DROP TABLE plane_policy_setting"))
        old = "UPDATE plane_meta SET value = '1' WHERE name = 'version.policy_schema'"
        await database.write(lambda tx: tx.query(old))
        upgraded = PlanePolicy(database, SystemClock())
        await upgraded.set_jitter(0.2, actor="bob", reason="waves")
        assert [each.risk for each in await upgraded.history()] == [BUSY_JITTER, "high"]
    finally:
        await database.close()


@pytest.mark.requires("R168")
async def test_the_setting_speaks_when_it_is_new_and_a_restart_does_not_undo_a_switch(tmp_path: Path) -> None:
    async def jitter(**how: float) -> float:
        async with Plane(settings_at(tmp_path, **how), ("scheduler",)) as plane:
            return plane.components.policing.jitter.seconds

    assert await jitter() == 0.0
    assert await jitter(busy_jitter=0.2) == 0.2
    async with policy_at(settings_at(tmp_path)) as operator:
        await operator.set_jitter(0.1, actor="ada", reason="less", source=PolicySource.COMMAND)
    assert await jitter(busy_jitter=0.2) == 0.1  # the setting still says what it said before
    assert await jitter() == 0.1  # a process without the setting has no say
    given = replace(settings_at(tmp_path), origins={"scheduler.busy_jitter": Origin("file", "holdfast.toml")})
    async with Plane(given, ("scheduler",)) as plane:  # a 0 that was written down is the fast way back too
        assert plane.components.policing.jitter.seconds == 0.0
        assert (await plane.components.policing.policy.history(1))[0].source is PolicySource.START


@pytest.mark.requires("R168")
async def test_a_policy_file_switches_the_jitter_in_every_process(tmp_path: Path) -> None:
    here, clock = f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal", ShiftedClock()
    file = tmp_path / "policy.toml"
    file.write_text('[risk]\nlow = "wait"\n[scheduler]\nbusy_jitter = "200ms"\n')
    async with (
        replica(here, clock, name="a", file=file, poll_ns=3600 * NS, file_ns=NS // 50) as a,
        replica(here, clock, name="b", poll_ns=3600 * NS) as b,
    ):
        both = (a.policing.jitter, b.policing.jitter)
        assert [each.seconds for each in both] == [0.2, 0.2]
        file.write_text('[risk]\nlow = "wait"\n[scheduler]\nbusy_jitter = 0.1\n')
        await until(lambda: all(each.seconds == 0.1 for each in both))
        file.write_text('[risk]\nlow = "wait"\n')  # taken out: the fixed delay
        await until(lambda: all(each.seconds == 0 for each in both))
        found = [(each.after, each.source) for each in await b.policing.policy.history(10, BUSY_JITTER)]
        assert found == [("0", PolicySource.FILE), ("0.1", PolicySource.FILE), ("0.2", PolicySource.FILE)]
        assert (a.modes["low"], b.modes["low"]) == ("wait", "wait")
    for wrong in ("[scheduler]\nbusy_delay = 1\n", "[scheduler]\nbusy_jitter = -1\n", "scheduler = 1\n"):
        file.write_text(wrong)
        with pytest.raises(BadInput, match="scheduler"):
            async with replica(here, clock, file=file):
                raise AssertionError("it started")


@pytest.mark.requires("R116", "R158", "R163")
@pytest.mark.parametrize(
    ("jitter", "more", "because"),
    [
        (0.5, {}, "not below the delay"),
        (0.4, {"scheduler": SchedulerSettings(job_ttl=2.0)}, "scheduler.job: "),
        (0.2, {"takeover": 60.6}, "taken over after up to"),
        (61.0, {}, "61"),
    ],
)
async def test_a_jitter_that_the_settings_rule_out_is_refused(
    tmp_path: Path, jitter: float, more: dict[str, Any], because: str
) -> None:
    settings = replace(settings_at(tmp_path), **more)
    assert check_jitter(settings, 0.001) == MS
    with pytest.raises(BadInput, match=because):
        check_jitter(settings, jitter)
    async with policy_at(settings) as operator:
        with pytest.raises(BadInput, match=because):
            await operator.set_jitter(jitter, actor="ada", reason="r", source=PolicySource.COMMAND)
        assert await operator.history() == []


async def test_a_process_whose_settings_rule_a_jitter_out_stays_at_the_one_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = f"sqlite:///{tmp_path}/plane.db?synchronous=normal"
    async with replica(here, ShiftedClock(), scheduler=SchedulerSettings(busy_delay=0.3), run=False) as each:

        async def switch(seconds: float) -> float:
            await each.policing.policy.set_jitter(seconds, actor="ada", reason="r")
            await each.policing.follower.refresh()
            return each.policing.jitter.seconds

        assert [await switch(0.1), await switch(0.4)] == [0.1, 0.1]
        assert "a jitter of busy retries was refused" in caplog.text
        with caplog.at_level(logging.WARNING, logger="holdfast.plane"):
            assert await switch(0) == 0
        assert "jitter of busy retries switched: 0.1 s to 0 s by ada: r" in caplog.text
