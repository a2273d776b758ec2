"""The rows of a guarded table through psycopg 3, without a color: statements, values, and what errors mean.

Promises: what `rows` says, between all connections to one database. The connection is the caller's: if it has a
transaction open, every step is part of it (and of its rollback), in a savepoint where it takes several statements;
otherwise each step is committed separately, with `autocommit` on or off, and leaves the connection as idle as it was.
Its row factory and cursor factory do not matter. A transaction that has failed stays failed: psycopg says so.

Does not promise anything for a connection that two threads or tasks use at a time: they share one transaction, and one
of them undoes what the other was told is done. Waiting for another writer's lock is limited by the `lock_timeout` and
`statement_timeout` of the session, and ends with psycopg's own error, nothing changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from holdfast.core.lease.fencing import Rule
from holdfast.errors import BadInput, Misconfigured
from holdfast.guards.sql.identifiers import LEDGER_TABLE, TableNames
from holdfast.guards.sql.psycopg_driver import AsyncConnection, Connection, Error, Int8, errors
from holdfast.guards.sql.rows import Found, RowId, Values, ledger_id
from holdfast.guards.sql.statements import SqlQuery, TableStatements, pyformat

# As the first statement of a transaction of ours: the connection, the role or the server may have another default.
FOLLOW: Final = SqlQuery("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", {})
ISOLATION: Final = SqlQuery("SELECT current_setting('transaction_isolation') AS level", {})


class PostgresRows(ABC):
    """`rows.RowStore` over one psycopg connection; the two colors differ in how a statement is run."""

    def __init__(self, names: TableNames) -> None:
        self._names = names
        self._statements = TableStatements(names, pyformat)
        self._ours = False  # whether the transaction under way was begun here

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[object]:
        """See `RowStore`."""

    @abstractmethod
    async def _fetch(self, query: SqlQuery) -> Found | None:
        """Run one statement, committed alone unless a transaction is open, and return the row that it found."""

    async def sees_commits(self) -> bool:
        """See `RowStore`."""
        if self._ours:
            await self._fetch(FOLLOW)
            return True
        found = await self._fetch(ISOLATION)
        return found is not None and found["level"] in ("read committed", "read uncommitted")

    async def look(self, row: RowId) -> tuple[int | None] | None:
        """See `RowStore`."""
        found = await self._by_id(self._statements.look(row))
        return None if found is None else (found[self._names.fence_column],)

    async def read(self, row: RowId) -> Found | None:
        """See `RowStore`."""
        return await self._by_id(self._statements.read(row))

    async def stamp(self, row: RowId, fence: int, rule: Rule) -> Found | None:
        """See `RowStore`."""
        return await self._by_id(self._statements.stamp(row, fence, rule))

    async def change(self, row: RowId, fence: int | None, rule: Rule, values: Values) -> Found | None:
        """See `RowStore`."""
        return await self._run(self._statements.change(row, fence, rule, values))

    async def make(self, row: RowId, fence: int | None, values: Values) -> Found | None:
        """See `RowStore`."""
        return self._spelt(row, await self._run(self._statements.make(row, fence, values)))

    async def drop(self, row: RowId, fence: int | None, rule: Rule) -> Found | None:
        """See `RowStore`."""
        return self._spelt(row, await self._by_id(self._statements.drop(row, fence, rule)))

    async def noted(self, row: RowId) -> int | None:
        """See `RowStore`."""
        found = await self._run(self._statements.noted(row))
        return None if found is None else found["fence"]

    async def note(self, row: RowId, fence: int, rule: Rule) -> bool:
        """See `RowStore`."""
        return await self._run(self._statements.note(row, fence, rule)) is not None

    async def forget(self, row: RowId) -> None:
        """See `RowStore`."""
        await self._run(self._statements.forget(row))

    async def _by_id(self, query: SqlQuery) -> Found | None:
        """A statement that takes nothing from the caller but the id: a value that Postgres cannot read is that."""
        try:
            return await self._run(query)
        except errors.DataError as error:
            raise BadInput(
                "row_id", f"Postgres cannot read it ({_message(error)})", "give an id of the column's type"
            ) from error

    async def _run(self, query: SqlQuery) -> Found | None:
        try:
            return await self._fetch(SqlQuery(query.text, _bound(query.values)))
        except (errors.UndefinedColumn, errors.UndefinedTable, errors.InvalidColumnReference) as error:
            raise _explained(error, self._names) from error

    def _spelt(self, row: RowId, found: Found | None) -> Found | None:
        """One row has one entry in the ledger, so a row that is made or deleted is called as Postgres shows it.

        '07' finds the row 7 of a numeric column, and the text of a UUID finds it in capitals too; under such a name an
        older holder would not meet the memory of what a newer one has deleted. Raised inside the transaction.
        """
        if found is not None:
            ids = tuple(found[column] for column in self._names.id_columns)
            shown: Any = ids if len(ids) > 1 else ids[0]
            if ledger_id(shown) != ledger_id(row):
                given = row if isinstance(row, tuple) else str(row)
                raise BadInput(
                    "row_id",
                    f"{given!r} is not how Postgres shows it",
                    f"give {shown!r}: the guard remembers rows that do not exist by name",
                )
        return found


def check_connection(connection: object, wanted: type[Any]) -> None:
    """`BadInput` for what is not a connection, and for one of the other color."""
    if isinstance(connection, wanted):
        return
    fix = f"give a psycopg.{wanted.__name__}"
    if isinstance(connection, Connection):
        fix += ", or use holdfast.guards.postgres with this one"
    elif isinstance(connection, AsyncConnection):
        fix += ", or use holdfast.guards.aio.postgres with this one"
    raise BadInput("connection", f"{type(connection).__name__} cannot be used here", fix)


def _bound(values: dict[str, Any]) -> dict[str, Any]:
    """The values as the driver gets them.

    Ids go as text of no type, so that Postgres reads them as what the column is: a number fits a text column, and text
    a UUID. Fences are always 64 bits wide, or each width would make a prepared statement of its own.
    """
    bound = dict(values)
    for name, value in values.items():
        if name.startswith("id"):
            bound[name] = str(value)
        elif name == "fence" and value is not None:
            bound[name] = Int8(value)
    return bound


def _explained(error: Error, names: TableNames) -> Exception:
    """A table that was never prepared is the caller's to mend; everything else is psycopg's own error."""
    text = _message(error)
    if isinstance(error, errors.InvalidColumnReference):
        return Misconfigured(
            f"{names.shown} has no unique index on {', '.join(names.id_columns)} ({text}): make one, for without it "
            "two rows could have the same id"
        )
    unprepared = (names.fence_column, LEDGER_TABLE)
    if isinstance(error, errors.UndefinedTable) or any(each in text for each in unprepared):
        return Misconfigured(
            f"{names.shown} is not prepared for a guard ({text}): holdfast guard install {names.shown}"
        )
    return error


def _message(error: Error) -> str:
    return error.diag.message_primary or str(error)
