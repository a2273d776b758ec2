"""TTL, renewal interval and failure budget of every family are settings: one place for each, and the locks obey."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.aio.client import Locks
from holdfast.core.history.events import EventKind
from holdfast.errors import BadInput
from holdfast.plane.app import App
from holdfast.plane.approvals.rules import ApprovalVerdict, parse_rules
from holdfast.plane.locks.registry import FAMILIES, SCHEDULER_JOB
from holdfast.plane.model.records import Submission
from holdfast.plane.process.plane import PARTS, Plane
from holdfast.plane.process.workflow_parts import engine_of
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.consistency import takeovers
from holdfast.plane.settings.inventory import inventory
from holdfast.plane.settings.lock_times import FAMILY_KEYS, families_in_effect, family_in_effect
from holdfast.plane.settings.sections import ApprovalSettings, EngineSettings
from holdfast.plane.settings.settings import KEYS, SchedulerSettings, Settings, WorkerSettings
from holdfast.plane.settings.sources import BadSettings, load
from holdfast.plane.worker.attempt_leases import lease_family
from holdfast.plane.workflows.core.run import CheckRun
from holdfast.types import NS, LossReason
from support.fixtures.databases import until
from support.harness.small_world import SmallWorld

ME = Caller("me")


def read(tmp_path: Path, text: str, **environment: str) -> Settings:
    path = tmp_path / "holdfast.toml"
    path.write_text(text)
    return load(path, environment=environment)


def refused(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(BadSettings) as error:
        read(tmp_path, text)
    return [str(each) for each in error.value.problems]


@pytest.mark.requires("R50", "R51", "R70", "R122")
def test_every_family_has_its_three_settings_whose_defaults_are_what_is_declared() -> None:
    assert set(FAMILY_KEYS) == set(FAMILIES)
    for name, family in families_in_effect(Settings()).items():
        keys = FAMILY_KEYS[name]
        assert {keys.ttl, keys.renew_every, keys.failures} <= set(KEYS)
        declared = FAMILIES[name]
        assert family == declared
        assert (family.renew_every, family.failures) == (declared.ttl / 3, 3)
    shown = Settings(database="sqlite:///a.db").shown()
    assert shown["scheduler.job_renew_every"] == {"value": 20.0, "from": "default"}
    assert shown["approvals.lock_renew_every"]["value"] == 3.333


def test_what_is_set_is_shown_listed_and_promised(tmp_path: Path) -> None:
    loop = "[reconciler]\ninterval = 8\nrenew_every = 4\nfailures = 2\n"
    text = f"[approvals]\nlock_ttl = 14\nlock_renew_every = 2.5\n{loop}"
    settings = read(tmp_path, text, HOLDFAST_APPROVALS_LOCK_FAILURES="6")
    lines = {line.family: line for line in inventory(settings)}
    assert (lines["approval"].ttl, lines["approval"].renew_every, lines["approval"].failures) == (14.0, 2.5, 6)
    assert lines["reconciler"].cells()[3:6] == ("16 s", "4 s", "2 failures")
    bounds = {each.key: each.seconds for each in takeovers(settings)}
    assert (bounds["approvals.lock_ttl"], bounds["reconciler.interval"]) == (14.5, 24.0)
    shown = settings.shown()
    assert shown["approvals.lock_failures"] == {"value": 6, "from": "$HOLDFAST_APPROVALS_LOCK_FAILURES"}
    assert shown["reconciler.renew_every"] == {"value": 4.0, "from": "holdfast.toml:6"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "scheduler.job_ttl = 30\nscheduler.job_renew_every = 25\n",
            """scheduler.job_renew_every (holdfast.toml:2), scheduler.job_ttl (holdfast.toml:1): scheduler.job: the
            renew deadline must exceed 1.2 x the interval, but 1.2 x 25 s = 30 s and the deadline is 26.698 s (ttl
            30 s); renew every 10 s or more often, or use a longer ttl""",
        ),
        (
            "approvals = { lock_renew_every = 9 }\n",
            """approvals.lock_renew_every (holdfast.toml:1): approval: the renew deadline must exceed 1.2 x the
            interval, but 1.2 x 9 s = 10.8 s and the deadline is 8.898 s (ttl 10 s); renew every 3.33333 s or more
            often, or use a longer ttl""",
        ),
        ("[worker]\nlease_failures = 0\n", "holdfast.toml:2: worker.lease_failures"),
        ("[worker]\nlease_failures = 2.5\n", "holdfast.toml:2: worker.lease_failures"),
        ("[delays]\nrenew_every = 0\n", "holdfast.toml:2: delays.renew_every"),
        (
            "[cleanup]\nlead = 'rotating'\nrenew_every = 9\nfailures = 4\n",
            """cleanup.renew_every (holdfast.toml:3), cleanup.failures (holdfast.toml:4), cleanup.lead
            (holdfast.toml:2): deadletter.cleanup is held for its TTL and not renewed, because cleanup.lead is rotating;
            remove cleanup.renew_every and cleanup.failures, or lead sticky""",
        ),
    ],
)
def test_times_that_do_not_work_together_are_refused_with_the_arithmetic(
    tmp_path: Path, text: str, problem: str
) -> None:
    (said,) = refused(tmp_path, text)
    assert said.startswith(" ".join(problem.split()))


def test_a_worker_refuses_times_that_do_not_work_together_when_it_is_made() -> None:
    assert lease_family(12, 3, 5) == replace(FAMILIES["worker.job"], ttl=12.0, renewal=3.0, failures=5)
    for times, field in (((12, 11, None), "renew_every"), ((0, None, None), "lease_ttl"), ((12, 3, 0), "failures")):
        with pytest.raises(BadInput) as error:
            lease_family(*times)
        assert error.value.field == field


@pytest.mark.requires("R119", "R122", "R127")
@pytest.mark.parametrize(("every", "failures", "seen"), [(None, 3, 53.4), (4.0, 2, 8.0), (4.0, 1, 6.0), (6.0, 5, 30.0)])
def test_a_lock_is_renewed_at_its_interval_and_given_up_at_its_failure_budget(
    every: float | None, failures: int, seen: float
) -> None:
    """On virtual time: three renewals, then the store is silent. `seen`: how long after the last it is given up.

    A renewal counts as failed when it has been without an answer for two seconds.
    """
    times = SchedulerSettings(job_renew_every=every, job_failures=failures)
    family = family_in_effect(Settings(scheduler=times), SCHEDULER_JOB)
    world = SmallWorld(request_timeout_ns=NS // 100)
    host = world.host("host")

    async def hold() -> float:
        lease = await family.lock(host.locks, job="42").acquire()
        await asyncio.sleep(3.5 * family.renew_every)
        world.network.block("host", world.server.name)
        async with asyncio.timeout(100):
            await lease.lost.wait()
        return world.loop.time()

    lost = world.run(hold())
    renewed = [record.at_ns / NS for record in world.records if record.kind is EventKind.EXTENDED]
    assert renewed == pytest.approx([number * family.renew_every for number in (1, 2, 3)], rel=0.01)
    assert lost - renewed[-1] == pytest.approx(seen, rel=0.1), "failed periods, or its deadline if that comes first"
    (reason,) = (record.reason for record in world.records if record.kind is EventKind.LOST)
    assert reason == LossReason.UNCONFIRMED


class Seen:
    """The times of every lock that is described, by family."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: dict[str, tuple[float, float | None, int]] = {}
        original = Locks.lock

        def noted(locks: Locks, name: str, **how: Any) -> Any:
            self.times[how["family"]] = how["ttl"], how.get("renew_every"), how["failures"]
            return original(locks, name, **how)

        monkeypatch.setattr(Locks, "lock", noted)


@pytest.mark.asyncio
async def test_a_plane_takes_every_lock_with_the_times_that_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real parts on a real file: each family has times of its own, and none uses another's."""
    loops = {
        loop: replace(getattr(Settings(), loop), interval=2.0 + number / 10, renew_every=1.0, failures=4 + number)
        for number, loop in enumerate(("reconciler", "replayer", "snapshot", "cleanup", "runs", "delays", "schedules"))
    }
    settings = Settings(
        database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal",
        scheduler=SchedulerSettings(job_ttl=41.0, job_renew_every=5.0, job_failures=11),
        worker=WorkerSettings(count=1, heartbeat=0.2, lease_ttl=42.0, lease_renew_every=6.0, lease_failures=12),
        engine=EngineSettings(run_ttl=43.0, run_renew_every=7.0, run_failures=13),
        approvals=ApprovalSettings(parse_rules([{"name": "all", "topics": "*"}]), 44.0, 8.0, 14),
        **loops,
    )
    app = App("one")
    done = asyncio.Event()

    @app.job("work")
    async def work(payload: None) -> None:
        done.set()

    seen = Seen(monkeypatch)
    async with Plane(settings, set(PARTS) - {"api"}, app=app) as plane:
        components = plane.components
        job, _ = await components.service.submit(ME, Submission("work", None))
        await components.approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="approver")
        await engine_of(components).move("run-1", CheckRun(), risk="low")
        async with asyncio.timeout(60):
            await done.wait()
        await until(lambda: set(seen.times) >= set(FAMILIES))
        listed = {each["family"]: each["failures"] for each in components.service.inventory()}
    expected = {name: (each.ttl, each.renewal, each.failures) for name, each in families_in_effect(settings).items()}
    assert {name: times for name, times in seen.times.items() if name in FAMILIES} == expected
    assert len({times[2] for times in expected.values()}) == len(FAMILIES), "each has another budget"
    assert listed == {name: times[2] for name, times in expected.items()}


def test_the_delays_in_effect_are_what_the_inventory_says() -> None:
    slow = SchedulerSettings(busy_delay=3.0, busy_jitter=0.25, backend_delay=5.0)
    said = {line.family: line for line in inventory(Settings(scheduler=slow))}
    assert said["scheduler.job"].on_busy == "wait 2 s, then retry after 3 s ± 250 ms"
    assert said["scheduler.job"].on_error == "retry after 5 s"
    assert [line.on_busy for line in inventory()] == [line.on_busy for line in inventory(Settings())]
