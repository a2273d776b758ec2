"""The view of the workers is never older than its limit, and callers under load do not wait for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.plane.fleet.registry import REFRESH_NS, TTL_NS, Workers
from holdfast.plane.model.records import Heartbeat
from support.fixtures.databases import until
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    database = SqliteDatabase(str(tmp_path / "plane.db"), synchronous="normal")
    await prepare(database, "schema")
    yield database
    await database.close()


def beat(clock: VirtualClock, worker: str) -> Heartbeat:
    return Heartbeat(worker, "default", ("a",), 1, 0, clock.now().wall)


async def test_a_view_is_looked_up_anew_before_it_is_too_old_and_nobody_waits_for_that(
    database: SqliteDatabase,
) -> None:
    clock = VirtualClock()
    workers = Workers(database, clock)
    await workers.record(beat(clock, "one"))
    first = await workers.view()
    await workers.record(beat(clock, "two"))
    reads = database.statistics()["read_works"]
    clock.advance(REFRESH_NS // 2 - 1)
    assert await workers.view() is first
    assert database.statistics()["read_works"] == reads, "it is young"
    clock.advance(1)
    assert await workers.view() is first
    assert await workers.view() is first, "one look is enough for all"
    await until(lambda: workers._view is not first)
    assert (await workers.view()).pool("default").workers == 2
    assert database.statistics()["read_works"] == reads + 1


async def test_a_view_that_is_too_old_is_waited_for(database: SqliteDatabase) -> None:
    clock = VirtualClock()
    workers = Workers(database, clock)
    await workers.record(beat(clock, "one"))
    first = await workers.view()
    await workers.record(beat(clock, "two"))
    clock.advance(REFRESH_NS)
    second = await workers.view()
    assert (first.pool("default").workers, second.pool("default").workers) == (1, 2)


async def test_trouble_with_a_look_ahead_of_time_is_nobodys_until_somebody_needs_it(database: SqliteDatabase) -> None:
    clock = VirtualClock()
    workers = Workers(database, clock)
    await workers.record(beat(clock, "one"))
    first = await workers.view()
    await database.close()
    clock.advance(REFRESH_NS // 2)
    assert await workers.view() is first
    assert workers._refreshing is not None
    await workers._refreshing
    clock.advance(REFRESH_NS)
    with pytest.raises(Exception, match="closed"):
        await workers.view()


async def test_a_heartbeat_from_the_future_counts_for_one_ttl_and_not_until_then(database: SqliteDatabase) -> None:
    here, ahead = VirtualClock(), VirtualClock()
    ahead.advance(120 * TTL_NS)
    await Workers(database, ahead).record(beat(ahead, "one"))
    reader = Workers(database, here)
    assert [each.worker for each in await reader.live()] == ["one"]
    here.advance(TTL_NS)
    assert await reader.live(), "the last moment"
    here.advance(1)
    assert await reader.live() == [], "it has been silent since it was first seen"


@pytest.mark.parametrize("hours", [-120, 120])
async def test_a_worker_whose_clock_is_wrong_lives_while_its_heartbeats_change(
    database: SqliteDatabase, hours: int
) -> None:
    here, there = VirtualClock(), VirtualClock()
    there.advance(hours * TTL_NS)
    sender, reader = Workers(database, there), Workers(database, here)
    for _ in range(4):
        await sender.record(beat(there, "one"))
        await reader.live()
        for clock in (here, there):
            clock.advance(TTL_NS // 2)
    assert [each.worker for each in await reader.live()] == ["one"]
    here.advance(TTL_NS)
    assert await reader.live() == []


async def test_a_reader_that_looks_rarely_does_not_extend_the_life_of_a_worker(database: SqliteDatabase) -> None:
    clock = VirtualClock()
    workers = Workers(database, clock)
    await workers.record(beat(clock, "one"))
    await workers.live()
    clock.advance(TTL_NS // 2)
    await workers.record(beat(clock, "one"))
    clock.advance(TTL_NS + 1)
    assert await workers.live() == []
