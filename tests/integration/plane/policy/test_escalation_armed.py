"""The escalation rule, armed: from a failing store to one switch on all replicas, and never back automatically."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import PolicyDenied
from holdfast.observe import prometheus
from holdfast.plane.locks.registry import WORKFLOW_RUN
from holdfast.plane.policy.escalation_rules import EscalationRule
from holdfast.plane.policy.model import PolicySource
from holdfast.plane.process.components import Components, open_components
from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.settings.settings import EscalationSettings, Settings
from holdfast.testing.proxy import FaultProxy
from holdfast.types import NS
from support.fixtures.databases import until
from support.harness.policies import Replica, ShiftedClock, replica
from support.servers.redis import RedisServer

pytestmark = pytest.mark.asyncio

RULE = EscalationRule()


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def here(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal"


async def opened_up(each: Replica, clock: ShiftedClock) -> None:
    """An operator has made high-risk work fail open, a window ago."""
    await each.policing.policy.set("high", "fail_open", actor="ada", reason="release night")
    clock.move(RULE.window_ns)


async def check(each: Replica) -> list[str]:
    assert each.policing.escalator is not None
    assert await each.policing.signals.flush()
    return [done.risk for done in await each.policing.escalator.check()]


async def duplicate(each: Replica, times: int = 1) -> None:
    for number in range(times):
        each.policing.signals.step_repeated(run="r-1", step=str(number))


@pytest.mark.requires("R91", "R93", "R96")
async def test_both_signs_together_make_high_risk_work_fail_closed_and_it_stays_so(
    here: str, clock: ShiftedClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica(here, clock, rule=RULE, run=False) as each:
        await opened_up(each, clock)
        await each.fall_back(31)
        assert await check(each) == []  # nothing was done twice
        await duplicate(each)
        assert await check(each) == ["high"]
        standing = (await each.policing.policy.current())["high"]
        assert (str(standing.mode), standing.source) == ("fail_closed", PolicySource.ESCALATION)
        assert standing.reason.startswith("0.103 fallbacks a second over 300 s (limit 0.1), and 1 duplicates after 0")
        assert "holdfast policy set high fail_open --reason" in caplog.text
        assert each.policing.statistics()["escalations"] == 1
        clock.move(10 * RULE.window_ns)  # all is well again
        assert await check(each) == []
        assert str((await each.policing.policy.current())["high"].mode) == "fail_closed"
        assert str((await each.policing.policy.current())["low"].mode) == "fail_open"


@pytest.mark.requires("R93", "R96")
async def test_exercises_and_steady_duplicates_are_no_reason(here: str, clock: ShiftedClock) -> None:
    async with replica(here, clock, rule=RULE, run=False) as each:
        await opened_up(each, clock)
        each.locks.exercise.begin("workflow.run", 1)
        for _ in range(50):
            async with each.locks.lock("k", ttl=30, family="workflow.run", risk="low"):
                pass
        await duplicate(each)
        assert await check(each) == []
        await duplicate(each, 4)
        assert await check(each) == []
        clock.move(RULE.window_ns)
        await duplicate(each, 5)
        each.locks.exercise.end("workflow.run")
        await each.fall_back(40)
        assert await check(each) == []  # five after five


async def test_a_person_who_decides_against_it_is_not_overruled_by_what_was_before(
    here: str, clock: ShiftedClock
) -> None:
    async with replica(here, clock, rule=RULE, run=False) as each:
        await opened_up(each, clock)
        await each.fall_back(40)
        await duplicate(each, 3)
        assert await check(each) == ["high"]
        await each.policing.policy.set("high", "fail_open", actor="ada", reason="we know, and go on")
        assert await check(each) == []
        clock.move(RULE.window_ns)
        await each.fall_back(40)
        await duplicate(each, 4)
        assert await check(each) == ["high"]  # a window later it continues, and gets worse


async def test_it_needs_no_lease_and_waits_for_a_lost_database(
    here: str, clock: ShiftedClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica(here, clock, rule=RULE) as each:
        await opened_up(each, clock)
        await until(lambda: each.modes["high"] == "fail_open")
        each.database.down = True
        await each.fall_back(40)
        await duplicate(each)
        await until(lambda: each.policing.signals.failed > 1)
        assert each.modes["high"] == "fail_open"
        each.plan.down()
        each.database.down = False
        await until(lambda: each.modes["high"] == "fail_closed")
        each.plan.well()
    assert "error policy escalated" in caplog.text


async def test_of_many_replicas_that_see_it_one_switches(plane_url: str, clock: ShiftedClock) -> None:
    async with (
        replica(plane_url, clock, name="a", rule=RULE, run=False) as a,
        replica(plane_url, clock, name="b", rule=RULE, run=False) as b,
    ):
        await opened_up(a, clock)
        await a.fall_back(20)
        await b.fall_back(20)  # neither alone is too much
        await duplicate(b)
        assert await b.policing.signals.flush()
        assert max(await asyncio.gather(check(a), check(b), check(a), check(b))) == ["high"]
        found = await a.policing.policy.history(10, "high")
        assert [each.source for each in found] == [PolicySource.ESCALATION, PolicySource.COMMAND, PolicySource.START]


# The whole, with a real store that fails: two planes on one file, leases in Redis behind a proxy.


def scraped(components: Components) -> list[str]:
    return prometheus.rendered(ProcessHealth(components.service).readings())[0].decode().splitlines()


@pytest.mark.server
@pytest.mark.requires("R80", "R84", "R85", "R91", "R92", "R94", "R96", "R97")
async def test_an_outage_of_redis_is_counted_logged_escalated_and_over(
    tmp_path: Path, clock: ShiftedClock, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultProxy(redis_server.port) as proxy:
        settings = Settings(
            database=f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal",
            leases=f"redis://{proxy.address}",
            escalation=EscalationSettings(armed=True),
        )
        async with (
            open_components(settings, serving=True, clock=clock, instance="a") as a,
            open_components(settings, serving=True, clock=clock, instance="b") as b,
        ):
            assert "holdfast_workflow_lock_fallback_total 0.0" in scraped(a)
            await a.service.policy.set("high", "fail_open", actor="ada", reason="release", source=PolicySource.COMMAND)
            await until(lambda: b.locks.policy.current()["high"] == "fail_open")
            clock.move(RULE.window_ns)
            proxy.refuse()
            proxy.reset()
            caplog.clear()
            for components in (a, b):
                for number in range(20):
                    async with WORKFLOW_RUN.risky(components.locks, risk="low", run=f"r-{number}") as lease:
                        assert lease.guaranteed is False
            lines = [each for each in caplog.records if each.message.startswith("distributed lock failed")]
            assert len(lines) == 40
            assert "cross-replica race is possible" in lines[0].message
            fields = lines[7].__dict__["holdfast"]
            assert fields["run"] == "r-7"
            assert fields["error"]
            assert "holdfast_workflow_lock_fallback_total 20.0" in scraped(a)
            assert 'holdfast_lock_fallback_total{family="workflow.run",risk="low"} 20.0' in scraped(b)
            b.policing.signals.publish_repeated(job="j-1")
            for components in (a, b):
                await components.policing.signals.flush()
            report = await a.service.policy.show()
            assert report.rate == pytest.approx(40 / 300)
            assert any("work without locks does harm" in each for each in report.hints)
            looks = (components.policing.escalator.check() for components in (a, b) if components.policing.escalator)
            await asyncio.gather(*looks)
            for components in (a, b):
                await until(lambda: components.locks.policy.current()["high"] == "fail_closed")  # noqa: B023 - awaited here
                with pytest.raises(PolicyDenied):
                    await WORKFLOW_RUN.risky(components.locks, risk="high", run="r-1").acquire()
            changes = await b.service.policy.history(10, "high")
            assert [each.source for each in changes] == [
                PolicySource.ESCALATION,
                PolicySource.COMMAND,
                PolicySource.START,
            ]
            # The store is back: nothing falls back any more, and what was switched stays so.
            proxy.refuse(False)
            clock.move(2 * RULE.window_ns + 60 * NS)
            await until_guaranteed(a)
            report = await a.service.policy.show()
            assert report.rate == 0
            assert [each for each in report.hints if "since an escalation" in each]


async def until_guaranteed(components: Components) -> None:
    """The breaker lets one probe through after a while; then leases are full ones again."""
    async with asyncio.timeout(60):
        while True:
            async with WORKFLOW_RUN.risky(components.locks, risk="low", run="after") as lease:
                if lease.guaranteed:
                    return
            await asyncio.sleep(0.05)
