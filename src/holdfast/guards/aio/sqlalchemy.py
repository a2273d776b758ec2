"""A guarded table through SQLAlchemy 2 for asyncio, Core or ORM, on SQLite (aiosqlite) and Postgres (psycopg, asyncpg).

    async with engine.begin() as connection:
        async with GuardedTable(connection, invoices, key="invoice:{id}").section(lease, 42) as row:
            await row.update(total=row["total"] + 5)

    async with session.begin():
        async with GuardedEntity(session, Invoice, key="invoice:{id}").section(lease, 42) as invoice:
            invoice.total += 5

Promises what `holdfast.guards.sqlalchemy` does, for it is the same code: SQLAlchemy runs blocking code over an awaited
driver (`run_sync`), so each step goes there as a whole. A step that is cancelled is undone with its savepoint, and your
transaction with whatever ends it.

SQLAlchemy needs `greenlet` for this: `pip install "sqlalchemy[asyncio]"`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

try:
    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session
except ModuleNotFoundError as error:
    from holdfast.errors import Misconfigured

    raise Misconfigured(
        f'this guard needs a library that is not installed ({error.name}): pip install "holdfast[sqlalchemy]"'
    ) from error

from holdfast.core.failpoints import reach
from holdfast.core.lease.fencing import Rule
from holdfast.errors import BadInput
from holdfast.guards.admission import GuardStatistics
from holdfast.guards.aio.tables import AnyAsyncGuardedTable, GuardedRow
from holdfast.guards.bearer import Bearer, Fenced
from holdfast.guards.settings import TableSettings
from holdfast.guards.sql.rows import Found, RowId
from holdfast.guards.sql.table_flow import TableFlow
from holdfast.guards.sqlalchemy.orm import E, EntityFlow
from holdfast.guards.sqlalchemy.rows import table_flow
from holdfast.guards.sqlalchemy.schema import fence_column, ledger_table
from holdfast.guards.sqlalchemy.session_events import Guarded, unguarded
from holdfast.runtime.run_sync import run_now

__all__ = [
    "Guarded",
    "GuardedEntity",
    "GuardedRow",
    "GuardedTable",
    "fence_column",
    "ledger_table",
    "unguarded",
]

V = TypeVar("V")
B_contra = TypeVar("B_contra", bound=Bearer, contravariant=True)

Source = AsyncConnection | AsyncSession


async def _bridged(source: Source, step: Callable[[], Coroutine[Any, Any, V]]) -> V:
    """Run a step of blocking ports where SQLAlchemy lets blocking code wait for the event loop."""
    return await source.run_sync(lambda _blocking: run_now(step()))


class BridgedFlow(TableFlow):
    """The steps of a guarded table, each taken as a whole by the blocking flow behind an awaited connection."""

    def __init__(self, source: Source, flow: TableFlow) -> None:
        self._source = source
        self._flow = flow
        self.names = flow.names
        self.admission = flow.admission

    async def seen(self, row_id: RowId) -> int | None:
        """See `TableFlow`."""
        return await _bridged(self._source, lambda: self._flow.seen(row_id))

    async def enter(self, lease: Bearer, row_id: RowId) -> Found | None:
        """See `TableFlow`."""
        return await _bridged(self._source, lambda: self._flow.enter(lease, row_id))

    async def insert(self, lease: Bearer, row_id: RowId, values: Mapping[str, Any], rule: Rule) -> Found:
        """See `TableFlow`."""
        return await _bridged(self._source, lambda: self._flow.insert(lease, row_id, values, rule))

    async def update(self, lease: Bearer, row_id: RowId, values: Mapping[str, Any], rule: Rule) -> Found:
        """See `TableFlow`."""
        return await _bridged(self._source, lambda: self._flow.update(lease, row_id, values, rule))

    async def upsert(self, lease: Bearer, row_id: RowId, values: Mapping[str, Any], rule: Rule) -> Found:
        """See `TableFlow`."""
        return await _bridged(self._source, lambda: self._flow.upsert(lease, row_id, values, rule))

    async def delete(self, lease: Bearer, row_id: RowId, rule: Rule) -> Found:
        """See `TableFlow`."""
        return await _bridged(self._source, lambda: self._flow.delete(lease, row_id, rule))


class GuardedTable(AnyAsyncGuardedTable[B_contra]):
    """A table behind a guard, on one awaited SQLAlchemy connection or session. See the blocking one."""

    @overload
    def __init__(
        self: GuardedTable[Fenced],
        connection: Source,
        table: sa.Table | type[Any],
        *,
        allow_degraded: Literal[False] = False,
        **settings: Unpack[TableSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: GuardedTable[Bearer],
        connection: Source,
        table: sa.Table | type[Any],
        *,
        allow_degraded: Literal[True],
        **settings: Unpack[TableSettings],
    ) -> None: ...
    def __init__(
        self,
        connection: Source,
        table: sa.Table | type[Any],
        *,
        allow_degraded: bool = False,
        **settings: Unpack[TableSettings],
    ) -> None:
        """`TableSettings` lists the settings; `id` is the primary key unless you say otherwise."""
        flow = table_flow(_blocking(connection), table, settings, allow_degraded)
        super().__init__(BridgedFlow(connection, flow))


def _blocking(connection: object) -> sa.Connection | Session:
    """What SQLAlchemy runs blocking code on."""
    if isinstance(connection, AsyncSession):
        return connection.sync_session
    if not isinstance(connection, AsyncConnection):
        raise BadInput(
            "connection",
            f"{type(connection).__name__} is not an awaited connection",
            "give an AsyncConnection or an AsyncSession; holdfast.guards.sqlalchemy has the blocking guard",
        )
    if connection.sync_connection is None:
        raise BadInput("connection", "is not open", "await it, or use it with `async with engine.connect()`")
    return connection.sync_connection


class GuardedEntity(Generic[E, B_contra]):
    """A mapped class behind a guard, on one awaited session. See the blocking one."""

    @overload
    def __init__(
        self: GuardedEntity[E, Fenced],
        session: AsyncSession,
        entity: type[E],
        *,
        allow_degraded: Literal[False] = False,
        **settings: Unpack[TableSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: GuardedEntity[E, Bearer],
        session: AsyncSession,
        entity: type[E],
        *,
        allow_degraded: Literal[True],
        **settings: Unpack[TableSettings],
    ) -> None: ...
    def __init__(
        self,
        session: AsyncSession,
        entity: type[E],
        *,
        allow_degraded: bool = False,
        **settings: Unpack[TableSettings],
    ) -> None:
        """`TableSettings` lists the settings; rows are identified by the primary key."""
        if not isinstance(session, AsyncSession):
            raise BadInput(
                "session",
                f"{type(session).__name__} is not an awaited session",
                "give an AsyncSession; holdfast.guards.sqlalchemy has the guard for a Session",
            )
        self._flow = EntityFlow(session.sync_session, entity, settings, allow_degraded)
        self._session = session

    @asynccontextmanager
    async def section(self, lease: B_contra, row_id: RowId) -> AsyncIterator[E]:
        """Register the fence and hand out the instance; what the block changes is checked, and flushed at its end.

        `FencedOut` when the row has met a newer holder, `RowMissing` when there is none.
        """
        async with self.section_or_none(lease, row_id) as instance:
            if instance is None:
                raise self._flow.missing(row_id)
            yield instance

    @asynccontextmanager
    async def section_or_none(self, lease: B_contra, row_id: RowId) -> AsyncIterator[E | None]:
        """The same, with None where there is no row: the block can add one with that primary key to the session."""
        instance, before = await _bridged(self._session, lambda: self._flow.open(lease, row_id))
        reach("guard.entered")
        try:
            yield instance
            await self._session.flush()
        finally:
            self._flow.close(row_id, before)

    async def insert(self, lease: B_contra, instance: E) -> None:
        """Add an instance, which has its primary key; `RowExists` if there is such a row."""
        async with self.section_or_none(lease, self._flow.row_of(instance)):
            with self._flow.adding(instance):
                await self._session.flush()

    async def upsert(self, lease: B_contra, instance: E) -> E:
        """Merge an instance into the session: change the row to what it says, or add it. Returns the merged one."""
        async with self.section_or_none(lease, self._flow.row_of(instance)):
            return await self._session.merge(instance)

    async def delete(self, lease: B_contra, row_id: RowId) -> None:
        """Delete a row; its fence is remembered. `RowMissing` if there is none."""
        async with self.section(lease, row_id) as instance:
            await self._session.delete(instance)

    async def seen(self, row_id: RowId) -> int | None:
        """The highest fence that the row has met; None: it has never met one. For people and tests."""
        return await _bridged(self._session, lambda: self._flow.seen(row_id))

    def statistics(self) -> GuardStatistics:
        """What this guard has decided since it was made. Each flush of a row counts as a write."""
        return self._flow.admission.statistics()
