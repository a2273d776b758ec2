"""A guarded table in Postgres, through psycopg 3: `postgres_rows` for asyncio.

A step that is cancelled while it waits is ended on the server too, and has changed nothing, unless its commit was on
the way already. Needs psycopg 3.2 or newer, and `holdfast guard install` (or `guards.install`) once for each table.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, Unpack, overload

from holdfast.guards.aio.tables import AnyAsyncGuardedTable, B_contra, GuardedRow
from holdfast.guards.bearer import Bearer, Fenced
from holdfast.guards.settings import TableSettings, described
from holdfast.guards.sql.identifiers import TableNames
from holdfast.guards.sql.postgres_rows import PostgresRows, check_connection
from holdfast.guards.sql.psycopg_driver import AsyncConnection, AsyncCursor, dict_row, is_idle
from holdfast.guards.sql.rows import Found
from holdfast.guards.sql.statements import SqlQuery
from holdfast.guards.sql.table_flow import TableFlow

__all__ = ["GuardedRow", "GuardedTable"]


class AwaitedRows(PostgresRows):
    """`rows.RowStore` over one `psycopg.AsyncConnection`."""

    def __init__(self, connection: AsyncConnection[Any], names: TableNames) -> None:
        super().__init__(names)
        self._connection = connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """One transaction, or a savepoint in the caller's."""
        before, self._ours = self._ours, is_idle(self._connection)
        try:
            async with self._connection.transaction():
                yield
        finally:
            self._ours = before

    async def _fetch(self, query: SqlQuery) -> Found | None:
        if is_idle(self._connection) and not self._connection.autocommit:
            async with self._connection.transaction():
                return await self._execute(query)
        return await self._execute(query)

    async def _execute(self, query: SqlQuery) -> Found | None:
        async with AsyncCursor(self._connection, row_factory=dict_row) as cursor:
            await cursor.execute(query.text, query.values)
            return await cursor.fetchone() if cursor.description else None


class GuardedTable(AnyAsyncGuardedTable[B_contra]):
    """A Postgres table behind a guard, on one connection. `table` may be `schema.table`."""

    @overload
    def __init__(
        self: GuardedTable[Fenced],
        connection: AsyncConnection[Any],
        table: str,
        *,
        allow_degraded: Literal[False] = False,
        **settings: Unpack[TableSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: GuardedTable[Bearer],
        connection: AsyncConnection[Any],
        table: str,
        *,
        allow_degraded: Literal[True],
        **settings: Unpack[TableSettings],
    ) -> None: ...
    def __init__(
        self,
        connection: AsyncConnection[Any],
        table: str,
        *,
        allow_degraded: bool = False,
        **settings: Unpack[TableSettings],
    ) -> None:
        """`TableSettings` lists the settings. With `allow_degraded`, leases without a fence write unchecked."""
        check_connection(connection, AsyncConnection)
        names, admission = described("postgres", table, settings, allow_degraded)
        super().__init__(TableFlow(AwaitedRows(connection, names), names, admission))
