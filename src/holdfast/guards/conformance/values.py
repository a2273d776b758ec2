"""Guard kit: fences at the edges of what numbers can hold, things that are no fences, and values that travel badly."""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import holdfast
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.guards.conformance.adapter import OpenedSubject
from holdfast.guards.conformance.checks import GuardChapter, Violation, expect_equal, expect_fenced_out, shown
from holdfast.guards.conformance.environment import GuardWorld

chapter = GuardChapter()
check = chapter.check

# Neighbours that fall into one, or change places, when a fence is kept as a float, as text, or in too few bits.
NEIGHBOURS = (
    *((0, 1), (9, 10), (99, 100), (2**31 - 1, 2**31), (2**32 - 1, 2**32)),
    *((2**53 - 1, 2**53), (2**53, 2**53 + 1), (2**53 + 1, 2**53 + 2), (10**18 - 1, 10**18)),
    *((FENCE_MAX - 1, FENCE_MAX), (FENCE_MAX // 2, FENCE_MAX // 2 + 1)),
)

TEXTS = (
    "",
    " leading and trailing \t",
    "two\nlines\r\nand a third",
    "ünï — 漢字 — \u2028 — 🙂 — e\u0301",
    "'); DROP TABLE invoices; -- \" ` $1 %s {0} :name ?",
    '\\n \\u0000 "json" [1, null] 0x00 None NULL nil',
    "007",
)
LARGE_CHARS = 200_000


@dataclass(frozen=True, slots=True)
class NotALease:
    """Looks like a lease and is none; its fence is not one either."""

    key: str
    fence: object
    owner: str = "kit"


NOT_FENCES: tuple[object, ...] = ("17", b"17", 17.0, float("inf"), float("nan"), True, None, -1, FENCE_MAX + 1, [17])


@check(proves=("R28",))
async def neighbouring_fences_are_told_apart_over_the_whole_range(world: GuardWorld) -> None:
    for low, high in NEIGHBOURS:
        older = await world.open_new()
        newer = await world.open(older.resource)
        await older.overwrite(low, "low")
        expect_equal(await older.look(), ("low", low), f"after a write under {low}")
        expect_equal(await newer.enter(high), "low", f"what was read under {high}")
        expect_equal(await older.look(), ("low", high), f"after entering under {high}")
        await expect_fenced_out(older.overwrite(low, "stale"), fence=low, seen=high, what="a write")
        await expect_fenced_out(older.enter(low), fence=low, seen=high, what="an enter")
        await newer.write(high, "high")
        expect_equal(await older.look(), ("high", high), f"after a write under {high}")
        await world.close()


@check()
async def a_first_fence_of_0_is_a_fence(world: GuardWorld) -> None:
    guarded = await world.open_new()
    expect_equal(await guarded.enter(0), None, "what was read where there is nothing")
    expect_equal(await guarded.look(), (None, 0), "after entering under fence 0")
    await guarded.write(0, "by 0")
    expect_equal(await guarded.look(), ("by 0", 0), "after a write under fence 0")
    await guarded.overwrite(0, "by 0 again")
    await guarded.overwrite(1, "by 1")
    await expect_fenced_out(guarded.overwrite(0, "stale"), fence=0, seen=1, what="a write")


@check(proves=("R28", "R34"))
async def what_is_not_a_fence_is_refused_and_changes_nothing(world: GuardWorld) -> None:
    fresh, met = await world.open_new(), await world.open_new()
    await met.overwrite(5, "kept")
    for fence in NOT_FENCES:
        for guarded in (fresh, met):
            await _expect_unacceptable(guarded, NotALease(guarded.resource, fence), f"the fence {fence!r}")
        expect_equal(await fresh.look(), (None, None), f"a resource that has met only the fence {fence!r}")
        expect_equal(await met.look(), ("kept", 5), f"value and fence after the fence {fence!r}")
    await met.overwrite(5, "usable")


@check(proves=("R28", "R34"))
async def what_is_not_a_lease_is_refused_and_changes_nothing(world: GuardWorld) -> None:
    guarded = await world.open_new()
    await guarded.overwrite(5, "kept")
    for thing in (None, 17, "17", 17.5, True, object(), {"key": guarded.resource, "fence": 17}, (guarded.resource, 17)):
        await _expect_unacceptable(guarded, thing, f"{type(thing).__name__} for a lease")
        expect_equal(await guarded.look(), ("kept", 5), f"value and fence after {type(thing).__name__} for a lease")


@check(proves=("R34",))
async def a_lease_without_a_fence_is_refused_by_default(world: GuardWorld) -> None:
    guarded = await world.open_new()
    await guarded.overwrite(5, "kept")
    with _degraded(guarded.resource) as lease:
        await _expect_unacceptable(guarded, lease, "a degraded lease")
    expect_equal(await guarded.look(), ("kept", 5), "value and fence after a degraded lease")


@check(proves=("R34", "R57"))
async def the_fence_of_a_held_lease_is_what_is_remembered(world: GuardWorld) -> None:
    guarded = await world.open_new()
    with holdfast.connect(f"memory://{guarded.resource}") as locks:
        lock = locks.lock(guarded.resource, ttl=600)
        with lock as lease:
            first = lease.fence
            await guarded.step("enter", lease)
            await guarded.step("write", lease, "by a lease")
            expect_equal(await guarded.look(), ("by a lease", first), "value and fence after a section")
        with lock as lease:
            await guarded.step("overwrite", lease, "by the next")
            expect_equal(await guarded.look(), ("by the next", lease.fence), "value and fence after the next grant")
            await expect_fenced_out(guarded.overwrite(first, "stale"), fence=first, seen=lease.fence, what="a write")


@check()
async def a_value_comes_back_as_it_was_written(world: GuardWorld) -> None:
    guarded = await world.open_new()
    for fence, text in enumerate((*TEXTS, "häuſer 🙂 " * (LARGE_CHARS // 9))):
        await guarded.overwrite(fence, text)
        expect_equal(await guarded.look(), (text, fence), "what was written without a section")
        expect_equal(await guarded.enter(fence), text, "what was read on entering")
        await guarded.write(fence, f"{text}.")
        expect_equal(await guarded.look(), (f"{text}.", fence), "what was written in a section")


async def _expect_unacceptable(guarded: OpenedSubject, bearer: object, what: str) -> None:
    """Insist that no step takes this for a lease. Whatever says so is right, if the argument is what it is about."""
    for step, values in (("enter", ()), ("overwrite", ("stale",))):
        try:
            await guarded.step(step, bearer, *values)
        except (TypeError, ValueError, AttributeError):  # BadInput is a ValueError, Unfenced a TypeError
            continue
        raise Violation(f"{what} was accepted by {step}; afterwards: {shown(await guarded.look())}")


@contextlib.contextmanager
def _degraded(key: str) -> Iterator[object]:
    """A lease without the store, under a policy that allows it: the fallback path, exercised on purpose."""
    with holdfast.connect("memory://", policy={"kit": "fail_open"}) as locks:
        locks.exercise.begin("kit", 1)
        lease = locks.lock(key, ttl=600, family="kit", risk="kit").acquire()
        try:
            yield lease
        finally:
            lease.release()
