"""Guarded rows through SQLAlchemy, Core and ORM, in both colors, as the guard kit sees them.

Importable from child processes. Every step is committed alone: the kit works with several connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from holdfast.guards import Fenced
from holdfast.guards.aio import sqlalchemy as aio
from holdfast.guards.aio.tables import GuardedRow as AioGuardedRow
from holdfast.guards.sqlalchemy import Guarded, GuardedEntity, GuardedRow, GuardedTable, ledger_table

BUSY_TIMEOUT_S = 30.0


class Base(DeclarativeBase):
    pass


class KitRow(Guarded, Base):
    __tablename__ = "kit_rows"

    id: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


ledger_table(Base.metadata)
TABLE = Base.metadata.tables["kit_rows"]


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def engine_for(url: str) -> sa.Engine:
    """An engine that pools nothing, for a URL of either kind of database."""
    return sa.create_engine(_psycopg(url), poolclass=sa.NullPool, connect_args=_settings(url))


def async_engine_for(url: str) -> AsyncEngine:
    """The same, awaited."""
    driver = _psycopg(url).set(drivername="sqlite+aiosqlite") if url.startswith("sqlite") else _psycopg(url)
    return create_async_engine(driver, poolclass=sa.NullPool, connect_args=_settings(url))


def _pooled(url: str) -> sa.Engine:
    """An engine that keeps its connections, and on SQLite leaves it to the system when they reach the disk.

    The kit ends processes, not machines, so nothing that it can see depends on that.
    """
    engine = sa.create_engine(_psycopg(url), connect_args=_settings(url))
    _relaxed(engine)
    return engine


def _async_pooled(url: str) -> AsyncEngine:
    """The same, awaited, for one event loop."""
    driver = _psycopg(url).set(drivername="sqlite+aiosqlite") if url.startswith("sqlite") else _psycopg(url)
    engine = create_async_engine(driver, connect_args=_settings(url))
    _relaxed(engine.sync_engine)
    return engine


def _relaxed(engine: sa.Engine) -> None:
    if engine.dialect.name != "sqlite":
        return

    @sa.event.listens_for(engine, "connect")
    def _(dbapi: Any, _record: object) -> None:
        cursor = dbapi.cursor()
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.close()


def _psycopg(url: str) -> sa.URL:
    parsed = sa.make_url(url)
    return parsed if parsed.drivername == "sqlite" else parsed.set(drivername="postgresql+psycopg")


def _settings(url: str) -> dict[str, Any]:
    return {"timeout": BUSY_TIMEOUT_S} if url.startswith("sqlite") else {}


def prepare(url: str, metadata: sa.MetaData) -> None:
    """Make the tables and the ledger."""
    engine = engine_for(url)
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        metadata.create_all(connection)
        connection.commit()
    engine.dispose()


class CoreSubject:
    """One row of a guarded `Table`. Sections stay open until the subject is closed."""

    def __init__(self, url: str, resource: str) -> None:
        self._engine = _pooled(url)
        self._connection = self._engine.connect()
        self._table = GuardedTable(self._connection, TABLE)
        self._id = resource
        self._sections = ExitStack()
        self._rows: dict[int, GuardedRow] = {}

    @contextmanager
    def _committed(self) -> Iterator[None]:
        with self._connection.begin():
            yield

    def enter(self, lease: Fenced) -> str | None:
        with self._committed():
            row = self._sections.enter_context(self._table.section(lease, self._id))
        self._rows[lease.fence] = row
        return row["value"] if row.exists else None

    def write(self, lease: Fenced, value: str) -> None:
        with self._committed():
            self._rows[lease.fence].upsert(value=value)

    def overwrite(self, lease: Fenced, value: str) -> None:
        with self._committed():
            self._table.upsert(lease, self._id, {"value": value})

    def delete(self, lease: Fenced) -> None:
        with self._committed():
            self._table.delete(lease, self._id)

    def look(self) -> tuple[str | None, int | None]:
        with self._committed():
            found = self._connection.execute(sa.select(TABLE.c.value).where(TABLE.c.id == self._id)).scalar()
            return found, self._table.seen(self._id)

    def close(self) -> None:
        self._sections.close()
        self._connection.close()
        self._engine.dispose()


class EntitySubject:
    """One instance of a guarded class. Each lease works in a session of its own, in a section that stays open."""

    def __init__(self, url: str, resource: str) -> None:
        self._engine = _pooled(url)
        self._id = resource
        self._open = ExitStack()
        self._sessions: dict[int, Session] = {}

    def enter(self, lease: Fenced) -> str | None:
        with ExitStack() as entering:
            session = entering.enter_context(Session(self._engine))
            found = entering.enter_context(GuardedEntity(session, KitRow).section_or_none(lease, self._id))
            value = None if found is None else found.value
            session.commit()
            self._open.push(entering.pop_all())
        self._sessions[lease.fence] = session
        return value

    def write(self, lease: Fenced, value: str) -> None:
        session = self._sessions[lease.fence]
        try:
            found = session.get(KitRow, self._id)
            if found is None:
                session.add(KitRow(id=self._id, value=value))
            else:
                found.value = value
            session.commit()
        except BaseException:
            session.rollback()
            raise

    def overwrite(self, lease: Fenced, value: str) -> None:
        with Session(self._engine) as session, session.begin():
            GuardedEntity(session, KitRow).upsert(lease, KitRow(id=self._id, value=value))

    def delete(self, lease: Fenced) -> None:
        with Session(self._engine) as session, session.begin():
            GuardedEntity(session, KitRow).delete(lease, self._id)

    def look(self) -> tuple[str | None, int | None]:
        with Session(self._engine) as session:
            found = session.scalar(sa.select(KitRow.value).where(KitRow.id == self._id))
            return found, GuardedEntity(session, KitRow).seen(self._id)

    def close(self) -> None:
        self._open.close()
        self._engine.dispose()


class AsyncCoreSubject:
    """`CoreSubject`, awaited."""

    def __init__(self, url: str, resource: str) -> None:
        self._engine = _async_pooled(url)
        self._connection = self._engine.connect()
        self._id = resource
        self._sections = AsyncExitStack()
        self._rows: dict[int, AioGuardedRow] = {}

    async def _table(self) -> aio.GuardedTable[Fenced]:
        if self._connection.sync_connection is None:
            await self._connection.start()
        return aio.GuardedTable(self._connection, TABLE)

    async def enter(self, lease: Fenced) -> str | None:
        table = await self._table()
        async with self._connection.begin():
            row = await self._sections.enter_async_context(table.section(lease, self._id))
        self._rows[lease.fence] = row
        return row["value"] if row.exists else None

    async def write(self, lease: Fenced, value: str) -> None:
        async with self._connection.begin():
            await self._rows[lease.fence].upsert(value=value)

    async def overwrite(self, lease: Fenced, value: str) -> None:
        table = await self._table()
        async with self._connection.begin():
            await table.upsert(lease, self._id, {"value": value})

    async def delete(self, lease: Fenced) -> None:
        table = await self._table()
        async with self._connection.begin():
            await table.delete(lease, self._id)

    async def look(self) -> tuple[str | None, int | None]:
        table = await self._table()
        async with self._connection.begin():
            found = await self._connection.scalar(sa.select(TABLE.c.value).where(TABLE.c.id == self._id))
            return found, await table.seen(self._id)

    async def close(self) -> None:
        await self._sections.aclose()
        if self._connection.sync_connection is not None:
            await self._connection.close()
        await self._engine.dispose()


class AsyncEntitySubject:
    """`EntitySubject`, awaited."""

    def __init__(self, url: str, resource: str) -> None:
        self._engine = _async_pooled(url)
        self._id = resource
        self._open = AsyncExitStack()
        self._sessions: dict[int, AsyncSession] = {}

    async def enter(self, lease: Fenced) -> str | None:
        async with AsyncExitStack() as entering:
            session = await entering.enter_async_context(AsyncSession(self._engine))
            guard = aio.GuardedEntity(session, KitRow)
            found = await entering.enter_async_context(guard.section_or_none(lease, self._id))
            value = None if found is None else found.value
            await session.commit()
            self._open.push_async_exit(entering.pop_all())
        self._sessions[lease.fence] = session
        return value

    async def write(self, lease: Fenced, value: str) -> None:
        session = self._sessions[lease.fence]
        try:
            found = await session.get(KitRow, self._id)
            if found is None:
                session.add(KitRow(id=self._id, value=value))
            else:
                found.value = value
            await session.commit()
        except BaseException:
            await session.rollback()
            raise

    async def overwrite(self, lease: Fenced, value: str) -> None:
        async with AsyncSession(self._engine) as session, session.begin():
            await aio.GuardedEntity(session, KitRow).upsert(lease, KitRow(id=self._id, value=value))

    async def delete(self, lease: Fenced) -> None:
        async with AsyncSession(self._engine) as session, session.begin():
            await aio.GuardedEntity(session, KitRow).delete(lease, self._id)

    async def look(self) -> tuple[str | None, int | None]:
        async with AsyncSession(self._engine) as session:
            found = await session.scalar(sa.select(KitRow.value).where(KitRow.id == self._id))
            return found, await aio.GuardedEntity(session, KitRow).seen(self._id)

    async def close(self) -> None:
        await self._open.aclose()
        await self._engine.dispose()
