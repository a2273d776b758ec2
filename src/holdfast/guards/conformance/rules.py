"""Guard kit: the rule, one holder after the other. No two steps are concurrent here."""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

from holdfast.guards.conformance.checks import GuardChapter, expect_equal, expect_fenced_out
from holdfast.guards.conformance.environment import GuardWorld

chapter = GuardChapter()
check = chapter.check


@check(proves=("R28", "R34"))
async def rising_fences_are_accepted_in_order(world: GuardWorld) -> None:
    one = await world.open_new()
    other = await world.open(one.resource)
    for fence in (1, 2, 5, 40):
        writer = one if fence % 2 else other
        await writer.overwrite(fence, f"by {fence}")
        expect_equal(await one.look(), (f"by {fence}", fence), f"after a write under fence {fence}")
    expect_equal(await other.enter(41), "by 40", "what was read on entering")
    await other.write(41, "by 41")
    expect_equal(await one.look(), ("by 41", 41), "after a section under fence 41")


@check(proves=("R28",))
async def the_same_fence_writes_as_often_as_it_likes(world: GuardWorld) -> None:
    guarded = await world.open_new()
    for number in range(3):
        await guarded.overwrite(7, f"without a section {number}")
        expect_equal(await guarded.look(), (f"without a section {number}", 7), f"after write {number + 1}")
    expect_equal(await guarded.enter(7), "without a section 2", "what was read on entering")
    for number in range(3):
        await guarded.write(7, f"in a section {number}")
        expect_equal(await guarded.look(), (f"in a section {number}", 7), f"after write {number + 1} of a section")
    other = await world.open(guarded.resource)
    expect_equal(await other.enter(7), "in a section 2", "what was read on entering again, elsewhere")
    await other.write(7, "elsewhere")
    await guarded.write(7, "here again")
    expect_equal(await other.look(), ("here again", 7), "after the same fence has written in two places")


@check(proves=("R28", "R29", "R34", "R47"))
async def a_lower_write_is_refused_and_changes_nothing(world: GuardWorld) -> None:
    newer = await world.open_new()
    older = await world.open(newer.resource)
    await newer.overwrite(5, "newer")
    for fence in (4, 0):
        await expect_fenced_out(older.overwrite(fence, "stale"), fence=fence, seen=5, what="a lower write")
        expect_equal(await newer.look(), ("newer", 5), "value and fence after the refusal")


@check(proves=("R29", "R34"))
async def a_lower_enter_is_refused_and_changes_nothing(world: GuardWorld) -> None:
    newer = await world.open_new()
    older = await world.open(newer.resource)
    await newer.overwrite(5, "newer")
    await expect_fenced_out(older.enter(4), fence=4, seen=5, what="a lower enter")
    expect_equal(await newer.look(), ("newer", 5), "value and fence after the refusal")


@check(proves=("R34", "R47"))
async def a_lower_write_is_refused_after_a_higher_enter(world: GuardWorld) -> None:
    """The read-modify-write: a guard that checks on writes alone loses an acknowledged update here."""
    older = await world.open_new()
    newer = await world.open(older.resource)
    await older.overwrite(1, "10")
    expect_equal(await newer.enter(2), "10", "what the newer holder read")
    await expect_fenced_out(older.overwrite(1, "11"), fence=1, seen=2, what="a write after a higher enter")
    expect_equal(await newer.look(), ("10", 2), "value and fence after the refusal")
    await newer.write(2, "12")
    expect_equal(await older.look(), ("12", 2), "what the newer holder wrote from its read")


@check(proves=("R34",))
async def entering_leaves_the_value_as_it_is(world: GuardWorld) -> None:
    guarded = await world.open_new()
    await guarded.overwrite(3, "value")
    for fence in (3, 4, 9):
        expect_equal(await guarded.enter(fence), "value", f"what was read under fence {fence}")
        expect_equal(await guarded.look(), ("value", fence), f"after entering under fence {fence}")


@check(proves=("R34",))
async def entering_what_does_not_exist_is_remembered(world: GuardWorld) -> None:
    older = await world.open_new()
    newer = await world.open(older.resource)
    expect_equal(await older.look(), (None, None), "an unused resource")
    expect_equal(await newer.enter(2), None, "what was read where there is nothing")
    expect_equal(await older.look(), (None, 2), "value and fence after entering nothing")
    await expect_fenced_out(older.overwrite(1, "stale"), fence=1, seen=2, what="a lower insert after a higher enter")
    await expect_fenced_out(older.enter(1), fence=1, seen=2, what="a lower enter after a higher enter")
    expect_equal(await older.look(), (None, 2), "value and fence after the refusals")
    await newer.write(2, "made")
    expect_equal(await older.look(), ("made", 2), "after the newer holder has made it")


@check(proves=("R29", "R47"))
async def a_section_ends_when_a_newer_holder_enters(world: GuardWorld) -> None:
    older = await world.open_new()
    newer = await world.open(older.resource)
    await older.overwrite(1, "first")
    expect_equal(await older.enter(5), "first", "what the older holder read")
    await older.write(5, "second")
    expect_equal(await newer.enter(6), "second", "what the newer holder read")
    await expect_fenced_out(older.write(5, "stale"), fence=5, seen=6, what="a write in a section that is over")
    expect_equal(await newer.look(), ("second", 6), "value and fence after the refusal")
    await newer.write(6, "third")
    expect_equal(await newer.look(), ("third", 6), "after the newer holder's write")


@check(proves=("R29", "R47"))
async def a_section_ends_when_a_newer_holder_writes(world: GuardWorld) -> None:
    older = await world.open_new()
    newer = await world.open(older.resource)
    expect_equal(await older.enter(5), None, "what the older holder read")
    await newer.overwrite(6, "newer")
    await expect_fenced_out(older.write(5, "stale"), fence=5, seen=6, what="a write in a section that is over")
    expect_equal(await newer.look(), ("newer", 6), "value and fence after the refusal")


@check(proves=("R29",))
async def who_was_refused_stays_refused(world: GuardWorld) -> None:
    newer = await world.open_new()
    older = await world.open(newer.resource)
    await newer.overwrite(9, "newer")
    for _ in range(3):
        await expect_fenced_out(older.enter(8), fence=8, seen=9, what="a lower enter, again")
        await expect_fenced_out(older.overwrite(8, "stale"), fence=8, seen=9, what="a lower write, again")
    expect_equal(await newer.look(), ("newer", 9), "value and fence after the refusals")
    await newer.overwrite(9, "newer still")
    await expect_fenced_out(older.overwrite(8, "stale"), fence=8, seen=9, what="a lower write after an equal one")
    await newer.overwrite(12, "newest")
    await expect_fenced_out(older.overwrite(11, "stale"), fence=11, seen=12, what="a lower write after a higher one")


@check(proves=("R34",))
async def what_was_seen_outlives_every_connection(world: GuardWorld) -> None:
    first = await world.open_new()
    await first.overwrite(3, "kept")
    entered = await world.open_new()
    await entered.enter(4)
    await world.close()
    again = await world.open(first.resource)
    expect_equal(await again.look(), ("kept", 3), "what was written before every connection was closed")
    await expect_fenced_out(again.overwrite(2, "stale"), fence=2, seen=3, what="a lower write after that")
    again = await world.open(entered.resource)
    expect_equal(await again.look(), (None, 4), "what was entered before every connection was closed")
    await expect_fenced_out(again.overwrite(3, "stale"), fence=3, seen=4, what="a lower insert after that")


@check()
async def resources_do_not_share_their_fences(world: GuardWorld) -> None:
    name = world.fresh()
    high, low = await world.open(name), await world.open(f"{name}0")
    await high.overwrite(1000, "high")
    expect_equal(await low.look(), (None, None), "an unused resource")
    expect_equal(await low.enter(1), None, "what was read where there is nothing")
    await low.write(1, "low")
    expect_equal((await high.look(), await low.look()), (("high", 1000), ("low", 1)), "the two resources")


@check(deletes=True, proves=("R29", "R34"))
async def deleting_leaves_a_memory(world: GuardWorld) -> None:
    newer = await world.open_new()
    older = await world.open(newer.resource)
    await older.overwrite(1, "older")
    await newer.delete(5)
    expect_equal(await newer.look(), (None, 5), "value and fence after deleting")
    await expect_fenced_out(older.overwrite(4, "back"), fence=4, seen=5, what="a lower insert of what was deleted")
    await expect_fenced_out(older.enter(4), fence=4, seen=5, what="a lower enter of what was deleted")
    expect_equal(await newer.look(), (None, 5), "value and fence after the refusals")


@check(deletes=True, proves=("R29",))
async def a_lower_delete_is_refused_and_changes_nothing(world: GuardWorld) -> None:
    newer = await world.open_new()
    older = await world.open(newer.resource)
    await newer.overwrite(5, "newer")
    await expect_fenced_out(older.delete(4), fence=4, seen=5, what="a lower delete")
    expect_equal(await newer.look(), ("newer", 5), "value and fence after the refusal")
    await newer.enter(6)
    await expect_fenced_out(older.delete(5), fence=5, seen=6, what="a delete after a higher enter")
    expect_equal(await newer.look(), ("newer", 6), "value and fence after the refusal")


@check(deletes=True)
async def what_was_deleted_can_be_made_again_by_its_deleter_and_by_newer_holders(world: GuardWorld) -> None:
    guarded = await world.open_new()
    await guarded.overwrite(1, "first")
    await guarded.delete(2)
    await guarded.overwrite(2, "second")
    expect_equal(await guarded.look(), ("second", 2), "made again under the same fence")
    await guarded.delete(2)
    expect_equal(await guarded.enter(3), None, "what was read of what was deleted")
    await guarded.write(3, "third")
    expect_equal(await guarded.look(), ("third", 3), "made again under a newer fence")
    await expect_fenced_out(guarded.overwrite(2, "stale"), fence=2, seen=3, what="a lower write after that")


@check(deletes=True, proves=("R29", "R47"))
async def a_section_cannot_bring_back_what_a_newer_holder_deleted(world: GuardWorld) -> None:
    older = await world.open_new()
    newer = await world.open(older.resource)
    await older.overwrite(1, "first")
    expect_equal(await older.enter(1), "first", "what the older holder read")
    await newer.delete(2)
    await expect_fenced_out(older.write(1, "back"), fence=1, seen=2, what="a write in a section that is over")
    expect_equal(await newer.look(), (None, 2), "value and fence after the refusal")
