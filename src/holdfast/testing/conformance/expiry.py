"""Conformance: what the passing of time does to a lease, and what it does not."""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

from holdfast.core.lease.timing import drift_ns
from holdfast.testing.conformance.check import StoreChapter, expect, expect_equal
from holdfast.testing.conformance.environment import CALL_NS, LONG_NS, World
from holdfast.types import NS, Renewal

chapter = StoreChapter()
check = chapter.check


@check(proves=("R87", "R115"))
async def an_expired_key_is_given_to_the_next_and_not_before_its_time(world: World) -> None:
    store, other = await world.open(), await world.open()
    key = world.fresh_key()
    sent_ns = world.now_ns()
    await world.grant(store, world.ask(key, world.short_ttl_ns))
    await world.until_granted(other, world.ask(key))
    held_ns = world.now_ns() - sent_ns
    expect(
        held_ns >= _least_ns(world),
        f"a lease of {world.short_ttl_ns} ns was given away {held_ns} ns after it had been asked for",
    )


@check()
async def an_expired_key_is_shown_as_free(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    await world.grant(store, world.ask(key, world.short_ttl_ns))
    await world.until_free(store, key)
    expect_equal(await store.holdings(key, 10, CALL_NS), [], "the holdings of an expired key")


@check(proves=("R18",))
async def an_expired_lease_cannot_be_renewed(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key(), world.short_ttl_ns)
    grant = await world.grant(store, ask)
    await world.until_free(store, ask.key)
    outcome = await store.renew_many([Renewal(ask.key, ask.token, grant.claim, LONG_NS)], CALL_NS)
    expect_equal(outcome, [False], "the renewal of an expired lease")
    expect_equal(await store.inspect(ask.key, CALL_NS), None, "inspect after a refused renewal")
    await world.grant(store, world.ask(ask.key))


@check(proves=("R4",))
async def an_expired_lease_cannot_be_released(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key(), world.short_ttl_ns)
    grant = await world.grant(store, ask)
    await world.until_free(store, ask.key)
    outcome = await store.release(ask.key, ask.token, grant.claim, 0, CALL_NS)
    expect_equal(outcome, False, "the release of an expired lease")


@check(proves=("R1", "R4", "R7", "R19"))
async def a_stale_owner_can_neither_release_nor_renew_the_new_owners_lease(world: World) -> None:
    first, second = await world.open(), await world.open()
    key = world.fresh_key()
    stale, present = world.ask(key, world.short_ttl_ns), world.ask(key, 20 * NS)
    old = await world.grant(first, stale)
    new = await world.until_granted(second, present)
    for claim in (old.claim, new.claim, None):
        outcome = await first.release(key, stale.token, claim, 0, CALL_NS)
        expect_equal(outcome, False, "the release of a stale owner")
    outcomes = await first.renew_many([Renewal(key, stale.token, old.claim, 600 * NS)], CALL_NS)
    expect_equal(outcomes, [False], "the renewal of a stale owner")
    holding = await first.inspect(key, CALL_NS)
    expect(holding is not None, "the new owner's lease is gone after the stale owner's release")
    if holding is not None and holding.remaining_ns is not None:
        expect_equal(holding.owner, present.owner, "the owner after the stale owner's release")
        expect(holding.remaining_ns <= 20 * NS + world.grain_ns, "the stale owner made the new owner's lease longer")
    expect_equal(await second.release(key, present.token, new.claim, 0, CALL_NS), True, "the new owner's release")


@check(proves=("R89",))
async def a_renewed_lease_outlives_its_first_time(world: World) -> None:
    store, other = await world.open(), await world.open()
    ask = world.ask(world.fresh_key(), 10 * world.short_ttl_ns)
    grant = await world.grant(store, ask)
    renewed = await store.renew_many([Renewal(ask.key, ask.token, grant.claim, LONG_NS)], CALL_NS)
    expect_equal(renewed, [True], "the renewal in time")
    await world.sleep(11 * world.short_ttl_ns)
    await world.busy(other, world.ask(ask.key))


@check()
async def the_same_ask_after_its_expiry_is_a_new_grant(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key(), world.short_ttl_ns)
    old = await world.grant(store, ask)
    await world.until_free(store, ask.key)
    new = await world.grant(store, ask)
    if store.capabilities.guarantee == "fenced":
        expect(new.fence > old.fence, f"a new grant must have a new fence: {old.fence} was followed by {new.fence}")


@check(proves=("R54",))
async def a_kept_key_stays_busy_after_its_release(world: World) -> None:
    store, other = await world.open(), await world.open()
    ask = world.ask(world.fresh_key(), 600 * NS)
    grant = await world.grant(store, ask)
    outcome = await store.release(ask.key, ask.token, grant.claim, 20 * NS, CALL_NS)
    expect_equal(outcome, True, "a release that keeps the key")
    busy = await world.busy(other, world.ask(ask.key))
    expect(
        busy.remaining_ns is None or busy.remaining_ns <= 20 * NS + world.grain_ns,
        f"the key is kept for 20 s, but a waiter is told {busy.remaining_ns} ns",
    )


@check()
async def a_late_renewal_does_not_lengthen_the_time_a_key_is_kept(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key(), 600 * NS)
    grant = await world.grant(store, ask)
    await store.release(ask.key, ask.token, grant.claim, 20 * NS, CALL_NS)
    await store.renew_many([Renewal(ask.key, ask.token, grant.claim, 600 * NS)], CALL_NS)
    holding = await store.inspect(ask.key, CALL_NS)
    left = None if holding is None else holding.remaining_ns
    expect(left is None or left <= 20 * NS + world.grain_ns, f"a key that is kept for 20 s is now kept for {left} ns")


@check()
async def a_kept_key_is_free_when_its_time_is_over_and_not_before(world: World) -> None:
    store, other = await world.open(), await world.open()
    ask = world.ask(world.fresh_key(), 600 * NS)
    grant = await world.grant(store, ask)
    sent_ns = world.now_ns()
    outcome = await store.release(ask.key, ask.token, grant.claim, world.short_ttl_ns, CALL_NS)
    expect_equal(outcome, True, "a release that keeps the key")
    await world.until_granted(other, world.ask(ask.key))
    kept_ns = world.now_ns() - sent_ns
    expect(kept_ns >= _least_ns(world), f"a key kept for {world.short_ttl_ns} ns was given away after {kept_ns} ns")


def _least_ns(world: World) -> int:
    """How long a short lease lasts at the least: holders allow for as much drift, so a store may be early by it."""
    return world.short_ttl_ns - drift_ns(world.short_ttl_ns)
