"""Conformance: who holds a key, who may renew it and who may give it back."""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

from holdfast.testing.conformance.check import StoreChapter, expect, expect_equal
from holdfast.testing.conformance.environment import CALL_NS, LONG_NS, World
from holdfast.types import NS, Busy, Grant, Renewal

chapter = StoreChapter()
check = chapter.check

_BATCH = 300  # above the usual size of a batch, so that a store that splits batches has to put them together again


@check(proves=("R2",))
async def a_free_key_is_granted_to_the_asker(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    expect(isinstance(grant.claim, str), f"the claim of a grant must be text, not {grant.claim!r}")


@check(proves=("R2", "R3", "R86"))
async def a_held_key_is_busy_for_other_callers_on_every_connection(world: World) -> None:
    first, second = await world.open(), await world.open()
    key = world.fresh_key()
    await world.grant(first, world.ask(key))
    await world.busy(first, world.ask(key))
    await world.busy(second, world.ask(key))


@check(proves=("R3",))
async def a_refusal_names_the_holder_and_the_time_it_has_left(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    holder = world.ask(key, LONG_NS)
    await world.grant(store, holder)
    busy = await world.busy(await world.open(), world.ask(key))
    expect_equal(busy.owner, holder.owner, "the owner in a refusal")
    expect(
        busy.remaining_ns is not None and 0 < busy.remaining_ns <= LONG_NS + world.grain_ns,
        f"a refusal must tell the holder's time: the lease is {LONG_NS} ns long, the answer was {busy.remaining_ns!r}",
    )


@check(proves=("R2",))
async def a_repeated_ask_gets_the_same_grant_again(world: World) -> None:
    first, second = await world.open(), await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(first, ask)
    for store in (first, second):
        again = await world.grant(store, ask)
        expect_equal(again.fence, grant.fence, "the fence of a repeated ask")
    expect(await first.release(ask.key, ask.token, grant.claim, 0, CALL_NS), "a lease asked for twice is released once")
    await world.grant(second, world.ask(ask.key))


@check()
async def a_repeated_ask_sets_a_new_expiry(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key(), 20 * NS)
    await world.grant(store, ask)
    await world.grant(store, ask._replace(ttl_ns=200 * NS))
    await _expect_remaining(world, ask.key, more_than=100 * NS, at_most=200 * NS)


@check()
async def one_ask_sent_twice_at_the_same_time_is_one_grant(world: World) -> None:
    stores = [await world.open() for _ in range(4)]
    ask = world.ask(world.fresh_key())
    answers = await world.together([store.acquire(ask, CALL_NS) for store in stores])
    grants = [answer for answer in answers if isinstance(answer, Grant)]
    expect_equal(len(grants), len(stores), "the number of grants for one ask that was sent four times")
    expect_equal(len({grant.fence for grant in grants}), 1, "the number of fences for one ask")


@check(proves=("R2", "R86"))
async def of_many_who_ask_at_the_same_time_exactly_one_is_granted(world: World) -> None:
    stores = [await world.open() for _ in range(8)]
    for _ in range(3):
        key = world.fresh_key()
        asks = [world.ask(key) for _ in stores]
        answers = await world.together([store.acquire(ask, CALL_NS) for store, ask in zip(stores, asks, strict=True)])
        winners = [ask for ask, answer in zip(asks, answers, strict=True) if isinstance(answer, Grant)]
        expect_equal(len(winners), 1, "the number of grants among eight who asked at the same time")
        owners = {answer.owner for answer in answers if isinstance(answer, Busy)}
        expect_equal(owners, {winners[0].owner}, "the owner that the others were told")


@check(proves=("R4",))
async def a_release_frees_the_key_for_the_next(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    expect_equal(await store.release(ask.key, ask.token, grant.claim, 0, CALL_NS), True, "the holder's release")
    expect_equal(await store.inspect(ask.key, CALL_NS), None, "inspect after the release")
    await world.grant(await world.open(), world.ask(ask.key))


@check(proves=("R4", "R17"))
async def a_release_with_another_token_changes_nothing(world: World) -> None:
    store = await world.open()
    holder, other = world.ask(world.fresh_key()), world.ask("other")
    grant = await world.grant(store, holder)
    for claim in (grant.claim, None):
        for keep_ns in (0, NS):
            outcome = await store.release(holder.key, other.token, claim, keep_ns, CALL_NS)
            expect_equal(outcome, False, "a release with a token that is not the holder's")
    await _expect_remaining(world, holder.key, more_than=LONG_NS // 2, at_most=LONG_NS)
    await world.busy(store, world.ask(holder.key))


@check(proves=("R4",))
async def a_release_of_a_free_key_is_refused(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    expect_equal(await store.release(ask.key, ask.token, None, 0, CALL_NS), False, "the release of a free key")
    await world.grant(store, world.ask(ask.key))


@check(proves=("R4",))
async def a_second_release_is_refused(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    expect_equal(await store.release(ask.key, ask.token, grant.claim, 0, CALL_NS), True, "the first release")
    expect_equal(await store.release(ask.key, ask.token, grant.claim, 0, CALL_NS), False, "the second release")


@check(proves=("R1", "R4"))
async def the_token_of_an_earlier_grant_cannot_release_a_later_one(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    early, late = world.ask(key), world.ask(key)
    old = await world.grant(store, early)
    await store.release(key, early.token, old.claim, 0, CALL_NS)
    new = await world.grant(store, late)
    for claim in (old.claim, new.claim, None):
        outcome = await store.release(key, early.token, claim, 0, CALL_NS)
        expect_equal(outcome, False, "a release with the token of an earlier grant")
    await world.busy(store, world.ask(key))
    expect_equal(await store.release(key, late.token, new.claim, 0, CALL_NS), True, "the present holder's release")


@check()
async def a_release_does_not_need_the_claim(world: World) -> None:
    # The reply to an acquire may be lost; a lease that it may have granted must still be released.
    store = await world.open()
    ask = world.ask(world.fresh_key())
    await world.grant(store, ask)
    other = await world.open()
    expect_equal(await other.release(ask.key, ask.token, None, 0, CALL_NS), True, "the release without a claim")
    await world.grant(store, world.ask(ask.key))


@check(proves=("R7",))
async def a_renewal_sets_the_expiry_to_the_given_time_longer_or_shorter(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key(), 20 * NS)
    grant = await world.grant(store, ask)
    for ttl_ns, floor_ns in ((200 * NS, 100 * NS), (30 * NS, 0)):
        outcome = await store.renew_many([Renewal(ask.key, ask.token, grant.claim, ttl_ns)], CALL_NS)
        expect_equal(outcome, [True], f"the renewal for {ttl_ns / NS:g} s")
        await _expect_remaining(world, ask.key, more_than=floor_ns, at_most=ttl_ns)


@check(proves=("R7",))
async def a_renewal_with_another_token_is_refused_and_changes_nothing(world: World) -> None:
    store = await world.open()
    holder, other = world.ask(world.fresh_key(), 20 * NS), world.ask("other")
    grant = await world.grant(store, holder)
    outcome = await store.renew_many([Renewal(holder.key, other.token, grant.claim, 600 * NS)], CALL_NS)
    expect_equal(outcome, [False], "a renewal with a token that is not the holder's")
    await _expect_remaining(world, holder.key, more_than=0, at_most=20 * NS)


@check(proves=("R7",))
async def a_renewal_of_a_free_key_is_refused_and_takes_nothing(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    await store.release(ask.key, ask.token, grant.claim, 0, CALL_NS)
    outcome = await store.renew_many([Renewal(ask.key, ask.token, grant.claim, LONG_NS)], CALL_NS)
    expect_equal(outcome, [False], "the renewal of a released lease")
    expect_equal(await store.inspect(ask.key, CALL_NS), None, "inspect after a refused renewal")


@check()
async def an_empty_batch_of_renewals_is_an_empty_answer(world: World) -> None:
    store = await world.open()
    expect_equal(await store.renew_many([], CALL_NS), [], "the answer to no renewals")


@check(proves=("R7",))
async def a_batch_of_renewals_is_answered_one_by_one_and_in_order(world: World) -> None:
    store = await world.open()
    renewals, wanted = [], []
    for number in range(_BATCH):
        ask = world.ask(world.fresh_key(), 20 * NS)
        claim = ""
        if number % 3 == 0:  # ours
            claim = (await world.grant(store, ask)).claim
        elif number % 3 == 1 and number % 2:  # another holder's
            claim = (await world.grant(store, world.ask(ask.key))).claim
        renewals.append(Renewal(ask.key, ask.token, claim, 200 * NS))
        wanted.append(number % 3 == 0)
    expect_equal(await store.renew_many(renewals, CALL_NS), wanted, "the answers to a mixed batch")
    for number in (0, _BATCH - 3):
        await _expect_remaining(world, renewals[number].key, more_than=100 * NS, at_most=200 * NS)


@check()
async def a_lease_that_stands_twice_in_a_batch_is_renewed(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    renewal = Renewal(ask.key, ask.token, grant.claim, LONG_NS)
    expect_equal(await store.renew_many([renewal, renewal], CALL_NS), [True, True], "one lease twice in a batch")


async def _expect_remaining(world: World, key: str, *, more_than: int, at_most: int) -> None:
    holding = await (await world.open()).inspect(key, CALL_NS)
    left = None if holding is None else holding.remaining_ns
    expect(
        left is not None and more_than < left <= at_most + world.grain_ns,
        f"the time left should be above {more_than} ns and at most {at_most} ns, but it is {left!r}",
    )
