"""The fence record on Redis: the highest is remembered, whatever the number of concurrent writers; sync and asyncio."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import BadInput, Misconfigured, Unavailable
from holdfast.guards.records import FenceRecord, ThreadedRecord, check_record, off_the_loop
from holdfast.guards.redis_records import RedisRecord
from holdfast.runtime.run_sync import run_now
from support.fixtures.redis_guards import MANNERS, Manner, Stage
from support.servers.redis import RedisServer, free_port

pytestmark = pytest.mark.server

EDGES = [0, 1, 2**53, 2**53 + 1, FENCE_MAX - 1, FENCE_MAX]


@pytest.mark.asyncio
@pytest.mark.requires("R34", "R57")
async def test_the_highest_fence_is_remembered_for_each_thing(stage: Stage) -> None:
    record: FenceRecord = RedisRecord(stage.client(), prefix=stage.space)
    assert await record.seen("http", "/orders/1") is None
    for fence in EDGES:
        assert await record.note("http", "/orders/1", fence) == fence
        assert await record.note("http", "/orders/1", fence) == fence
        assert await record.note("http", "/orders/1", max(0, fence - 1)) == fence
        assert await record.seen("http", "/orders/1") == fence
    assert await record.seen("http", "/orders/2") is None
    assert await record.seen("bus", "/orders/1") is None
    again = RedisRecord(stage.client(), prefix=stage.space)
    assert await again.note("http", "/orders/1", 5) == FENCE_MAX
    assert all(stage.raw.ttl(name) == -1 for name in stage.content())


@pytest.mark.asyncio
async def test_things_with_odd_names_are_told_apart(stage: Stage) -> None:
    record = RedisRecord(stage.client(), prefix=stage.space)
    odd = ["a", "a:b", '"', '","', "[", "{}", "}{", "ünï", "", "\0", "a b"]
    pairs = [(place, thing) for place in odd for thing in odd]
    for number, (place, thing) in enumerate(pairs):
        assert await record.note(place, thing, number) == number
    assert [await record.seen(place, thing) for place, thing in pairs] == list(range(len(pairs)))


@pytest.mark.requires("R34")
def test_a_blocking_record_never_suspends_and_many_threads_agree(redis_server: RedisServer) -> None:
    fences = Random(7).sample(range(2**53, 2**53 + 4000), 400)
    with redis_server.client() as client:
        record = RedisRecord(client, prefix=f"threads-{redis_server.port}:")

        def note(fence: int) -> tuple[int, int]:
            return fence, run_now(record.note("bus", "orders", fence))

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(note, fences))
        assert run_now(record.seen("bus", "orders")) == max(fences)
        assert all(highest >= fence and highest in fences for fence, highest in answers)
        client.delete(*client.scan_iter(f"threads-{redis_server.port}:*"))


@pytest.mark.asyncio
@pytest.mark.parametrize("manner", [each for each in MANNERS if each.colour == "asyncio"], ids=str)
async def test_many_tasks_agree(stage: Stage) -> None:
    record = RedisRecord(stage.client(), prefix=stage.space)
    fences = Random(7).sample(range(10_000), 50)
    answers = await asyncio.gather(*(record.note("bus", "orders", fence) for fence in fences))
    assert await record.seen("bus", "orders") == max(fences) == max(answers)


@pytest.mark.asyncio
@pytest.mark.requires("R34")
async def test_an_inbox_on_a_loop_can_use_a_record_of_either_colour(stage: Stage) -> None:
    record = RedisRecord(stage.client(), prefix=stage.space)
    assert record.blocking is (stage.manner.colour == "blocking")
    assert check_record(record) is record
    asked = off_the_loop(record)
    assert await asked.note("bus", "orders", 2) == 2
    assert await asked.note("bus", "orders", 1) == 2
    assert await asked.seen("bus", "orders") == 2
    if isinstance(asked, ThreadedRecord):
        asked.close()


@pytest.mark.asyncio
async def test_a_record_that_cannot_be_known_is_trouble(stage: Stage, manner: Manner) -> None:
    away = RedisRecord(stage.client(free_port()))
    for step in (away.note("http", "x", 1), away.seen("http", "x")):
        with pytest.raises(Unavailable):
            await step
    record = RedisRecord(stage.client(), prefix=stage.space)
    await record.note("http", "x", 1)
    (name,) = stage.content()
    stage.raw.set(name, "nonsense")
    for step in (record.note("http", "x", 1), record.seen("http", "x")):
        with pytest.raises(Misconfigured, match="not a number"):
            await step
    assert stage.raw.get(name) == b"nonsense"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("place", "resource", "fence", "field"),
    [(7, "x", 1, "place"), ("x", b"x", 1, "resource"), ("x", "\ud800", 1, "resource")]
    + [("x", "x", each, "fence") for each in (-1, True, 1.0, "1", FENCE_MAX + 1, None)],
)
async def test_what_cannot_be_noted_is_refused_by_name(
    stage: Stage, place: Any, resource: Any, fence: Any, field: str
) -> None:
    with pytest.raises(BadInput) as refused:
        await RedisRecord(stage.client(), prefix=stage.space).note(place, resource, fence)
    assert refused.value.field == field
    assert stage.content() == {}
