"""A guarded table in SQLite, through the standard library's `sqlite3`.

Promises: what `rows` says, between all connections to one file. The connection is the caller's: if it has a transaction
open, every step is part of it (and of its rollback); otherwise each step is committed alone, whatever the
connection's `isolation_level` or `autocommit`. The steps take the write lock first (`BEGIN IMMEDIATE`), so they wait
for other writers as long as the connection's `timeout` says and then raise sqlite3's own error, with nothing changed.

Needs SQLite 3.35 (RETURNING), and `holdfast guard install` (or `guards.install`) once for each table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, Unpack, overload
from uuid import UUID

from holdfast.core.lease.fencing import Rule
from holdfast.errors import BadInput, Misconfigured
from holdfast.guards.bearer import Bearer, Fenced
from holdfast.guards.settings import TableSettings, described
from holdfast.guards.sql.identifiers import LEDGER_TABLE, TableNames
from holdfast.guards.sql.rows import Found, RowId, Values
from holdfast.guards.sql.statements import SqlQuery, TableStatements, named
from holdfast.guards.sql.table import AnyGuardedTable, B_contra, GuardedRow
from holdfast.guards.sql.table_flow import TableFlow

__all__ = ["GuardedRow", "GuardedTable"]


class SqliteRows:
    """`rows.RowStore` over one sqlite3 connection. Its methods never suspend."""

    def __init__(self, connection: sqlite3.Connection, names: TableNames) -> None:
        self._connection = connection
        self._names = names
        self._statements = TableStatements(names, named)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """One transaction, or a savepoint in the caller's."""
        execute = self._connection.execute
        inside = self._connection.in_transaction
        begin, commit, undo = _SAVEPOINT if inside else _TRANSACTION
        execute(begin)
        try:
            yield
            execute(commit)
        except BaseException:
            # SQLite rolls back automatically on some errors (a full disk); then there is nothing left to undo.
            if self._connection.in_transaction:
                for statement in undo:
                    execute(statement)
            raise

    async def sees_commits(self) -> bool:
        """See `RowStore`: only one connection writes at a time, and SQLite refuses one with an older snapshot."""
        return True

    async def look(self, row: RowId) -> tuple[int | None] | None:
        """See `RowStore`."""
        found = self._fetch(self._statements.look(row))
        return None if found is None else (found[self._names.fence_column],)

    async def read(self, row: RowId) -> Found | None:
        """See `RowStore`."""
        return self._fetch(self._statements.read(row))

    async def stamp(self, row: RowId, fence: int, rule: Rule) -> Found | None:
        """See `RowStore`."""
        return await self._write(self._statements.stamp(row, fence, rule))

    async def change(self, row: RowId, fence: int | None, rule: Rule, values: Values) -> Found | None:
        """See `RowStore`."""
        return await self._write(self._statements.change(row, fence, rule, values))

    async def make(self, row: RowId, fence: int | None, values: Values) -> Found | None:
        """See `RowStore`."""
        return await self._write(self._statements.make(row, fence, values))

    async def drop(self, row: RowId, fence: int | None, rule: Rule) -> Found | None:
        """See `RowStore`."""
        return await self._write(self._statements.drop(row, fence, rule))

    async def noted(self, row: RowId) -> int | None:
        """See `RowStore`."""
        found = self._fetch(self._statements.noted(row))
        return None if found is None else found["fence"]

    async def note(self, row: RowId, fence: int, rule: Rule) -> bool:
        """See `RowStore`."""
        return await self._write(self._statements.note(row, fence, rule)) is not None

    async def forget(self, row: RowId) -> None:
        """See `RowStore`."""
        await self._write(self._statements.forget(row))

    async def _write(self, query: SqlQuery) -> Found | None:
        """Run a statement that changes something, and see it committed unless a transaction is open."""
        if self._connection.in_transaction:
            return self._fetch(query)
        async with self.transaction():
            return self._fetch(query)

    def _fetch(self, query: SqlQuery) -> Found | None:
        # A cursor of our own: the connection's row factory is the caller's business.
        cursor = self._connection.cursor()
        cursor.row_factory = None
        try:
            # Read to the end: only then is the statement complete.
            found = cursor.execute(query.text, _bound(query.values)).fetchall()
        except sqlite3.OperationalError as error:
            raise _explained(error, self._names) from error
        finally:
            names = [column[0] for column in cursor.description or ()]
            cursor.close()
        return dict(zip(names, found[0], strict=True)) if found else None


def _bound(values: dict[str, Any]) -> dict[str, Any]:
    """UUIDs as text, as most people keep them, unless the program has taught sqlite3 another way."""
    if (UUID, sqlite3.PrepareProtocol) in sqlite3.adapters:
        return values
    return {name: str(value) if isinstance(value, UUID) else value for name, value in values.items()}


_TRANSACTION = ("BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",))
_SAVEPOINT = (
    "SAVEPOINT holdfast_guard",
    "RELEASE holdfast_guard",
    ("ROLLBACK TO holdfast_guard", "RELEASE holdfast_guard"),
)


def _explained(error: sqlite3.OperationalError, names: TableNames) -> Exception:
    """A table that was never prepared is the caller's to mend; everything else is SQLite's own error."""
    text = str(error)
    unprepared = (f"no such column: {names.fence_column}", f"no column named {names.fence_column}", LEDGER_TABLE)
    if any(each in text.replace('"', "") for each in unprepared):
        return Misconfigured(
            f"{names.shown} is not prepared for a guard ({text}): holdfast guard install {names.shown}"
        )
    return error


class GuardedTable(AnyGuardedTable[B_contra]):
    """A SQLite table behind a guard, on one connection."""

    @overload
    def __init__(
        self: GuardedTable[Fenced],
        connection: sqlite3.Connection,
        table: str,
        *,
        allow_degraded: Literal[False] = False,
        **settings: Unpack[TableSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: GuardedTable[Bearer],
        connection: sqlite3.Connection,
        table: str,
        *,
        allow_degraded: Literal[True],
        **settings: Unpack[TableSettings],
    ) -> None: ...
    def __init__(
        self,
        connection: sqlite3.Connection,
        table: str,
        *,
        allow_degraded: bool = False,
        **settings: Unpack[TableSettings],
    ) -> None:
        """`TableSettings` lists the settings. With `allow_degraded`, leases without a fence write unchecked."""
        _check_connection(connection)
        names, admission = described("sqlite", table, settings, allow_degraded)
        super().__init__(TableFlow(SqliteRows(connection, names), names, admission))


def _check_connection(connection: Any) -> None:
    if not isinstance(connection, sqlite3.Connection):
        raise BadInput("connection", f"{type(connection).__name__} is not a connection", "give a sqlite3.Connection")
    if sqlite3.sqlite_version_info < (3, 35):
        raise Misconfigured(f"the SQLite library is {sqlite3.sqlite_version}; guards need 3.35 or newer")
