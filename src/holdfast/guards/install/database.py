"""A database whose tables are to be guarded: what `install`, `check` and `remove` ask of it, whatever the engine.

Promises: `changing` is one transaction, in which no other process installs or removes; `trying` leaves no trace. A
database that was opened from a URL is closed again; a connection of the caller stays his, and if he has a transaction
open then everything is part of it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from holdfast.errors import BadInput
from holdfast.guards.bearer import Fenced
from holdfast.guards.install.migration import Inspected
from holdfast.guards.sql.identifiers import TableNames
from holdfast.guards.sql.table import AnyGuardedTable
from holdfast.runtime.postgres_driver import missing_driver
from holdfast.stores.registry import redacted

DATABASE_VARIABLE: Final = "HOLDFAST_GUARD_DATABASE"
"""The application's own. `$HOLDFAST_DATABASE` is the plane's, which must not be guarded by mistake."""

Row: TypeAlias = tuple[Any, ...]


class TriggerRefusal(NamedTuple):
    """A statement that was refused: by a trigger of ours, if there is a code."""

    code: str
    text: str


class GuardDatabase(Protocol):
    """One connection to one database. Blocking, for one thread."""

    engine: str
    shown: str  # for people, without a password

    def inspect(self, names: TableNames) -> Inspected:
        """Inspect a table. `Misconfigured` if it is missing or of a kind that cannot be guarded."""
        ...

    def execute(self, statement: str, values: Mapping[str, object] | None = None) -> list[Row]:
        """Run one statement, with `:name` as places, and return its rows."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """Inspect the database, in one transaction where that matters."""
        ...

    def changing(self) -> AbstractContextManager[None]:
        """Change it, in one transaction, alone. `Unavailable` if other clients use the table for too long."""
        ...

    def trying(self) -> AbstractContextManager[None]:
        """Do something, and undo it at the end of the block, whatever happens. Blocks can lie in each other."""
        ...

    def translating(self) -> AbstractContextManager[None]:
        """Raise what the engine raises in the block in the words of Holdfast."""
        ...

    def refusal(self, error: BaseException) -> TriggerRefusal | None:
        """The engine's refusal of a statement; None: the error is no answer to a statement."""
        ...

    def guarded(self, names: TableNames) -> AnyGuardedTable[Fenced]:
        """The guard of a table, on this connection."""
        ...

    def elsewhere(self) -> AbstractContextManager[GuardDatabase] | None:
        """A second connection that does not wait for long; None if there is no way to open one."""
        ...

    def close(self) -> None:
        """Close what was opened here."""
        ...


def open_database(database: object) -> GuardDatabase:
    """`sqlite:///file.db`, `postgresql://…`, a `sqlite3.Connection` or a `psycopg.Connection`.

    None: `$HOLDFAST_GUARD_DATABASE`.
    """
    field = "database"
    if database is None:
        field, database = f"${DATABASE_VARIABLE}", os.environ.get(DATABASE_VARIABLE, "")
        if not database:
            raise BadInput("database", "is missing", f"give --database, or set {DATABASE_VARIABLE}")
    if isinstance(database, sqlite3.Connection):
        from holdfast.guards.install.sqlite import SqliteGuardDatabase

        return SqliteGuardDatabase(database)
    if isinstance(database, str):
        return _from_url(field, database)
    if type(database).__module__.partition(".")[0] == "psycopg":
        given: GuardDatabase = _postgres().of(database)
        return given
    raise BadInput(
        field, f"{type(database).__name__} is not a database", "give a URL, a sqlite3 or a blocking psycopg connection"
    )


def _from_url(field: str, url: str) -> GuardDatabase:
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme == "sqlite":
        from holdfast.guards.install.sqlite import SqliteGuardDatabase

        return SqliteGuardDatabase.opened(url)
    if scheme in ("postgresql", "postgres"):
        connected: GuardDatabase = _postgres().opened(url)
        return connected
    raise BadInput(
        field, f"{redacted(url)!r} is not a database that can be guarded", "use sqlite:///file.db or postgresql://…"
    )


def _postgres() -> Any:
    try:
        from holdfast.guards.install.postgres import PostgresGuardDatabase
    except ImportError as error:
        raise missing_driver("postgresql://", error) from error
    return PostgresGuardDatabase


def only(rows: Sequence[Row]) -> Any:
    """The one value that was requested; None if there is no row."""
    return rows[0][0] if rows else None
