"""Each process of a plane does what its policy says: from before its first lock, and through a lost database."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from holdfast import PolicyDenied
from holdfast.core.lease.error_policy import OnError
from holdfast.core.lease.policy_exercise import parse_exercise
from holdfast.errors import BadInput, Unavailable
from holdfast.plane.policy.model import PolicySource
from holdfast.plane.process.components import open_components
from holdfast.plane.settings.settings import ExerciseSettings, Settings
from holdfast.runtime.policy_switch import edit_policy_file
from holdfast.types import NS
from support.fixtures.databases import until
from support.harness.policies import ShiftedClock, replica

pytestmark = pytest.mark.asyncio

SLOW = 3600 * NS  # nothing arrives by polling
OPEN, CLOSED, WAIT = OnError.FAIL_OPEN, OnError.FAIL_CLOSED, OnError.WAIT


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def here(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal"


@pytest.mark.requires("R77", "R99", "R100", "R104")
async def test_a_switch_reaches_all_processes_by_its_bell_and_locks_obey(plane_url: str, clock: ShiftedClock) -> None:
    async with (
        replica(plane_url, clock, name="a", poll_ns=SLOW) as a,
        replica(plane_url, clock, name="b", poll_ns=SLOW) as b,
    ):
        assert a.modes == b.modes == {"low": "fail_open", "high": "fail_closed"}
        await a.policing.policy.set("high", "fail_open", actor="ada", reason="release night")
        await until(lambda: a.modes["high"] == b.modes["high"] == "fail_open")
        for each in (a, b):
            await each.fall_back(1, risk="high")
        await b.policing.policy.set("high", "fail_closed", actor="bob", reason="enough")
        await until(lambda: a.modes["high"] == b.modes["high"] == "fail_closed")
        a.plan.down("acquire")
        with pytest.raises(PolicyDenied):
            await a.locks.lock("k", ttl=5, risk="high").acquire()


async def test_without_a_bell_a_switch_arrives_by_looking(here: str, clock: ShiftedClock) -> None:
    async with replica(here, clock, name="a", run=False) as a, replica(here, clock, name="b", run=False) as b:
        await a.policing.policy.set("high", "wait", actor="ada", reason="r")
        assert b.modes["high"] == "fail_closed"
        assert await b.policing.follower.refresh()
        assert b.modes["high"] == "wait"


@pytest.mark.requires("R74")
async def test_a_process_that_starts_has_the_policy_before_its_first_lock(here: str, clock: ShiftedClock) -> None:
    async with replica(here, clock, run=False) as first:
        await first.policing.policy.set("low", "fail_closed", actor="ada", reason="incident")
    async with replica(here, clock, run=False, settings={"low": OPEN}) as later:
        # What the settings say is new to the plane, so it is the last word.
        assert later.modes["low"] == "fail_open"
        await later.policing.policy.set("low", "fail_closed", actor="ada", reason="incident")
    async with replica(here, clock, run=False, settings={"low": OPEN}) as restarted:
        assert restarted.modes["low"] == "fail_closed"
        restarted.plan.down("acquire")
        with pytest.raises(PolicyDenied):
            await restarted.locks.lock("k", ttl=5, risk="low").acquire()


@pytest.mark.requires("R74")
async def test_a_process_cannot_start_without_knowing_the_policy(here: str, clock: ShiftedClock) -> None:
    async with replica(here, clock, begin=False, run=False) as each:
        each.database.down = True
        with pytest.raises(Unavailable):
            await each.policing.begin()


async def test_while_the_database_is_down_the_last_known_policy_holds_and_the_log_says_so_once(
    here: str, clock: ShiftedClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica(here, clock, name="a", run=False) as a, replica(here, clock, name="b", poll_ns=NS // 50) as b:
        await a.policing.policy.set("low", "wait", actor="ada", reason="r")
        await until(lambda: b.modes["low"] == "wait")
        b.database.down = True
        asked = b.database.asked
        await a.policing.policy.set("low", "fail_closed", actor="ada", reason="r")
        await until(lambda: b.database.asked > asked + 4)
        assert b.modes["low"] == "wait"
        assert b.policing.follower.failed > 0
        b.database.down = False
        await until(lambda: b.modes["low"] == "fail_closed")
        assert caplog.text.count("the last known one stays in force") == 1
        assert caplog.text.count("can be read again") == 1


async def test_what_is_switched_in_one_process_alone_is_set_right(here: str, clock: ShiftedClock) -> None:
    async with replica(here, clock, run=False) as each:
        each.locks.policy.set("high", "fail_open")
        assert await each.policing.follower.refresh()
        assert each.modes["high"] == "fail_closed"


async def test_each_process_logs_a_switch_once_with_who_and_why(
    here: str, clock: ShiftedClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica(here, clock, name="a", run=False) as a, replica(here, clock, name="b", run=False) as b:
        caplog.clear()
        await a.policing.policy.set("high", "wait", actor="ada", reason="store moves")
        for each in (a, b, a, b):
            await each.policing.follower.refresh()
        lines = [each.message for each in caplog.records if "error policy switched" in each.message]
        assert len(lines) == 2
        assert all("fail_closed to wait by ada: store moves" in each for each in lines)


# Files.


@pytest.mark.requires("R104")
async def test_a_policy_file_reaches_every_process_and_the_history(
    here: str, clock: ShiftedClock, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[risk]\nlow = "wait"\n')
    async with (
        replica(here, clock, name="a", file=file, poll_ns=SLOW, file_ns=NS // 50) as a,
        replica(here, clock, name="b", poll_ns=SLOW) as b,
    ):
        assert a.modes["low"] == b.modes["low"] == "wait"
        edit_policy_file(file, "low", "fail_closed")
        await until(lambda: a.modes["low"] == b.modes["low"] == "fail_closed")
        edit_policy_file(file, "money", "fail_open")
        await until(lambda: b.modes.get("money") == "fail_open")
        file.write_text('[risk]\nlow = "fail_closed"\n')  # money is no longer in the file
        await until(lambda: a.modes["money"] == b.modes["money"] == "fail_closed")
        found = [(each.risk, each.after, each.source) for each in await b.policing.policy.history(3)]
        assert found == [
            ("money", CLOSED, PolicySource.FILE),
            ("money", OPEN, PolicySource.FILE),
            ("low", CLOSED, PolicySource.FILE),
        ]


async def test_the_same_file_on_two_replicas_is_one_word(here: str, clock: ShiftedClock, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[risk]\nlow = "wait"\n')
    async with (
        replica(here, clock, name="a", file=file, run=False) as a,
        replica(here, clock, name="b", file=file, run=False) as b,
    ):
        await a.policing.policy.set("low", "fail_closed", actor="ada", reason="incident")
        edit_policy_file(file, "low", "fail_open")
        for each in (a, b, a, b):
            each.policing.follower.check_file()
            await each.policing.follower.refresh()
        assert a.modes["low"] == b.modes["low"] == "fail_open"
        assert [each.after for each in await a.policing.policy.history(10, "low")] == [OPEN, CLOSED, WAIT, OPEN]
        await a.policing.policy.set("low", "fail_closed", actor="ada", reason="incident again")
        for each in (a, b):
            each.policing.follower.check_file()
            await each.policing.follower.refresh()
        assert a.modes["low"] == b.modes["low"] == "fail_closed"  # the file has said nothing since


async def test_a_file_counts_here_at_once_while_the_database_is_down_and_everywhere_after(
    here: str, clock: ShiftedClock, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[risk]\nhigh = "fail_closed"\n')
    async with replica(here, clock, name="a", file=file, file_ns=NS // 50) as a, replica(here, clock, name="b") as b:
        a.database.down = True
        edit_policy_file(file, "high", "fail_open")
        await until(lambda: a.modes["high"] == "fail_open")
        assert b.modes["high"] == "fail_closed"
        a.database.down = False
        await until(lambda: b.modes["high"] == "fail_open")


async def test_a_file_that_had_to_wait_does_not_undo_what_was_said_since(
    here: str, clock: ShiftedClock, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[risk]\nhigh = "wait"\n')
    async with (
        replica(here, clock, name="a", file=file, run=False) as a,
        replica(here, clock, name="b", run=False) as b,
    ):
        a.database.down = True
        edit_policy_file(file, "high", "fail_open")
        a.policing.follower.check_file()
        assert not await a.policing.follower.refresh()
        clock.move(NS)
        await b.policing.policy.set("high", "fail_closed", actor="ada", reason="duplicates")
        a.database.down = False
        assert await a.policing.follower.refresh()
        assert a.modes["high"] == "fail_closed"


async def test_a_file_that_turns_wrong_changes_nothing_and_one_that_is_wrong_keeps_from_starting(
    here: str, clock: ShiftedClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[risk]\nlow = "wait"\n')
    async with replica(here, clock, file=file, run=False) as each:
        file.write_text("[risk]\nlow = 'sometimes'\n")
        each.policing.follower.check_file()
        assert each.modes["low"] == "wait"
        assert "the policy file was not taken over" in caplog.text
    with pytest.raises(BadInput, match="sometimes"):
        async with replica(here, clock, file=file):
            raise AssertionError("it started")


# Exercises.


@pytest.mark.requires("R103")
async def test_an_exercise_reaches_all_processes_and_comes_before_the_one_of_the_settings(
    here: str, clock: ShiftedClock
) -> None:
    own = parse_exercise("workflow.run", 0.25)
    async with replica(here, clock, name="a", exercises=(own,), run=False) as a, replica(here, clock, name="b") as b:
        assert (a.locks.exercise.current(), b.locks.exercise.current()) == ([own], [])
        begun = await b.policing.policy.begin_exercise("workflow.run", 1, duration=60, actor="ada")
        await until(lambda: b.locks.exercise.current() == [begun.plan])
        await a.policing.follower.refresh()
        assert a.locks.exercise.current() == [begun.plan]
        async with b.locks.lock("k", ttl=30, family="workflow.run", risk="low") as lease:
            assert lease.guaranteed is False
        assert b.locks.statistics().exercised == 1
        # In a process whose clock is past the end it is over, and that of the settings holds again.
        clock.move(60 * NS)
        a.locks.exercise.end("workflow.run")
        await a.policing.follower.refresh()
        assert a.locks.exercise.current() == [own]


# As a plane starts it.


async def test_two_planes_on_one_file_follow_one_policy_and_their_settings_speak_once(tmp_path: Path) -> None:
    settings = Settings(
        database=f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal",
        risk=(("money", OnError.FAIL_OPEN),),
        exercise=ExerciseSettings(family="workflow.run", share=0.5),
    )
    async with (
        open_components(settings, serving=True, instance="a") as a,
        open_components(settings, serving=True, instance="b") as b,
    ):
        assert a.locks.policy.current() == {"high": "fail_closed", "low": "fail_open", "money": "fail_open"}
        assert [each.share for each in b.locks.exercise.current()] == [0.5]
        await a.service.policy.set("money", "fail_closed", actor="ada", reason="r", source=PolicySource.API)
        await until(lambda: b.locks.policy.current()["money"] == "fail_closed")
        found = await b.service.policy.history()
        assert [(each.risk, each.source) for each in found] == [
            ("money", PolicySource.API),
            ("money", PolicySource.START),
            ("high", PolicySource.START),
            ("low", PolicySource.START),
        ]
    async with open_components(settings) as looks:  # a command that only looks says nothing
        assert looks.locks.policy.current()["money"] == "fail_closed"
        assert len(await looks.service.policy.history()) == 4


async def test_following_does_not_outlive_its_block_and_ends_quietly(
    here: str, clock: ShiftedClock, caplog: pytest.LogCaptureFixture
) -> None:
    before = asyncio.all_tasks()
    async with replica(here, clock) as each:
        assert len(asyncio.all_tasks() - before) >= 2
        each.database.down = True
    assert not [task for task in asyncio.all_tasks() - before if "policy" in task.get_name()]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
