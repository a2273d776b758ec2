"""Fair locks: first come, first served, and a dead waiter cannot wedge the queue."""

from __future__ import annotations

from typing import Any

import pytest
from redis.crc import key_slot

from holdfast.core.ports import Store
from holdfast.types import NS
from support.fixtures.redis import Play
from support.harness.redis_requests import SOON, aux_name, give_back, meet, queue_name, take

pytestmark = pytest.mark.server


def test_tickets_are_served_in_order_of_arrival(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        held = await take(store, "fair", ticket="first")
        for place, ticket in enumerate(["a", "b", "c"]):
            assert (await meet(store, "fair", ticket=ticket)).ahead == place
        assert (await meet(store, "fair", ticket="b")).ahead == 1  # coming back does not cost the place
        holding = await store.inspect("fair", SOON)
        assert holding is not None
        assert holding.waiters == 3
        await give_back(store, held)
        busy = await meet(store, "fair", ticket="c")
        assert (busy.owner, busy.ahead) == (None, 2)
        assert busy.remaining_ns is not None
        assert 0 < busy.remaining_ns <= 10 * NS
        for ticket in ("a", "b", "c"):
            await give_back(store, await take(store, "fair", ticket=ticket))
        assert redis_raw.keys(f"{aux_name(redis_url, '')}*fair*") == []

    play(redis_url, scenario)


def test_a_dead_head_loses_its_place_when_its_ticket_ends(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        held = await take(store, "fair", ticket="first")
        await meet(store, "fair", ticket="dead")
        await meet(store, "fair", ticket="alive")
        await give_back(store, held)
        assert (await meet(store, "fair", ticket="alive")).ahead == 1
        tickets = queue_name(redis_url, "tickets", "fair")
        redis_raw.zadd(tickets, {"dead": 1})  # its time has ended, by the server's clock
        assert (await take(store, "fair", ticket="alive")).fence > held.fence

    play(redis_url, scenario)


def test_the_dead_are_not_counted_among_those_ahead(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        await take(store, "fair", ticket="first")
        for ticket in ("a", "dead", "b"):
            await meet(store, "fair", ticket=ticket)
        redis_raw.zadd(queue_name(redis_url, "tickets", "fair"), {"dead": 1})
        assert (await meet(store, "fair", ticket="b")).ahead == 1

    play(redis_url, scenario)


def test_a_ticket_whose_expiry_was_evicted_cannot_wedge_the_queue(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        held = await take(store, "fair", ticket="first")
        await meet(store, "fair", ticket="a")
        await give_back(store, held)
        redis_raw.delete(queue_name(redis_url, "tickets", "fair"))
        assert (await take(store, "fair", ticket="b")).fence > held.fence

    play(redis_url, scenario)


def test_the_queue_of_a_fair_lock_expires(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        await take(store, "fair", ticket="first")
        await meet(store, "fair", ticket="a")
        for kind in ("queue", "tickets"):
            left = redis_raw.pttl(queue_name(redis_url, kind, "fair"))
            assert 0 < left <= 11_000

    play(redis_url, scenario)


def test_the_keys_of_one_lock_share_a_hash_slot(redis_url: str) -> None:
    name = "tenant:42/invoice"
    for kind in ("queue", "tickets", "ears"):
        assert key_slot(name.encode()) == key_slot(f"holdfast:{kind}:{{{name}}}".encode())
