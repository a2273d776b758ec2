"""Where the fence of a key is kept: in the key's own hash slot, one for each key.

Proven by arithmetic of our own, by that of the servers, and on a cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st
from redis import asyncio as redis_asyncio

from holdfast.errors import BadInput, FencedOut, Timeout, Unavailable
from holdfast.guards import redis as blocking
from holdfast.guards.aio import redis as awaited
from holdfast.guards.redis.fence_keys import FenceNames, slot_part
from support.fixtures.guards import carried
from support.fixtures.redis_guards import SLOTS, Awaited, Manner, settled, wait_until_served
from support.servers.redis import RedisServer

A, B = carried(1), carried(2)
NAMES = FenceNames()

USABLE = [
    *("plain", "with:colons", "ünï", " ", "a{b", "{", "{{", "a{{b", "@a{b}", "[1]", "#x"),
    *("{tag}", "a{tag}b", "{a}{b}", "{a}{}", "{{a}", "{{a}}", "a{{}b", "{a}}", "{a{b}c}", "x{ }y", "user:{7}:cart"),
]
REFUSED = ["}", "a}", "a}b", "{}", "{}a", "a{}b", "a{}{b}", "}{", "}a{", "}{}", "{}{tag}"]


def crc16(data: bytes) -> int:
    """CRC-16/XMODEM, bit by bit."""
    rest = 0
    for byte in data:
        rest ^= byte << 8
        for _ in range(8):
            rest = (rest << 1) ^ (0x1021 if rest & 0x8000 else 0)
        rest &= 0xFFFF
    return rest


def slot(key: bytes) -> int:
    """The hash slot of a key, from the text of the specification and not from the code under test."""
    opening = key.find(b"{")
    closing = -1 if opening < 0 else key.find(b"}", opening)
    tagged = closing > opening + 1
    return crc16(key[opening + 1 : closing] if tagged else key) % SLOTS


def test_the_arithmetic_of_this_test_is_that_of_the_specification() -> None:
    assert crc16(b"123456789") == 0x31C3
    assert slot(b"{user1000}.following") == slot(b"{user1000}.followers") == slot(b"user1000")
    assert slot(b"foo{{bar}}zap") == crc16(b"{bar") % SLOTS
    assert slot(b"foo{}{bar}") == crc16(b"foo{}{bar}") % SLOTS


@pytest.mark.parametrize("key", USABLE)
def test_a_fence_lies_in_the_slot_of_its_key(key: str) -> None:
    assert slot(NAMES.of_key(key.encode())) == slot(key.encode())


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_whose_slot_no_fence_can_have_is_refused(key: str) -> None:
    with pytest.raises(BadInput, match="hash slot") as refused:
        NAMES.of_key(key.encode())
    assert refused.value.field == "key"


@given(st.binary(min_size=1, max_size=12) | st.text("{}a:", min_size=1, max_size=8).map(str.encode))
@example(b"{a}")
@example(b"a")
def test_every_key_has_a_fence_in_its_slot_or_is_refused(key: bytes) -> None:
    tagged = slot_part(key) != key
    if b"}" in key and not tagged:
        with pytest.raises(BadInput):
            NAMES.of_key(key)
    else:
        name = NAMES.of_key(key)
        assert slot(name) == slot(key)
        assert name.startswith(b"holdfast:fence:")
        assert key in name


@pytest.mark.threat("X4")
@given(st.lists(st.text('{}a@#[]",', min_size=1, max_size=7), min_size=2, max_size=40, unique=True))
@example(["a", "{a}", "@{a}", "@a", "{a}{a}"])
def test_no_two_things_share_a_fence(texts: list[str]) -> None:
    names = []
    for text in texts:
        if text.encode() == slot_part(text.encode()) and "}" in text:
            continue
        names.append(NAMES.of_key(text.encode()))
    names += [NAMES.of_channel(text, "lock") for text in texts]
    names += [NAMES.of_record(text, "thing") for text in texts]
    names += [NAMES.of_record(one, other) for one, other in pairwise(texts)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "a\n", 7, None, b"x", "x" * 201, "\ud800"])
def test_a_prefix_that_could_move_a_fence_is_refused(prefix: object) -> None:
    with pytest.raises(BadInput) as refused:
        FenceNames(prefix)
    assert refused.value.field == "prefix"


@pytest.mark.parametrize("key", ["holdfast:fence:{x}", "holdfast:fence:", "holdfast:fence:anything"])
def test_the_name_of_a_fence_is_no_key_for_data(key: str) -> None:
    with pytest.raises(BadInput, match="name of a fence"):
        NAMES.of_key(key.encode())


@pytest.mark.server
@pytest.mark.parametrize("key", [*USABLE, *REFUSED])
def test_the_server_counts_slots_as_this_test_does(redis_cluster: RedisServer, key: str) -> None:
    assert redis_cluster.cli("CLUSTER", "KEYSLOT", key) == slot(key.encode())
    if key in USABLE:
        assert redis_cluster.cli("CLUSTER", "KEYSLOT", NAMES.of_key(key.encode())) == slot(key.encode())


@asynccontextmanager
async def cluster_guard(manner: Manner, server: RedisServer) -> AsyncIterator[tuple[Any, Any]]:
    options: dict[str, Any] = {"decode_responses": manner.decodes, "protocol": manner.protocol}
    if manner.colour == "asyncio":
        client: Any = redis_asyncio.RedisCluster(host="127.0.0.1", port=server.port, **options)
        guard: Any = awaited.GuardedKeys(client)
    else:
        client = redis.RedisCluster(host="127.0.0.1", port=server.port, **options)
        guard = blocking.GuardedKeys(client)
    try:
        yield Awaited(guard), client
    finally:
        await settled(client.aclose() if manner.colour == "asyncio" else client.close())


@pytest.mark.server
@pytest.mark.asyncio
@pytest.mark.requires("R34", "R47")
async def test_every_step_works_on_a_cluster(manner: Manner, redis_cluster: RedisServer) -> None:
    redis_cluster.cli("FLUSHALL")
    async with cluster_guard(manner, redis_cluster) as (keys, client):
        for key in USABLE:
            await keys.set(A, key, "1")
            async with keys.section(B, key) as entry:
                await entry.set(int(entry.value) + 1)
                assert await entry.delete() is True
                await entry.hset({"a": 1, "b": 2})
                assert await entry.hdel("a") == 1
            with pytest.raises(FencedOut):
                await keys.enter(A, key)
            assert await keys.seen(key) == 2
            assert len(await settled(client.hgetall(key))) == 1
            redis_cluster.cli("SCRIPT", "FLUSH")
            assert await keys.delete(B, key) is True
            assert await keys.publish(B, f"channel {key}", "x") == 0
            with pytest.raises(FencedOut):
                await keys.publish(A, f"channel {key}", "x")


@pytest.mark.server
@pytest.mark.asyncio
async def test_a_cluster_that_has_lost_the_slot_is_trouble_and_not_a_refusal(
    manner: Manner, redis_cluster: RedisServer
) -> None:
    number = slot(b"lost")
    async with cluster_guard(manner, redis_cluster) as (keys, _):
        await keys.set(A, "lost", "x")
        redis_cluster.cli("CLUSTER", "DELSLOTS", number)
        try:
            with pytest.raises((Unavailable, Timeout)):  # which of the two depends on where the client gives up
                await keys.set(B, "lost", "y")
        finally:
            redis_cluster.cli("CLUSTER", "ADDSLOTS", number)
        wait_until_served(redis_cluster)
        assert await keys.seen("lost") == 1
        redis_cluster.cli("FLUSHALL")
