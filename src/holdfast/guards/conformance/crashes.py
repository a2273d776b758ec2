"""Guard kit: a writer dies between two steps. Afterwards value and fence fit together, and others can continue.

A guard that marks its moments (`holdfast.core.failpoints`) is killed at each one that it reaches; every guard is
killed from outside as well, at moments of chance, while it writes as fast as it can. A killed process is not a failed
disk: what a guard promises about power failures this cannot show.
"""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeAlias

from holdfast.core import failpoints
from holdfast.errors import FencedOut
from holdfast.guards.conformance.adapter import Factory, OpenedSubject
from holdfast.guards.conformance.checks import GuardChapter, expect, expect_equal, expect_fenced_out, shown
from holdfast.guards.conformance.environment import GuardWorld, world_of
from holdfast.guards.conformance.subprocesses import ParentProcess, nursery

chapter = GuardChapter()
check = chapter.check

Say: TypeAlias = Callable[[str], None]

OLD, NEW, LATER = 10, 20, 30  # the fences of the one before, of the one who dies, and of the one after
KILLS = 20
KILL_AFTER_S = 0.03
PADDING = "0123456789abcdef" * 256  # long enough for a write to be torn


@dataclass(frozen=True, slots=True)
class CrashStep:
    """What the victim does, and what may be left of it."""

    verb: str  # section, overwrite or delete
    exists: bool  # whether there was something before

    @property
    def before(self) -> tuple[str | None, int | None]:
        """Value and fence before the step."""
        return ("old", OLD) if self.exists else (None, None)

    @property
    def after(self) -> tuple[str | None, int | None]:
        """Value and fence after it."""
        return (None if self.verb == "delete" else "new", NEW)

    @property
    def allowed(self) -> tuple[tuple[str | None, int | None], ...]:
        """Nothing done, only the fence registered, or all done: never a new value under an old fence."""
        return (self.before, (self.before[0], NEW), self.after)

    def __str__(self) -> str:
        return f"{self.verb} of {'something' if self.exists else 'nothing'}"


WRITES = (
    CrashStep("section", True),
    CrashStep("section", False),
    CrashStep("overwrite", True),
    CrashStep("overwrite", False),
)


@check(processes=True, proves=("R34",))
async def a_writer_that_dies_between_two_steps_leaves_value_and_fence_consistent(world: GuardWorld) -> None:
    with nursery(world.factory, world.patience_s) as nurse:
        for step in WRITES:
            await _die_everywhere(world, nurse, step)


@check(processes=True, deletes=True, proves=("R34",))
async def a_deleter_that_dies_between_two_steps_leaves_value_and_fence_consistent(world: GuardWorld) -> None:
    with nursery(world.factory, world.patience_s) as nurse:
        await _die_everywhere(world, nurse, CrashStep("delete", True))


@check(processes=True, proves=("R34",))
async def a_writer_that_is_killed_at_any_moment_loses_nothing_that_was_acknowledged(world: GuardWorld) -> None:
    resource, fence, chance = world.fresh(), 1, Random()  # noqa: S311 - moments, not secrets
    with nursery(world.factory, world.patience_s) as nurse:
        for _ in range(KILLS):
            loop = partial(_write_on, world.factory, world.asynchronous, resource, fence)
            life = nurse.raise_one(loop, kill_after_s=chance.random() * KILL_AFTER_S)
            expect(life.killed, "the writer ended before it was killed")
            acknowledged = int(life.said[-1])
            [fence] = await world.together([world.borrow(resource, partial(_survey, acknowledged))])


async def _die_everywhere(world: GuardWorld, nurse: ParentProcess, step: CrashStep) -> None:
    """See which moments the step passes, and then die at each of them, at a resource of its own."""
    resource = await _prepared(world, step)
    life = nurse.raise_one(partial(_do, world.factory, world.asynchronous, resource, step, None))
    expect(not life.killed, f"{step}: the process died of it")
    await world.together([world.borrow(resource, partial(_go_on, step, (step.after,), "the end"))])
    for number, point in enumerate(life.said):
        resource = await _prepared(world, step)
        life = nurse.raise_one(partial(_do, world.factory, world.asynchronous, resource, step, number))
        expect(life.killed, f"{step}: the moment {point!r} was not reached a second time")
        # In company, because that has a limit: a lock that the dead one left behind must not stop the next forever.
        await world.together([world.borrow(resource, partial(_go_on, step, step.allowed, point))])


async def _prepared(world: GuardWorld, step: CrashStep) -> str:
    resource = world.fresh()
    if step.exists:
        await world.borrow(resource, lambda guarded: guarded.overwrite(OLD, "old"))
    return resource


async def _go_on(
    step: CrashStep, allowed: tuple[tuple[str | None, int | None], ...], point: str, guarded: OpenedSubject
) -> None:
    """What is left is one of what may be, older holders stay out, and a newer one continues from there."""
    what = f"{step}, killed at {point}"
    found = await guarded.look()
    expect(found in allowed, f"{what}: value and fence are {shown(found)}, not one of {shown(allowed)}")
    value, fence = found
    if fence is not None:
        await expect_fenced_out(guarded.overwrite(fence - 1, "stale"), fence=fence - 1, seen=fence, what=what)
        await expect_fenced_out(guarded.enter(fence - 1), fence=fence - 1, seen=fence, what=what)
        expect_equal(await guarded.look(), found, f"{what}: value and fence after the refusals")
    expect_equal(await guarded.enter(LATER), value, f"{what}: what the next holder read")
    await guarded.write(LATER, "later")
    expect_equal(await guarded.look(), ("later", LATER), f"{what}: after the next holder's write")


def _do(factory: Factory, asynchronous: bool, resource: str, step: CrashStep, die_at: int | None, say: Say) -> None:
    """Be the victim: say each moment that is reached, and die at the one with this number."""
    reached: list[str] = []

    def at(point: str) -> None:
        reached.append(point)
        say(point)
        if die_at == len(reached) - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    async def act(guarded: OpenedSubject) -> None:
        with ExitStack() as armed:
            for point in failpoints.points("guard"):
                armed.enter_context(failpoints.armed(point.name, partial(at, point.name)))
            if step.verb == "section":
                await guarded.enter(NEW)
                await guarded.write(NEW, "new")
            elif step.verb == "overwrite":
                await guarded.overwrite(NEW, "new")
            else:
                await guarded.delete(NEW)

    world = world_of(factory, asynchronous=asynchronous)
    world.drive(world.borrow(resource, act))


def _write_on(factory: Factory, asynchronous: bool, resource: str, first: int, say: Say) -> None:
    """Be the victim: write as fast as possible under rising fences, and say which writes were acknowledged."""

    async def act(guarded: OpenedSubject) -> None:
        fence = first
        while True:
            if fence % 3:
                await guarded.overwrite(fence, f"{fence} {PADDING} {fence}")
            else:
                await guarded.enter(fence)
                await guarded.write(fence, f"{fence} {PADDING} {fence}")
            say(str(fence))
            fence += 1

    world = world_of(factory, asynchronous=asynchronous)
    world.drive(world.borrow(resource, act))


async def _survey(acknowledged: int, guarded: OpenedSubject) -> int:
    """What a killed writer has left; returns the fence with which the next one may begin.

    The write that it was about to make may have been sent, and a server finishes what it was sent by one who is gone:
    it can still land while we look. A fence above it ends that.
    """
    last = acknowledged + 1
    value, fence = await guarded.look()
    written = _whole(value)
    expect(written >= acknowledged, f"the acknowledged write {acknowledged} is lost; the value is of {written}")
    expect(written <= last, f"the value is of {written}, but only {acknowledged} had been acknowledged")
    expect(fence is not None and fence >= written, f"the value of {written} lies under the fence {fence}")
    newest = written if fence is None else fence
    expect(newest <= last, f"the fence is {newest}, but {acknowledged} was the last acknowledged")
    try:
        await guarded.overwrite(newest - 1, "stale")
    except FencedOut as refusal:
        told = (refusal.fence, refusal.seen)
        expect(
            told in {(newest - 1, newest), (newest - 1, last)}, f"refused with {shown(told)}; {newest} had been seen"
        )
    else:
        expect(False, f"fence {newest - 1} was accepted although {newest} had been seen")
    read = _whole(await guarded.enter(last + 1))
    expect(read in {written, last}, f"the next holder read the value of {read}, after that of {written} was seen")
    return last + 1


def _whole(value: str | None) -> int:
    """The fence that a value carries at both ends: all of it is of one write."""
    found = re.fullmatch(rf"(\d+) {PADDING} (\d+)", value or "")
    expect(found is not None and found[1] == found[2], f"the value is torn: {shown(value)}")
    return int(found[1]) if found else 0
