"""Writers at the same time, and the book that is kept about them.

Each writer takes rising fences, numbered by the time at which it took them, as grants are; nothing but the guard keeps
the writers apart, so they overtake each other between any two steps. Everything they were told is in their
`WriterTally`, and `audit` compares the tallies with what is left at the resource, exactly: every acknowledged update is
there, once, in the order of the fences, and nothing of what was refused is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from holdfast.errors import FencedOut
from holdfast.guards.conformance.adapter import OpenedSubject
from holdfast.guards.conformance.checks import expect, expect_equal, shown
from holdfast.guards.conformance.environment import GuardWorld

PAUSE_S = 0.002  # the longest pause between two steps; long enough for another writer to come in between
BACKOFF_S = 0.004  # after a refusal, for each one in a row: the last one to enter wins, so without pauses none would
RUN_S = 10.0  # a writer that is overtaken again and again gives up its quota after this


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """The task of one writer among many."""

    number: int
    of: int
    origin_ns: int  # of the monotonic clock, which all processes of a machine share
    seed: int
    quota: int = 4  # updates that are to be acknowledged


@dataclass(slots=True)
class WriterTally:
    """What one writer did, and what it was told."""

    issued: list[int] = field(default_factory=list)
    entered: list[int] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)  # updates, named FENCE.NUMBER
    refused: list[tuple[int, int, int]] = field(default_factory=list)  # the fence, the one it carries, the one seen
    faults: list[str] = field(default_factory=list)


async def update_in_sections(world: GuardWorld, writer: WriterSettings, guarded: OpenedSubject) -> WriterTally:
    """Read, add a line, write; a few times, with late writes of earlier fences in between."""
    tally, chance, misses = WriterTally(), Random(writer.seed), 0  # noqa: S311 - pauses, not secrets
    deadline = time.monotonic() + RUN_S
    while len(tally.acknowledged) < writer.quota and time.monotonic() < deadline:
        fence = _next_fence(writer, tally)
        try:
            found = await guarded.enter(fence)
            tally.entered.append(fence)
            for number in range(chance.choice((1, 1, 2))):
                await _pause(world, chance, PAUSE_S)
                update = f"{fence}.{number}"
                found = update if found is None else f"{found} {update}"
                await guarded.write(fence, found)
                tally.acknowledged.append(update)
            misses = 0
        except FencedOut as refusal:
            tally.refused.append((fence, refusal.fence, refusal.seen))
            misses += 1
        await _look_for_a_step_back(tally, guarded)
        await _pause(world, chance, BACKOFF_S * min(misses, 10))
        if chance.random() < 0.3:
            await _write_late(tally, guarded)
    await _write_late(tally, guarded)
    return tally


async def write_blindly(world: GuardWorld, writer: WriterSettings, guarded: OpenedSubject) -> WriterTally:
    """Write the own fence, without reading; often so late that a newer writer was faster."""
    tally, chance = WriterTally(), Random(writer.seed)  # noqa: S311 - pauses, not secrets
    deadline = time.monotonic() + RUN_S
    while len(tally.issued) < writer.quota * 10 and time.monotonic() < deadline:
        fence = _next_fence(writer, tally)
        await _pause(world, chance, PAUSE_S * 2)
        await _look_for_a_step_back(tally, guarded)
        try:
            await guarded.overwrite(fence, f"{fence}.0")
            tally.entered.append(fence)
            tally.acknowledged.append(f"{fence}.0")
        except FencedOut as refusal:
            tally.refused.append((fence, refusal.fence, refusal.seen))
        await _look_for_a_step_back(tally, guarded)
    await _write_late(tally, guarded)
    return tally


async def audit_sections(guarded: OpenedSubject, tallies: Sequence[WriterTally]) -> None:
    """Compare what read-modify-writers were told with what is left at the resource."""
    value, fence = await guarded.look()
    updates = [] if value is None else value.split(" ")
    acknowledged = _in_order([each for tally in tallies for each in tally.acknowledged])
    lost = [each for each in acknowledged if each not in set(updates)]
    foreign = [each for each in updates if each not in set(acknowledged)]
    expect(not lost, f"{len(lost)} acknowledged updates are lost: {shown(lost)}; left is {shown(updates)}")
    expect(not foreign, f"what was refused has left a trace: {shown(foreign)}; left is {shown(updates)}")
    expect_equal(updates, acknowledged, "the updates that are left, in the order of their fences")
    _audit(fence, tallies)


async def audit_blind(guarded: OpenedSubject, tallies: Sequence[WriterTally]) -> None:
    """Compare what blind writers were told with what is left at the resource."""
    value, fence = await guarded.look()
    acknowledged = _in_order([each for tally in tallies for each in tally.acknowledged])
    expect_equal(value, acknowledged[-1] if acknowledged else None, "what is left of all the acknowledged writes")
    _audit(fence, tallies)


def _audit(fence: int | None, tallies: Sequence[WriterTally]) -> None:
    faults = [fault for tally in tallies for fault in tally.faults]
    expect(not faults, f"{len(faults)} times: {faults[0] if faults else ''}")
    expect(any(tally.acknowledged for tally in tallies), "no write was acknowledged, though one was always newest")
    expect_equal(fence, max(each for tally in tallies for each in tally.entered), "the fence that is left on top")
    issued = {each for tally in tallies for each in tally.issued}
    for tally in tallies:
        for presented, carried, seen in tally.refused:
            expect_equal(carried, presented, "the fence that a refusal carries")
            expect(seen > presented, f"fence {presented} was refused because of {seen}, which is not newer")
            expect(seen in issued, f"fence {presented} was refused because of {seen}, which no writer ever had")


async def _write_late(tally: WriterTally, guarded: OpenedSubject) -> None:
    """What a holder sent long ago arrives: under the first fence of a writer that has entered under a later one."""
    if len(tally.entered) < 2:
        return
    fence = tally.entered[0]
    try:
        await guarded.overwrite(fence, f"late:{fence}")
    except FencedOut as refusal:
        tally.refused.append((fence, refusal.fence, refusal.seen))
    else:
        tally.faults.append(f"a late write under {fence} was accepted although {tally.entered[-1]} had entered")


async def _look_for_a_step_back(tally: WriterTally, guarded: OpenedSubject) -> None:
    _, fence = await guarded.look()
    known = max((*tally.entered, *(seen for _, _, seen in tally.refused)), default=None)
    if known is not None and (fence is None or fence < known):
        tally.faults.append(f"the fence on top was {fence} after {known} had been seen")


def _next_fence(writer: WriterSettings, tally: WriterTally) -> int:
    microseconds = (time.monotonic_ns() - writer.origin_ns) // 1000 + 1
    fence = microseconds * writer.of + writer.number
    if tally.issued and fence <= tally.issued[-1]:
        fence = tally.issued[-1] + writer.of
    tally.issued.append(fence)
    return fence


async def _pause(world: GuardWorld, chance: Random, longest_s: float) -> None:
    """None at all half of the time: what follows immediately is as important as what comes late."""
    if chance.random() < 0.5:
        await world.sleep(chance.random() * longest_s)


def _in_order(updates: Sequence[str]) -> list[str]:
    return sorted(updates, key=lambda update: tuple(int(part) for part in update.split(".")))
