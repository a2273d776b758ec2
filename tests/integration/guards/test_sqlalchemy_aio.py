"""SQLAlchemy's awaited connections and sessions behind guards, on a SQLite file (aiosqlite) and on Postgres (psycopg).

The steps are those of the blocking guards, whose tests say more; these show that nothing is lost on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

import holdfast.aio
from holdfast.errors import BadInput, FencedOut, LeaseLost, NotEntered, RowExists, RowMissing, Unfenced
from holdfast.guards import Fenced, GuardStatistics
from holdfast.guards.aio.sqlalchemy import GuardedEntity, GuardedTable, unguarded
from support.fixtures.guards import carried
from support.guards.subjects_sqlalchemy import Base, KitRow, async_engine_for, engine_for, prepare

pytestmark = pytest.mark.asyncio

TABLE = Base.metadata.tables["kit_rows"]
LEDGER = Base.metadata.tables["holdfast_guard_fence"]
A, B, C = carried(1), carried(2), carried(3)


@pytest_asyncio.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    prepare(database_url, Base.metadata)
    engine = async_engine_for(database_url)
    yield engine
    await engine.dispose()


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest_asyncio.fixture
async def data(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    async with engine.connect() as connection:
        yield connection


@pytest_asyncio.fixture
async def session(engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(engine) as opened:
        yield opened


@pytest.fixture
def content(database_url: str) -> Callable[[], list[Any]]:
    """Everything that a refused step must leave alone, read through another connection."""

    def read() -> list[Any]:
        engine = engine_for(database_url)
        with engine.connect() as connection:
            rows = connection.execute(sa.select(TABLE.c.id, TABLE.c.value, TABLE.c.holdfast_fence)).all()
            noted = connection.execute(sa.select(LEDGER.c.place, LEDGER.c.resource, LEDGER.c.fence)).all()
            return [tuple(row) for row in [*rows, *noted]]

    return read


async def made(session: AsyncSession, lease: Fenced = A) -> None:
    """The row x, committed."""
    await GuardedEntity(session, KitRow).insert(lease, KitRow(id="x", value="old"))
    await session.commit()


@pytest.mark.requires("R58", "R47", "R65")
async def test_rows_are_written_in_order_and_refused_to_older_holders(data: AsyncConnection) -> None:
    table = GuardedTable(data, TABLE)
    with pytest.raises(RowMissing):
        await table.update(A, "x", {"value": "1"})
    await table.insert(A, "x", {"value": "1"})
    with pytest.raises(RowExists):
        await table.insert(A, "x", {"value": "2"})
    async with table.section(B, "x") as row:
        await row.update(value=row["value"] + "+")
    assert await table.upsert(B, "x", {"value": "3"}) == {"id": "x", "value": "3", "holdfast_fence": 2}
    with pytest.raises(FencedOut) as refused:
        await table.upsert(A, "x", {"value": "4"})
    assert (refused.value.fence, refused.value.seen) == (1, 2)
    assert (await table.delete(B, "x"))["value"] == "3"
    with pytest.raises(FencedOut):
        await table.insert(A, "x", {"value": "4"})
    assert await table.seen("x") == 2
    assert table.statistics() == GuardStatistics(entered=1, accepted=4, refused=2, missing=1, existing=1)


async def test_a_registration_lasts_as_long_as_its_transaction(
    engine: AsyncEngine, stack: AsyncExitStack, content: Callable[[], list[Any]]
) -> None:
    mine, other = [await stack.enter_async_context(engine.connect()) for _ in range(2)]
    async with other.begin():
        await GuardedTable(other, TABLE).insert(A, "x", {"value": "old"})
    async with GuardedTable(mine, TABLE).section(B, "x") as row:
        await mine.rollback()
        with pytest.raises(NotEntered) as lost:
            await row.update(value="new")
        assert (lost.value.fence, lost.value.seen) == (2, 1)
        await mine.rollback()
    async with GuardedTable(mine, TABLE).section(B, "x") as row:
        await mine.commit()
        async with other.begin(), GuardedTable(other, TABLE).section(C, "x") as theirs:
            await theirs.update(value="theirs")
        with pytest.raises(FencedOut) as refused:
            await row.update(value="new")
        assert refused.value.seen == 3
        await mine.rollback()
    assert content() == [("x", "theirs", 3)]


async def test_a_step_that_is_cancelled_while_it_waits_changes_nothing(postgres_url: str) -> None:
    prepare(postgres_url, Base.metadata)
    engine = async_engine_for(postgres_url)
    async with engine.connect() as mine, engine.connect() as other, engine.connect() as onlooker:
        await GuardedTable(other, TABLE).enter(A, "x")
        waiting = asyncio.ensure_future(GuardedTable(mine, TABLE).insert(B, "x", {"value": "new"}))
        locks = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        while not waiting.done() and not await onlooker.scalar(locks):
            await onlooker.rollback()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await mine.rollback()
        await other.rollback()
        assert await GuardedTable(mine, TABLE).seen("x") is None
        await GuardedTable(mine, TABLE).insert(B, "x", {"value": "new"})
        await mine.commit()
    await engine.dispose()


async def test_what_is_no_open_connection_is_refused(engine: AsyncEngine, session: AsyncSession) -> None:
    with pytest.raises(BadInput, match="is not open"):
        GuardedTable(engine.connect(), TABLE)
    with pytest.raises(BadInput, match=r"^connection: AsyncEngine is not an awaited connection"):
        GuardedTable(engine, TABLE)  # type: ignore[call-overload]  # on purpose
    with pytest.raises(BadInput, match=r"^session: Session is not an awaited session"):
        GuardedEntity(session.sync_session, KitRow)  # type: ignore[call-overload]  # on purpose


@pytest.mark.requires("R58", "R65")
async def test_what_a_section_changes_is_flushed_with_its_fence(
    session: AsyncSession, content: Callable[[], list[Any]]
) -> None:
    await made(session)
    guard = GuardedEntity(session, KitRow)
    async with session.begin(), guard.section(B, "x") as row:
        assert (row.value, row.holdfast_fence) == ("old", 2)
        row.value = "new"
    assert content() == [("x", "new", 2)]
    for step in (guard.insert, guard.upsert):
        with pytest.raises(FencedOut) as refused:
            await step(A, KitRow(id="x", value="late"))
        assert refused.value.seen == 2
        await session.rollback()
    with pytest.raises(RowExists):
        await guard.insert(B, KitRow(id="x", value="again"))
    await session.rollback()
    await guard.upsert(C, KitRow(id="x", value="merged"))
    await guard.delete(C, "x")
    await session.commit()
    assert content() == [("kit_rows", "x", 3)]
    with pytest.raises(RowMissing):
        await guard.delete(C, "x")
    assert await guard.seen("x") == 3


@pytest.mark.requires("R69", "R71", "R73")
async def test_a_pause_between_read_and_write_loses_no_update(
    engine: AsyncEngine, stack: AsyncExitStack, content: Callable[[], list[Any]]
) -> None:
    late, new = [await stack.enter_async_context(AsyncSession(engine, expire_on_commit=False)) for _ in range(2)]
    await made(late)
    async with GuardedEntity(late, KitRow).section(A, "x") as stale:
        await late.commit()
        async with GuardedEntity(new, KitRow).section(B, "x") as row:
            await new.commit()
            stale.value += " and late"
            with pytest.raises(FencedOut):
                await late.commit()
            await late.rollback()
            row.value += " and new"
        await new.commit()
    assert content() == [("x", "old and new", 2)]


async def test_what_the_session_knew_before_does_not_survive_entering(
    engine: AsyncEngine, stack: AsyncExitStack
) -> None:
    mine, other = [await stack.enter_async_context(AsyncSession(engine, expire_on_commit=False)) for _ in range(2)]
    await made(mine)
    known = await mine.get_one(KitRow, "x")
    await mine.commit()
    async with other.begin(), GuardedEntity(other, KitRow).section(A, "x") as theirs:
        theirs.value = "theirs"
    assert known.value == "old"
    async with GuardedEntity(mine, KitRow).section(B, "x") as row:
        assert row is known
        assert row.value == "theirs"


async def test_a_rolled_back_section_flushes_nothing(session: AsyncSession, content: Callable[[], list[Any]]) -> None:
    await made(session)
    async with GuardedEntity(session, KitRow).section(B, "x") as row:
        await session.rollback()
        row.value = "new"
        with pytest.raises(NotEntered):
            await session.flush()
        await session.rollback()
    assert content() == [("x", "old", 1)]


async def test_no_session_flushes_an_instance_that_was_not_entered(
    session: AsyncSession, content: Callable[[], list[Any]]
) -> None:
    await made(session)
    (await session.get_one(KitRow, "x")).value = "new"
    with pytest.raises(Unfenced):
        await session.commit()
    await session.rollback()
    with pytest.raises(Unfenced):
        await session.execute(sa.update(KitRow).values(value="new"))
    await session.rollback()
    assert content() == [("x", "old", 1)]
    with unguarded(session):
        await session.execute(sa.update(KitRow).values(value="new"))
        await session.commit()
    assert content() == [("x", "new", 1)]


@pytest.mark.requires("R29")
async def test_an_awaited_lease_that_was_lost_flushes_nothing(
    session: AsyncSession, content: Callable[[], list[Any]]
) -> None:
    async with holdfast.aio.connect("memory://") as locks:
        lease = await locks.lock("x", ttl=60).acquire()
        guard = GuardedEntity(session, KitRow, key="{id}")
        await guard.insert(lease, KitRow(id="x", value="old"))
        await session.commit()
        with pytest.raises(LeaseLost):
            async with guard.section(lease, "x") as row:
                await lease.release()
                row.value = "new"
        await session.rollback()
        assert content() == [("x", "old", lease.fence)]
