"""The rows of a guarded table through SQLAlchemy Core: `rows.RowStore` with constructs instead of text.

Promises: what `rows` says, on SQLite and Postgres, with the column types of the `Table` (JSON, Enum, TypeDecorator)
applied both ways. Every step is part of the transaction of the connection or session; nothing is ever committed or
rolled back here but a savepoint of our own.

SQLite takes locks when it meets the first statement that writes, and Python's driver may not even begin before that. So
a step of several statements starts with one that writes nothing: after it there is one real transaction that holds the
write lock, whichever way the driver was told to begin (its legacy mode, `autocommit=False`, a `BEGIN` of your own).
Waiting for that lock lasts as long as the driver's `timeout` says, and then ends with SQLAlchemy's own error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from holdfast.core.lease.fencing import Rule
from holdfast.errors import BadInput, Misconfigured
from holdfast.guards.settings import TableSettings
from holdfast.guards.sql.identifiers import LEDGER_TABLE
from holdfast.guards.sql.rows import Found, RowId, Values, ledger_id
from holdfast.guards.sql.table_flow import TableFlow
from holdfast.guards.sqlalchemy.schema import GuardedSchema, columns_shown, described_table, ledger_table

_INSERTS: Final[Mapping[str, Callable[[sa.Table], Any]]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


class SqlalchemyRows:
    """`rows.RowStore` over one SQLAlchemy connection or session. Its methods never suspend."""

    def __init__(self, source: sa.Connection | Session, about: GuardedSchema) -> None:
        table, names = about.table, about.names
        self._source = source
        self._table = table
        self._names = names
        self._dialect = about.dialect
        self._ledger = ledger_table(schema=table.schema)
        self._fence = table.c[names.fence_column]
        self._entry = (self._ledger.c.place == sa.bindparam("in_place"), self._ledger.c.resource == sa.bindparam("of"))

    def connection(self) -> sa.Connection:
        """The connection of the transaction that is under way; a session begins one if there is none."""
        if isinstance(self._source, Session):
            return self._source.connection(bind_arguments={"clause": self._table})
        return self._source

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """One savepoint around the block, inside a real transaction that holds SQLite's write lock."""
        connection = self.connection()
        if self._dialect == "sqlite":
            self._run(sa.update(self._ledger).values(fence=self._ledger.c.fence).where(sa.false()))
        _check_transaction(connection, self._dialect)
        with connection.begin_nested():
            yield

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """See `RowStore`: always a savepoint, since SQLAlchemy begins a transaction with the first statement."""
        with self.savepoint():
            yield

    async def sees_commits(self) -> bool:
        """See `RowStore`."""
        if self._dialect == "sqlite":
            return True  # one connection writes at a time; SQLite refuses one with an older snapshot
        return self._run(sa.text("SHOW transaction_isolation"))[0][0] in ("read committed", "read uncommitted")

    async def look(self, row: RowId) -> tuple[int | None] | None:
        """See `RowStore`."""
        found = self._run(sa.select(self._fence).where(*self._is(row)))
        return (found[0][0],) if found else None

    async def read(self, row: RowId) -> Found | None:
        """See `RowStore`."""
        return self._found(sa.select(*self._table.c).where(*self._is(row)))

    async def stamp(self, row: RowId, fence: int, rule: Rule) -> Found | None:
        """See `RowStore`."""
        change = sa.update(self._table).values(self._stamped(fence))
        return self._found(change.where(*self._is(row), *self._holds(fence, rule)).returning(*self._table.c))

    async def change(self, row: RowId, fence: int | None, rule: Rule, values: Values) -> Found | None:
        """See `RowStore`."""
        written = {**self._columns(values), **self._updated()}
        if rule is not Rule.NONE:
            written[self._fence] = fence
        change = sa.update(self._table).values(written)
        return self._found(change.where(*self._is(row), *self._holds(fence, rule)).returning(*self._table.c))

    async def make(self, row: RowId, fence: int | None, values: Values) -> Found | None:
        """See `RowStore`."""
        ids = [self._table.c[name] for name in self._names.id_columns]
        written = {**dict(zip(ids, self._parts(row), strict=True)), **self._columns(values), **self._updated()}
        made = _INSERTS[self._dialect](self._table).values({**written, self._fence: fence})
        return self._found(made.on_conflict_do_nothing(index_elements=ids).returning(*self._table.c))

    async def drop(self, row: RowId, fence: int | None, rule: Rule) -> Found | None:
        """See `RowStore`."""
        gone = sa.delete(self._table).where(*self._is(row), *self._holds(fence, rule))
        return self._found(gone.returning(*self._table.c))

    async def noted(self, row: RowId) -> int | None:
        """See `RowStore`."""
        found = self._run(sa.select(self._ledger.c.fence).where(*self._entry), self._place(row))
        return found[0][0] if found else None

    async def note(self, row: RowId, fence: int, rule: Rule) -> bool:
        """See `RowStore`."""
        entry = self._ledger.c
        if rule is Rule.EXACTLY:
            ours = sa.update(self._ledger).values(fence=fence).where(*self._entry, entry.fence == fence)
            return bool(self._run(ours.returning(entry.fence), self._place(row)))
        place = self._place(row)
        new = _INSERTS[self._dialect](self._ledger).values(place=place["in_place"], resource=place["of"], fence=fence)
        raised = new.on_conflict_do_update(
            index_elements=[entry.place, entry.resource],
            set_={"fence": new.excluded.fence, "seen_at": sa.func.current_timestamp()},
            where=entry.fence <= new.excluded.fence,
        )
        return bool(self._run(raised.returning(entry.fence)))

    async def forget(self, row: RowId) -> None:
        """See `RowStore`."""
        self._run(sa.delete(self._ledger).where(*self._entry), self._place(row))

    def _is(self, row: RowId) -> list[sa.ColumnElement[bool]]:
        ids = [self._table.c[name] for name in self._names.id_columns]
        return [column == part for column, part in zip(ids, self._parts(row), strict=True)]

    def _parts(self, row: RowId) -> list[Any]:
        """The id as its columns take it: a UUID in a column of text is text."""
        parts = row if isinstance(row, tuple) else (row,)
        columns = [self._table.c[name] for name in self._names.id_columns]
        return [
            str(part) if isinstance(part, UUID) and isinstance(column.type, sa.String) else part
            for column, part in zip(columns, parts, strict=True)
        ]

    def _holds(self, fence: int | None, rule: Rule) -> list[sa.ColumnElement[bool]]:
        if rule is Rule.NONE:
            return []
        if rule is Rule.EXACTLY:
            return [self._fence == fence]
        return [sa.or_(self._fence.is_(None), self._fence <= fence)]

    def _stamped(self, fence: int) -> dict[sa.Column[Any], Any]:
        # To enter is not to change: columns with an `onupdate` are set to what they are, or SQLAlchemy would apply it.
        kept = {each: each for each in self._table.c if each.onupdate is not None and each is not self._fence}
        return {**kept, self._fence: fence}

    def _place(self, row: RowId) -> dict[str, str]:
        return {"in_place": self._names.table, "of": ledger_id(row)}

    def _columns(self, values: Values) -> dict[sa.Column[Any], Any]:
        if unknown := [name for name in values if name not in self._table.c]:
            raise BadInput(
                "values", f"{self._names.shown} has no column {unknown[0]!r}", f"there is {columns_shown(self._table)}"
            )
        return {self._table.c[name]: value for name, value in values.items()}

    def _updated(self) -> dict[sa.Column[Any], Any]:
        updated = self._names.updated_column
        return {} if updated is None else {self._table.c[updated]: sa.func.current_timestamp()}

    def _found(self, statement: Any) -> Found | None:
        found = self._run(statement)
        return dict(zip(self._table.c.keys(), found[0], strict=True)) if found else None

    def _run(self, statement: sa.Executable, values: Mapping[str, Any] | None = None) -> list[Any]:
        """Run one statement, and read all that it returns: only then is it complete."""
        with self._explaining():
            result = self.connection().execute(statement, values)
            return list(result.all()) if result.returns_rows else []

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """A table that was never prepared is the caller's to mend; everything else is SQLAlchemy's own error."""
        try:
            yield
        except DBAPIError as error:
            text, table = str(error.orig).strip(), self._names.shown
            missing = ("no such column", "no column named", "no such table", "does not exist")
            if any(each in text for each in missing) and (self._fence.name in text or LEDGER_TABLE in text):
                raise Misconfigured(
                    f"{table} is not prepared for a guard ({text}): create ledger_table() and the fence column, "
                    f"or holdfast guard install {table}"
                ) from error
            raise


def _check_transaction(connection: sa.Connection, dialect: str) -> None:
    """A connection that commits each statement alone cannot check and write in one step."""
    driver = connection.connection.driver_connection
    alone = not getattr(driver, "in_transaction", True) if dialect == "sqlite" else getattr(driver, "autocommit", False)
    if alone is True:
        raise Misconfigured("this connection is set to AUTOCOMMIT, and a guard needs transactions; give it another one")


def table_flow(
    source: sa.Connection | Session, table: object, settings: TableSettings, allow_degraded: bool
) -> TableFlow:
    """The steps of a guarded table over a connection or a session."""
    about = described_table(source, table, settings, allow_degraded)
    return TableFlow(SqlalchemyRows(source, about), about.names, about.admission)
