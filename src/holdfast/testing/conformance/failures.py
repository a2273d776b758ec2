"""Conformance: calls that run out of time, are cancelled, or meet a closed store; restarts; other processes."""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

from holdfast.core.ports import Store
from holdfast.errors import Timeout, Unavailable
from holdfast.testing.conformance import subprocess
from holdfast.testing.conformance.check import Claim, StoreChapter, expect, expect_equal, expect_no_token
from holdfast.testing.conformance.environment import CALL_NS, World
from holdfast.types import AcquireRequest, Busy, Grant

chapter = StoreChapter()
check = chapter.check


@check()
async def a_store_answers_a_ping(world: World) -> None:
    await (await world.open()).ping(CALL_NS)


@check()
async def a_call_with_hardly_any_time_answers_or_says_that_it_could_not(world: World) -> None:
    store = await world.open()
    for timeout_ns in (1, 1_000, 50_000, 500_000):
        ask = world.ask(world.fresh_key(), world.short_ttl_ns)
        try:
            answer = await store.acquire(ask, timeout_ns)
            expect(isinstance(answer, Grant | Busy), f"an acquire was answered with {answer!r}")
        except (Timeout, Unavailable) as error:
            expect_no_token(error, ask.token, "an error")
        # Whatever became of it, the next answers belong to their own questions, and the key can be had again.
        await _expect_own_answers(world, store)
        await world.until_granted(store, world.ask(ask.key))


@check()
async def a_cancelled_call_does_not_leave_its_answer_to_the_next(world: World) -> None:
    store = await world.open()
    held = world.ask(world.fresh_key())
    await world.grant(store, held)
    for steps in range(6):
        await world.interrupt(store.inspect(held.key, CALL_NS), steps)
        expect_equal(
            await store.inspect(world.fresh_key(), CALL_NS), None, "inspect of a free key after a cancellation"
        )
        # Short, for a request that was cancelled may still arrive, even after the release that undoes it.
        ask = world.ask(world.fresh_key(), world.short_ttl_ns)
        await world.interrupt(store.acquire(ask, CALL_NS), steps)
        await _expect_own_answers(world, store)
        # What may have been granted can be undone by its token alone.
        await store.release(ask.key, ask.token, None, 0, CALL_NS)
        await world.until_granted(store, world.ask(ask.key))


@check()
async def one_connection_used_by_many_gives_each_its_own_answer(world: World) -> None:
    store = await world.open()

    async def live(ask: AcquireRequest) -> None:
        for _ in range(5):
            grant = await world.grant(store, ask)
            holding = await store.inspect(ask.key, CALL_NS)
            expect_equal(holding and (holding.key, holding.owner), (ask.key, ask.owner), "inspect beside many others")
            expect(
                await store.release(ask.key, ask.token, grant.claim, 0, CALL_NS), "a release beside many others failed"
            )

    await world.together([live(world.ask(world.fresh_key())) for _ in range(8)])


@check()
async def a_closed_store_can_be_closed_again_and_used_again(world: World) -> None:
    store = await world.open()
    await store.close()  # before it was ever used
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    await store.close()
    await store.close()
    await world.busy(store, world.ask(ask.key))
    expect_equal(await store.release(ask.key, ask.token, grant.claim, 0, CALL_NS), True, "the release after a close")


@check()
async def closing_one_store_does_not_disturb_another(world: World) -> None:
    first, second = await world.open(), await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(first, ask)
    await second.ping(CALL_NS)
    await first.close()
    await world.busy(second, world.ask(ask.key))
    expect_equal(await second.release(ask.key, ask.token, grant.claim, 0, CALL_NS), True, "the release elsewhere")


@check()
async def two_stores_over_the_same_leases_say_the_same_about_themselves(world: World) -> None:
    first, second = await world.open(), await world.open()
    expect_equal(first.capabilities, second.capabilities, "the capabilities of two stores")


@check(Claim.DURABLE)
async def leases_outlive_a_restart_of_the_engine(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    await world.close()
    await world.restart()
    again = await world.open()
    await world.busy(again, world.ask(ask.key))
    holding = await again.inspect(ask.key, CALL_NS)
    expect_equal(holding and (holding.owner, holding.fence), (ask.owner, grant.fence), "the lease after a restart")
    expect_equal(await again.release(ask.key, ask.token, grant.claim, 0, CALL_NS), True, "the release after a restart")
    new = await world.grant(again, world.ask(ask.key))
    expect(new.fence > grant.fence, f"after a restart fence {new.fence} came after {grant.fence}")


@check(Claim.SHARED, proves=("R86",))
async def another_process_sees_the_same_leases(world: World) -> None:
    store = await world.open()
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    expect_equal(world.in_another_process(ask.key), f"busy {ask.owner}", "what another process is told of a held key")
    await store.release(ask.key, ask.token, grant.claim, 0, CALL_NS)
    answer, _, fence = world.in_another_process(ask.key).partition(" ")
    expect_equal(answer, "granted", "what another process is told of a free key")
    if Claim.FENCED.made_by(store.capabilities):
        expect(int(fence) > grant.fence, f"another process was granted fence {fence} after {grant.fence}")


@check(Claim.SHARED)
async def a_detached_lease_outlives_the_process_that_took_it(world: World) -> None:
    store = await world.open()
    key = world.fresh_key()
    answer, _, fence = world.in_another_process(key, keep=True).partition(" ")
    expect_equal(answer, "granted", "what another process is told of a free key")
    busy = await world.busy(store, world.ask(key))
    expect_equal(busy.owner, subprocess.OWNER, "the owner of a lease whose process has ended")
    record = await store.force_release(key, "kit", "its process has ended", CALL_NS)
    expect_equal(record and record.previous_owner, subprocess.OWNER, "the owner in the record of its forced release")
    if Claim.FENCED.made_by(store.capabilities):
        expect(record is not None and record.fence > int(fence), "the forced release did not raise the fence")


async def _expect_own_answers(world: World, store: Store) -> None:
    ask = world.ask(world.fresh_key())
    grant = await world.grant(store, ask)
    holding = await store.inspect(ask.key, CALL_NS)
    expect_equal(holding and (holding.key, holding.owner), (ask.key, ask.owner), "inspect of the next key")
    released = await store.release(ask.key, ask.token, grant.claim, 0, CALL_NS)
    expect_equal(released, True, "the release of the next key")
