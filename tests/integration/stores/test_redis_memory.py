"""The room into which an asyncio connection receives: it is its own, what is longer than it arrives whole, in order."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

import pytest

from holdfast.stores.redis.asyncio_driver import ROOM_BYTES, Mux
from holdfast.stores.redis.protocol import pack
from holdfast.stores.redis.url import parse_redis_url
from support.harness.redis_requests import SOON

pytestmark = pytest.mark.server

USUAL_BYTES = 256 * 1024  # what asyncio allocates for each read of a protocol that brings no room


def test_replies_that_are_longer_than_the_room_arrive_whole_and_go_to_whom_they_belong(redis_url: str) -> None:
    sizes = [0, 1, ROOM_BYTES - 1, ROOM_BYTES, ROOM_BYTES + 1, 5 * ROOM_BYTES + 7, 40 * ROOM_BYTES]
    values = {f"holdfast:test:room:{size}": random.Random(size).randbytes(size) for size in sizes}

    async def main() -> None:
        mux = Mux(parse_redis_url(redis_url))
        try:
            for name, value in values.items():
                assert await mux.call(pack(("SET", name, value)), mux.deadline(SOON)) == b"OK"
            wanted = [name for name in values for _ in range(5)]
            random.Random(1).shuffle(wanted)
            asked = [mux.call(pack(("GET", name)), mux.deadline(12 * SOON)) for name in wanted]
            assert await asyncio.gather(*asked) == [values[name] for name in wanted]
            assert await mux.call(pack(("DEL", *values)), mux.deadline(SOON)) == len(values)
        finally:
            await mux.close()

    asyncio.run(main())


def test_a_reply_costs_no_buffer_of_its_own(redis_url: str) -> None:
    async def main() -> int:
        mux = Mux(parse_redis_url(redis_url))
        try:
            packed = pack(("GET", "holdfast:test:nothing"))
            await mux.call(packed, mux.deadline(SOON))  # connected, and everything imported
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            for _ in range(20):
                assert await mux.call(packed, mux.deadline(SOON)) is None
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            await mux.close()

    tracemalloc.start()
    try:
        assert asyncio.run(main()) < USUAL_BYTES / 2
    finally:
        tracemalloc.stop()
