"""The error policy of a plane: who may switch what, whose word counts, and what is remembered; on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from holdfast.core.lease.error_policy import OnError
from holdfast.errors import BadInput
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database
from holdfast.plane.policy.model import PolicyConflict, PolicySource
from holdfast.plane.policy.store import BUILT_IN, CHANNEL, PlanePolicy
from holdfast.types import NS
from support.harness.leases import ManualClock

pytestmark = pytest.mark.asyncio

OPEN, CLOSED, WAIT = OnError.FAIL_OPEN, OnError.FAIL_CLOSED, OnError.WAIT


@pytest_asyncio.fixture
async def place(plane_url: str) -> AsyncIterator[Database]:
    opened = open_database(plane_url)
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def policy(place: Database, clock: ManualClock) -> PlanePolicy:
    return PlanePolicy(place, clock)


async def switch(policy: PlanePolicy, risk: str, mode: str, **how: Any) -> bool:
    return (await policy.set(risk, mode, **{"actor": "ada", "reason": "because", **how}))[1]


async def modes(policy: PlanePolicy) -> dict[str, OnError]:
    return {risk: each.mode for risk, each in (await policy.current()).items()}


@pytest.mark.requires("R104")
async def test_every_switch_is_in_the_history_with_who_why_whence_and_when(
    policy: PlanePolicy, clock: ManualClock
) -> None:
    assert (await policy.current(), await policy.history(), await policy.revision()) == ({}, [], 0)
    standing, changed = await policy.set("high", "fail_open", actor="ada", reason="release night")
    assert (standing.risk, standing.mode, standing.revision, standing.since_ns) == ("high", OPEN, 1, clock.wall)
    assert changed
    clock.move(5 * NS)
    await policy.set("low", WAIT, actor="bob", reason="store moves", source=PolicySource.API)
    await policy.set("high", CLOSED, actor="bob", reason="duplicates", source=PolicySource.COMMAND)
    found = [each.as_dict() for each in await policy.history()]
    assert [each["revision"] for each in found] == [3, 2, 1]
    assert found[0] == {
        "revision": 3,
        "risk": "high",
        "before": "fail_open",
        "after": "fail_closed",
        "actor": "bob",
        "reason": "duplicates",
        "source": "command",
        "at_ns": clock.wall,
    }
    assert found[1]["before"] == "fail_closed"  # the mode of a class that was never set
    assert [each.revision for each in await policy.history(1)] == [3]
    assert [each.revision for each in await policy.history(10, "high")] == [3, 1]
    assert [each.revision for each in await policy.history(10, below=3)] == [2, 1]
    assert await modes(policy) == {"high": CLOSED, "low": WAIT}


async def test_a_class_that_does_so_already_is_not_switched_and_keeps_its_word(policy: PlanePolicy) -> None:
    assert await switch(policy, "high", "wait", actor="ada")
    standing, changed = await policy.set("high", "wait", actor="bob", reason="again")
    assert (standing.actor, changed) == ("ada", False)
    assert len(await policy.history()) == 1


async def test_of_many_who_saw_the_same_one_switches(plane_url: str, policy: PlanePolicy, clock: ManualClock) -> None:
    await switch(policy, "high", "fail_open")
    seen = (await policy.current())["high"].revision
    others = [open_database(plane_url) for _ in range(3)]
    try:
        speakers = [PlanePolicy(each, clock) for each in others for _ in range(4)]
        said = await asyncio.gather(
            *(
                each.set("high", CLOSED, actor=f"p{number}", reason="r", expect=seen)
                for number, each in enumerate(speakers)
            ),
            return_exceptions=True,
        )
        assert sum(not isinstance(each, PolicyConflict) for each in said) == 1
        assert all(isinstance(each, tuple | PolicyConflict) for each in said)
    finally:
        for each in others:
            await each.close()
    assert [each.revision for each in await policy.history()] == [2, 1]


async def test_a_look_that_is_outdated_changes_nothing(policy: PlanePolicy) -> None:
    with pytest.raises(PolicyConflict, match="revision 4, now 0"):
        await switch(policy, "new", "wait", expect=4)
    assert await switch(policy, "new", "wait", expect=0)
    with pytest.raises(PolicyConflict) as moved:
        await switch(policy, "new", "fail_open", expect=0)
    assert (moved.value.risk, moved.value.found) == ("new", 1)
    assert await modes(policy) == {"new": WAIT}


async def test_changes_of_different_classes_at_once_are_numbered_without_a_gap(policy: PlanePolicy) -> None:
    await asyncio.gather(*(switch(policy, f"class-{number}", "wait") for number in range(12)))
    assert [each.revision for each in await policy.history()] == list(range(12, 0, -1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"risk": "two words"},
        {"risk": ""},
        {"mode": "open"},
        {"actor": ""},
        {"reason": "  "},
        {"reason": "x" * 501},
        {"reason": "two\nlines"},
        {"expect": -1},
        {"expect": True},
    ],
)
async def test_what_cannot_be_right_is_refused(policy: PlanePolicy, wrong: dict[str, Any]) -> None:
    given = {"risk": "low", "mode": "wait", "actor": "ada", "reason": "because", **wrong}
    with pytest.raises(BadInput):
        await policy.set(given.pop("risk"), given.pop("mode"), **given)
    assert await policy.history() == []


async def test_a_switch_rings(place: Database, policy: PlanePolicy) -> None:
    await policy.prepare()
    listener = place.listen(CHANNEL)
    await switch(policy, "low", "wait")
    assert await listener.wait(60 * NS)
    listener.close()


# Whose word counts.


async def apply_file(
    policy: PlanePolicy, source: PolicySource = PolicySource.START, read_ns: int | None = None, **words: OnError | float
) -> list[str]:
    return await policy.apply_file(words, actor="host", reason="settings", source=source, read_ns=read_ns)


@pytest.mark.requires("R104")
async def test_a_file_speaks_when_it_says_something_new_and_not_at_every_start(policy: PlanePolicy) -> None:
    assert await apply_file(policy, low=OPEN, money=CLOSED) == ["low", "money"]
    assert await apply_file(policy, low=OPEN, money=CLOSED) == []
    await switch(policy, "low", "fail_closed")
    assert await apply_file(policy, low=OPEN, money=CLOSED) == []  # a restart does not undo what was switched since
    assert (await modes(policy))["low"] is CLOSED
    assert await apply_file(policy, low=WAIT, money=CLOSED) == ["low"]  # an edit does: it is the later word
    assert await apply_file(policy, money=OPEN) == ["money"]  # what is not in it is not spoken of
    assert await modes(policy) == {"low": WAIT, "money": OPEN}


async def test_an_edit_that_is_taken_back_is_a_new_word_each_time(policy: PlanePolicy) -> None:
    for mode in (OPEN, CLOSED, OPEN):
        assert await apply_file(policy, low=mode) == ["low"]
    assert [each.after for each in await policy.history()] == [OPEN, CLOSED, OPEN]


async def test_settings_and_policy_file_are_remembered_apart(policy: PlanePolicy) -> None:
    await apply_file(policy, low=OPEN)
    assert await apply_file(policy, PolicySource.FILE, low=WAIT) == ["low"]
    assert await apply_file(policy, low=OPEN) == []
    assert (await policy.current())["low"].source is PolicySource.FILE


async def test_a_word_that_had_to_wait_does_not_overrule_a_later_one(policy: PlanePolicy, clock: ManualClock) -> None:
    await switch(policy, "low", "wait")
    noticed = clock.wall + NS
    clock.move(2 * NS)
    await switch(policy, "low", "fail_closed")
    assert await apply_file(policy, PolicySource.FILE, noticed, low=OPEN) == []
    assert (await modes(policy))["low"] is CLOSED
    assert await apply_file(policy, PolicySource.FILE, clock.wall, low=OPEN) == []  # heard, and remembered as old
    assert await apply_file(policy, PolicySource.FILE, clock.wall, low=WAIT) == ["low"]


@pytest.mark.requires("R74", "R100")
async def test_what_is_built_in_holds_where_nobody_has_said_anything(policy: PlanePolicy) -> None:
    await switch(policy, "low", "fail_closed")
    await policy.write_defaults()
    await policy.write_defaults()
    assert await modes(policy) == {"low": CLOSED, "high": CLOSED}
    assert [(each.risk, each.actor, each.source) for each in await policy.history()] == [
        ("high", "holdfast", PolicySource.START),
        ("low", "ada", PolicySource.COMMAND),
    ]
    assert dict(BUILT_IN) == {"low": OPEN, "high": CLOSED}


# Exercises.


@pytest.mark.requires("R103")
async def test_an_exercise_ends_by_itself_and_is_remembered(policy: PlanePolicy, clock: ManualClock) -> None:
    await policy.write_defaults()
    begun = await policy.begin_exercise("workflow.run", 0.01, duration=600, actor="ada", reason="monthly")
    assert (begun.plan.share, begun.until_ns) == (0.01, clock.wall + 600 * NS)
    assert (await policy.view()).exercises == [begun]
    clock.move(599 * NS)
    again = await policy.begin_exercise("workflow.run", 0.5, duration=60, actor="bob", risk="low")
    assert (await policy.view()).exercises == [again]  # one for each family
    clock.move(60 * NS)
    assert (await policy.view()).exercises == []
    assert [(each.actor, each.ended_by) for each in await policy.exercises()] == [("bob", None), ("ada", "bob")]
    assert not await policy.end_exercise("workflow.run", actor="ada")


@pytest.mark.requires("R103")
async def test_an_exercise_can_be_ended_and_followers_hear_of_it(place: Database, policy: PlanePolicy) -> None:
    await policy.write_defaults()
    await policy.begin_exercise("workflow.run", 1, duration=600, actor="ada")
    before, listener = await policy.revision(), place.listen(CHANNEL)
    assert await policy.end_exercise("workflow.run", actor="bob")
    assert await listener.wait(60 * NS)
    listener.close()
    assert await policy.revision() > before
    assert (await policy.view()).exercises == []


@pytest.mark.requires("R103")
async def test_an_exercise_that_would_be_an_outage_is_refused_unless_forced(policy: PlanePolicy) -> None:
    await policy.write_defaults()
    with pytest.raises(BadInput, match="class high is fail_closed"):
        await policy.begin_exercise("workflow.run", 0.1, duration=600, actor="ada", risk="high")
    for wrong in ({"duration": 0}, {"duration": 1e9}, {"share": 0}, {"family": "a b"}, {"actor": ""}):
        given: dict[str, Any] = {"family": "f", "share": 0.1, "duration": 60, "actor": "ada", **wrong}
        with pytest.raises(BadInput):
            await policy.begin_exercise(given.pop("family"), given.pop("share"), **given)
    assert await policy.exercises() == []
    forced = await policy.begin_exercise("workflow.run", 0.1, duration=600, actor="ada", risk="high", force=True)
    assert forced.plan.forced
