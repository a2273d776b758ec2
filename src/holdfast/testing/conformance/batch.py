"""Conformance: many keys in one request, where a store offers that. Each gets the result of a single request."""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

from typing import cast

from holdfast.core.ports import AcquiresMany
from holdfast.testing.conformance.check import Claim, StoreChapter, expect, expect_equal
from holdfast.testing.conformance.environment import CALL_NS, LONG_NS, World
from holdfast.types import AcquireRequest, Busy, Grant

chapter = StoreChapter()
check = chapter.check

_MANY = 40


async def _open(world: World) -> AcquiresMany:
    return cast("AcquiresMany", await world.open())


async def _granted(world: World, asks: list[AcquireRequest], store: AcquiresMany | None = None) -> list[Grant]:
    answers = await (store or await _open(world)).acquire_many(asks, CALL_NS)
    expect_equal(len(answers), len(asks), "the number of answers")
    grants = [answer for answer in answers if isinstance(answer, Grant)]
    expect_equal(len(grants), len(asks), "the number of grants for keys that were free")
    return grants


@check(Claim.MANY, proves=("R2",))
async def many_free_keys_are_granted_in_the_order_of_the_asking(world: World) -> None:
    asks = [world.ask(world.fresh_key()) for _ in range(_MANY)]
    grants = await _granted(world, asks)
    expect_equal(
        [(each.key, each.token) for each in grants], [(each.key, each.token) for each in asks], "whose they are"
    )
    store = await world.open()
    for ask, grant in zip(asks, grants, strict=True):
        await world.busy(store, world.ask(ask.key))
        again = await world.grant(store, ask)
        expect_equal(again.fence, grant.fence, "the fence of an ask that is repeated alone")


@check(Claim.MANY, proves=("R2", "R3"))
async def of_many_keys_only_those_that_are_held_are_busy(world: World) -> None:
    keys = [world.fresh_key() for _ in range(_MANY)]
    store = await world.open()
    for key in keys[::2]:
        await world.grant(store, world.ask(key, LONG_NS))
    answers = await (await _open(world)).acquire_many([world.ask(key) for key in keys], CALL_NS)
    expect_equal([isinstance(each, Busy) for each in answers], [at % 2 == 0 for at in range(_MANY)], "who is refused")
    for answer in answers[::2]:
        expect(
            isinstance(answer, Busy) and answer.owner and answer.remaining_ns and answer.remaining_ns > 0,
            f"a refusal among many must name the holder and its time, as one does: {answer!r}",
        )


@check(Claim.MANY, proves=("R1",))
async def keys_that_are_asked_for_together_have_fences_above_all_earlier_ones(world: World) -> None:
    keys = [world.fresh_key() for _ in range(_MANY)]
    store = await world.open()
    last = 0
    for key in keys:
        ask = world.ask(key)
        grant = await world.grant(store, ask)
        last = max(last, grant.fence)
        await store.release(key, ask.token, grant.claim, 0, CALL_NS)
    first = await _granted(world, [world.ask(key) for key in keys])
    expect(min(each.fence for each in first) > last, "a fence among many is not above those that were there before")
    for grant in first:
        await store.release(grant.key, grant.token, grant.claim, 0, CALL_NS)
    second = await _granted(world, [world.ask(key) for key in keys])
    went_back = [new for old, new in zip(first, second, strict=True) if new.fence <= old.fence]
    expect(not went_back, f"{len(went_back)} fences of {_MANY} went back")


@check(Claim.MANY)
async def an_ask_for_many_that_is_repeated_gets_the_same_grants(world: World) -> None:
    asks = [world.ask(world.fresh_key()) for _ in range(_MANY)]
    first, second = await _granted(world, asks), await _granted(world, asks)
    expect_equal([each.fence for each in second], [each.fence for each in first], "the fences of a repeated ask")


@check(Claim.MANY)
async def a_key_that_ran_out_is_granted_among_many(world: World) -> None:
    store = await world.open()
    old = await world.grant(store, world.ask(world.fresh_key(), world.short_ttl_ns))
    other = await world.open()
    await world.until_free(other, old.key)  # on some stores each client finds out alone
    (grant, _) = await _granted(world, [world.ask(old.key), world.ask(world.fresh_key())], cast("AcquiresMany", other))
    expect(grant.fence > old.fence, f"the fence {grant.fence} is not above {old.fence}")


@check(Claim.MANY, proves=("R4", "R26"))
async def of_many_releases_only_those_of_the_token_take_effect(world: World) -> None:
    asks = [world.ask(world.fresh_key()) for _ in range(_MANY)]
    grants = await _granted(world, asks)
    foreign = [each._replace(token=world.ask(each.key).token, claim="") for each in grants[::2]]
    mixed = [foreign[at // 2] if at % 2 == 0 else grants[at] for at in range(_MANY)]
    answers = await (await _open(world)).release_many(mixed, CALL_NS)
    expect_equal(answers, [at % 2 == 1 for at in range(_MANY)], "what is said of each release")
    store = await world.open()
    for at, grant in enumerate(grants):
        if at % 2 == 0:
            await world.busy(store, world.ask(grant.key))
        else:
            await world.grant(store, world.ask(grant.key))


@check(Claim.MANY)
async def a_second_release_of_many_says_that_they_are_not_ours(world: World) -> None:
    grants = await _granted(world, [world.ask(world.fresh_key()) for _ in range(3)])
    store = await _open(world)
    expect_equal(await store.release_many(grants, CALL_NS), [True] * 3, "the first release")
    expect_equal(await store.release_many(grants, CALL_NS), [False] * 3, "the second release")
