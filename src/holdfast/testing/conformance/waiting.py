"""Conformance: those who wait: places in the queue of a fair lock, and ears at a key."""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

from holdfast.core.ports import Store, Watch
from holdfast.testing.conformance.check import Claim, StoreChapter, Violation, expect, expect_equal
from holdfast.testing.conformance.environment import CALL_NS, LONG_NS, World
from holdfast.types import MS, AcquireRequest, Grant

chapter = StoreChapter()
check = chapter.check


@check(Claim.FAIR)
async def a_ticket_on_a_free_key_is_granted_immediately(world: World) -> None:
    store = await world.open()
    await world.grant(store, world.ask(world.fresh_key(), ticket="first"))


@check(Claim.FAIR)
async def tickets_are_served_in_the_order_of_their_arrival(world: World) -> None:
    stores = [await world.open() for _ in range(2)]
    key = world.fresh_key()
    holder = world.ask(key)
    grant = await world.grant(stores[0], holder)
    line = [world.ask(key, ticket=f"ticket-{number}") for number in (3, 1, 2)]  # names do not decide, arrival does
    for place, ask in enumerate(line):
        busy = await world.busy(stores[place % 2], ask)
        expect_equal(busy.ahead, place, "the number of tickets ahead")
    while line:
        expect(
            await stores[0].release(key, holder.token, grant.claim, 0, CALL_NS),
            "the holder could not give the key back",
        )
        for place, ask in reversed([*enumerate(line)][1:]):
            busy = await world.busy(stores[0], ask)
            expect_equal(busy.ahead, place, "the number of tickets ahead, with the key free")
        holder = line.pop(0)
        grant = await world.grant(stores[1], holder)


@check(Claim.FAIR)
async def an_ask_that_is_repeated_keeps_its_place(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    holder = world.ask(key)
    grant = await world.grant(store, holder)
    first, second = world.ask(key, ticket="a"), world.ask(key, ticket="b")
    for _ in range(3):
        expect_equal((await world.busy(store, first)).ahead, 0, "the number of tickets ahead of the first")
        expect_equal((await world.busy(store, second)).ahead, 1, "the number of tickets ahead of the second")
    await store.release(key, holder.token, grant.claim, 0, CALL_NS)
    await world.busy(store, second)
    await world.grant(store, first)


@check(Claim.FAIR)
async def a_granted_ticket_leaves_the_queue_even_when_its_ask_is_repeated(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    first, second = world.ask(key, ticket="a"), world.ask(key, ticket="b")
    grant = await world.grant(store, first)
    expect_equal((await world.grant(store, first)).fence, grant.fence, "the fence of a repeated ask")
    expect_equal((await world.busy(store, second)).ahead, 0, "the number of tickets ahead")
    await store.release(key, first.token, grant.claim, 0, CALL_NS)
    await world.grant(store, second)


@check(Claim.FAIR)
async def a_ticket_that_expired_does_not_hold_up_the_queue(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    holder = world.ask(key)
    grant = await world.grant(store, holder)
    dead = world.ask(key, ticket="dead", ticket_ttl_ns=world.short_ttl_ns)
    living = world.ask(key, ticket="living")
    await world.busy(store, dead)
    await world.busy(store, living)
    await store.release(key, holder.token, grant.claim, 0, CALL_NS)
    await world.until_granted(await world.open(), living)
    expect_equal((await world.busy(store, dead)).ahead, 0, "the number of tickets ahead of one that came back")


@check(Claim.FAIR)
async def a_ticket_that_came_back_after_its_expiry_stands_at_the_end(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    await world.grant(store, world.ask(key))
    late = world.ask(key, ticket="late", ticket_ttl_ns=world.short_ttl_ns)
    patient = world.ask(key, ticket="patient")
    await world.busy(store, late)
    await world.busy(store, patient)
    deadline = world.now_ns() + world.patience_ns
    while (await world.busy(store, patient)).ahead:
        expect(world.now_ns() < deadline, "a ticket that expired never lost its place")
        await world.sleep(5 * MS)
    expect_equal((await world.busy(store, late)).ahead, 1, "the number of tickets ahead of one that came back")


@check(Claim.FAIR)
async def an_ask_makes_its_ticket_live_longer(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    holder = world.ask(key)
    grant = await world.grant(store, holder)
    first = world.ask(key, ticket="first", ticket_ttl_ns=10 * world.short_ttl_ns)
    second = world.ask(key, ticket="second")
    await world.busy(store, first)
    await world.busy(store, second)
    await world.busy(store, first._replace(ticket_ttl_ns=LONG_NS))
    await world.sleep(11 * world.short_ttl_ns)
    await store.release(key, holder.token, grant.claim, 0, CALL_NS)
    expect_equal((await world.busy(store, second)).ahead, 1, "the number of tickets ahead")
    await world.grant(store, first)


@check(Claim.FAIR)
async def who_leaves_the_queue_gives_its_place_to_the_next(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    holder = world.ask(key)
    grant = await world.grant(store, holder)
    first, second = world.ask(key, ticket="a"), world.ask(key, ticket="b")
    await world.busy(store, first)
    await world.busy(store, second)
    for _ in range(2):  # leaving twice, or without a place, is no error
        await store.leave(key, "a", CALL_NS)
    await store.leave(world.fresh_key(), "a", CALL_NS)
    expect_equal((await world.busy(store, second)).ahead, 0, "the number of tickets ahead after the first left")
    await store.release(key, holder.token, grant.claim, 0, CALL_NS)
    await world.grant(store, second)


@check(Claim.FAIR)
async def the_queue_outlives_expiry_and_forced_release_of_the_holder(world: World) -> None:
    store = await world.open()
    for forced in (False, True):
        key = world.fresh_key()
        await world.grant(store, world.ask(key, LONG_NS if forced else world.short_ttl_ns))
        first, second = world.ask(key, ticket="a"), world.ask(key, ticket="b")
        # A holder with a short time may be gone before the queue is made; then the first is simply granted.
        answer = await store.acquire(first, CALL_NS)
        if isinstance(answer, Grant):
            continue
        await world.busy(store, second)
        if forced:
            await store.force_release(key, "kit", "check", CALL_NS)
        await world.until_free(store, key)
        await world.busy(store, second)
        await world.grant(store, first)


@check(Claim.FAIR)
async def inspect_counts_those_who_wait_with_a_ticket(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    await world.grant(store, world.ask(key))
    for number in range(3):
        await world.busy(store, world.ask(key, ticket=f"ticket-{number}"))
    holding = await store.inspect(key, CALL_NS)
    expect(holding is not None and holding.waiters >= 3, f"three wait, but inspect shows {holding!r}")


@check(Claim.WAKEUPS)
async def a_release_on_another_connection_wakes_a_waiter(world: World) -> None:
    holder, ask, grant, watch = await _watched(world)
    waiter = await world.open()

    async def wait() -> bool:
        return await watch.wait(world.patience_ns // 2)

    async def release() -> bool:
        await world.sleep(20 * MS)
        return await holder.release(ask.key, ask.token, grant.claim, 0, CALL_NS)

    woken, released = await world.together([wait(), release()])
    expect(released, "the holder could not give the key back")
    expect(woken, "a waiter was not woken by a release")
    await world.grant(waiter, world.ask(ask.key))
    await watch.close()


@check(Claim.WAKEUPS)
async def a_release_between_watch_and_wait_is_not_missed(world: World) -> None:
    holder, ask, grant, watch = await _watched(world)
    await holder.release(ask.key, ask.token, grant.claim, 0, CALL_NS)
    expect(await watch.wait(world.patience_ns // 2), "a release between watch and wait was missed")
    await watch.close()


@check(Claim.WAKEUPS)
async def a_watch_can_be_waited_on_again_and_again(world: World) -> None:
    holder, ask, grant, watch = await _watched(world)
    for _ in range(3):
        await holder.release(ask.key, ask.token, grant.claim, 0, CALL_NS)
        expect(await watch.wait(world.patience_ns // 2), "a release after an earlier wait was missed")
        ask = world.ask(ask.key)
        grant = await world.grant(holder, ask)
    await watch.close()


@check(Claim.WAKEUPS)
async def a_forced_release_wakes_a_waiter(world: World) -> None:
    _, ask, _, watch = await _watched(world)
    await (await world.open()).force_release(ask.key, "kit", "check", CALL_NS)
    expect(await watch.wait(world.patience_ns // 2), "a waiter was not woken by a forced release")
    await watch.close()


@check(Claim.WAKEUPS)
async def of_several_waiters_at_least_one_is_woken(world: World) -> None:
    # A store may wake one waiter or all of them: waking all of a thousand would be a herd.
    holder, ask, grant, watch = await _watched(world)
    watches = [watch, *[await (await world.open()).watch(ask.key) for _ in range(3)]]
    await holder.release(ask.key, ask.token, grant.claim, 0, CALL_NS)
    deadline = world.now_ns() + world.patience_ns
    while not any([await each.wait(MS) for each in watches]):
        expect(world.now_ns() < deadline, "a release woke none of four waiters")
        await world.sleep(MS)
    for each in watches:
        await each.close()


@check(Claim.WAKEUPS)
async def a_quiet_watch_ends_when_its_time_is_over(world: World) -> None:
    *_, watch = await _watched(world)
    for _ in range(100):  # a wake-up without a cause is allowed, a stream of them is not
        if not await watch.wait(5 * MS):
            break
    else:
        raise Violation("a watch on a quiet key was woken a hundred times")
    expect_equal(await watch.wait(0), False, "a wait of no time on a quiet key")
    await watch.close()


@check(Claim.WAKEUPS)
async def a_closed_watch_does_not_swallow_the_wake_up_of_another(world: World) -> None:
    holder, ask, grant, elsewhere = await _watched(world)
    store = await world.open()
    first, last = await store.watch(ask.key), await store.watch(ask.key)
    for _ in range(2):  # closing twice is no error
        await elsewhere.close()
        await first.close()
    await holder.release(ask.key, ask.token, grant.claim, 0, CALL_NS)
    expect(await last.wait(world.patience_ns // 2), "a watch that was closed took the wake-up of one that was not")
    await last.close()


async def _watched(world: World) -> tuple[Store, AcquireRequest, Grant, Watch]:
    """A held key, and a watch on it from another connection."""
    holder = await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(holder, ask)
    return holder, ask, grant, await (await world.open()).watch(ask.key)
