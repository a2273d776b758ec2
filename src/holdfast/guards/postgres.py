"""A guarded table in Postgres, through psycopg 3: `postgres_rows` in blocking code.

Needs psycopg 3.2 or newer, and `holdfast guard install` (or `guards.install`) once for each table.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, Unpack, overload

from holdfast.guards.bearer import Bearer, Fenced
from holdfast.guards.settings import TableSettings, described
from holdfast.guards.sql.identifiers import TableNames
from holdfast.guards.sql.postgres_rows import PostgresRows, check_connection
from holdfast.guards.sql.psycopg_driver import Connection, Cursor, dict_row, is_idle
from holdfast.guards.sql.rows import Found
from holdfast.guards.sql.statements import SqlQuery
from holdfast.guards.sql.table import AnyGuardedTable, B_contra, GuardedRow
from holdfast.guards.sql.table_flow import TableFlow

__all__ = ["GuardedRow", "GuardedTable"]


class BlockingRows(PostgresRows):
    """`rows.RowStore` over one `psycopg.Connection`. Its methods never suspend."""

    def __init__(self, connection: Connection[Any], names: TableNames) -> None:
        super().__init__(names)
        self._connection = connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """One transaction, or a savepoint in the caller's."""
        before, self._ours = self._ours, is_idle(self._connection)
        try:
            with self._connection.transaction():
                yield
        finally:
            self._ours = before

    async def _fetch(self, query: SqlQuery) -> Found | None:
        if is_idle(self._connection) and not self._connection.autocommit:
            with self._connection.transaction():
                return self._execute(query)
        return self._execute(query)

    def _execute(self, query: SqlQuery) -> Found | None:
        with Cursor(self._connection, row_factory=dict_row) as cursor:
            cursor.execute(query.text, query.values)
            return cursor.fetchone() if cursor.description else None


class GuardedTable(AnyGuardedTable[B_contra]):
    """A Postgres table behind a guard, on one connection. `table` may be `schema.table`."""

    @overload
    def __init__(
        self: GuardedTable[Fenced],
        connection: Connection[Any],
        table: str,
        *,
        allow_degraded: Literal[False] = False,
        **settings: Unpack[TableSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: GuardedTable[Bearer],
        connection: Connection[Any],
        table: str,
        *,
        allow_degraded: Literal[True],
        **settings: Unpack[TableSettings],
    ) -> None: ...
    def __init__(
        self,
        connection: Connection[Any],
        table: str,
        *,
        allow_degraded: bool = False,
        **settings: Unpack[TableSettings],
    ) -> None:
        """`TableSettings` lists the settings. With `allow_degraded`, leases without a fence write unchecked."""
        check_connection(connection, Connection)
        names, admission = described("postgres", table, settings, allow_degraded)
        super().__init__(TableFlow(BlockingRows(connection, names), names, admission))
