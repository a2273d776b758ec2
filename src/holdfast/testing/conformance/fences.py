"""Conformance: fences never go back, whatever happens between two grants of one key."""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

from holdfast.testing.conformance.check import Claim, StoreChapter, expect, expect_equal
from holdfast.testing.conformance.environment import CALL_NS, LONG_NS, World
from holdfast.types import Renewal

chapter = StoreChapter()
check = chapter.check

FENCE_MAX = 2**63  # a fence is stored beside the data it guards, in a signed 64-bit column


@check(Claim.FENCED, proves=("R28",))
async def fences_rise_from_grant_to_grant_on_every_connection(world: World) -> None:
    stores = [await world.open() for _ in range(3)]
    key = world.fresh_key()
    last = 0
    for number in range(12):
        store = stores[number % len(stores)]
        ask = world.ask(key)
        grant = await world.grant(store, ask)
        expect(
            last < grant.fence < FENCE_MAX,
            f"fence {grant.fence!r} came after {last}",
        )
        last = grant.fence
        await store.release(key, ask.token, grant.claim, 0, CALL_NS)


@check(Claim.FENCED, proves=("R28",))
async def a_fence_rises_when_a_lease_expires(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    old = await world.grant(store, world.ask(key, world.short_ttl_ns))
    new = await world.until_granted(await world.open(), world.ask(key))
    expect(new.fence > old.fence, f"after an expiry fence {new.fence} came after {old.fence}")


@check(Claim.FENCED, proves=("R28",))
async def a_fence_rises_when_an_operator_breaks_the_lease(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    old = await world.grant(store, world.ask(key))
    record = await store.force_release(key, "kit", "check of the fence", CALL_NS)
    expect(record is not None, "the forced release of a held key left no record")
    if record is not None:
        new = await world.grant(store, world.ask(key))
        expect(
            old.fence < record.fence < new.fence,
            f"grant {old.fence}, forced release {record.fence}, next grant {new.fence} do not rise",
        )


@check(Claim.FENCED)
async def a_fence_rises_after_every_connection_was_closed(world: World) -> None:
    key = world.fresh_key()
    store = await world.open()
    ask = world.ask(key)
    old = await world.grant(store, ask)
    await store.release(key, ask.token, old.claim, 0, CALL_NS)
    await world.close()
    new = await world.grant(await world.open(), world.ask(key))
    expect(new.fence > old.fence, f"after closing every connection fence {new.fence} came after {old.fence}")


@check(Claim.FENCED)
async def each_key_has_rising_fences_while_many_keys_are_used(world: World) -> None:
    store = await world.open()
    keys = [world.fresh_key() for _ in range(5)]
    last = dict.fromkeys(keys, 0)
    for turn in range(4):
        for key in keys if turn % 2 else reversed(keys):
            ask = world.ask(key)
            grant = await world.grant(store, ask)
            expect(grant.fence > last[key], f"key {key!r}: fence {grant.fence} came after {last[key]}")
            last[key] = grant.fence
            await store.release(key, ask.token, grant.claim, 0, CALL_NS)


@check(Claim.FENCED)
async def grants_at_the_same_time_have_different_rising_fences(world: World) -> None:
    stores = [await world.open() for _ in range(6)]
    key = world.fresh_key()

    async def take_turns(number: int) -> list[int]:
        fences = []
        for _ in range(3):
            ask = world.ask(key)
            grant = await world.until_granted(stores[number], ask)
            fences.append(grant.fence)
            await stores[number].release(key, ask.token, grant.claim, 0, CALL_NS)
        return fences

    seen = await world.together([take_turns(number) for number in range(len(stores))])
    for fences in seen:
        expect_equal(fences, sorted(fences), "the fences of one asker, in the order of its grants")
    together = [fence for fences in seen for fence in fences]
    expect_equal(len(set(together)), len(together), "the number of different fences")


@check(Claim.FENCED)
async def a_renewal_keeps_the_fence(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    await store.renew_many([Renewal(ask.key, ask.token, grant.claim, LONG_NS)], CALL_NS)
    holding = await store.inspect(ask.key, CALL_NS)
    expect_equal(holding and holding.fence, grant.fence, "the fence after a renewal")


@check(Claim.FENCED)
async def a_refused_ask_does_not_change_the_fence_of_the_holder(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    grant = await world.grant(store, world.ask(key))
    await world.busy(store, world.ask(key))
    holding = await store.inspect(key, CALL_NS)
    expect_equal(holding and holding.fence, grant.fence, "the fence after a refused ask")
