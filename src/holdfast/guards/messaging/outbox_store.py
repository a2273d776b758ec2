"""Where an outbox lies: a SQLite or a Postgres database, through one connection, in one color.

The statements stand in `sql/outbox_steps.sql`, once for both dialects. A connection is the caller's (`Outbox`), whose
transactions are left alone, or was made for a relay, which then decides itself when something is committed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from holdfast.errors import BadInput, Misconfigured, Unavailable
from holdfast.guards.settings import sql
from holdfast.guards.sql.statements import SqlQuery

Rows: TypeAlias = list[dict[str, Any]]

_RELAY: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
_SECTION: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_PLACE: Final = re.compile(r"(?<!:):([a-z_]+)")
_SQLITE_NOW: Final = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
_POSTGRES_NOW: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
UNPREPARED: Final = "the outbox is not prepared: call prepare(connection) once, see holdfast.guards.outbox"


class OutboxStore(Protocol):
    """One database that has an outbox, as the flows see it."""

    dialect: str

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, so that what is written now is committed or undone with it."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """One transaction around the block; a savepoint if one is open."""
        ...

    async def run(self, query: SqlQuery) -> Rows:
        """Run one statement and return the rows that it brings."""
        ...

    async def own(self) -> None:
        """Prepare a connection that a relay was given for itself: nothing is committed later than it is said."""
        ...

    def turn(self) -> AbstractAsyncContextManager[bool]:
        """Be the relay in the block, where there can only be one. False: another one is at it."""
        ...

    def hold(self) -> AbstractAsyncContextManager[object]:
        """Keep the message that is found in the block from other relays until its end."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


def step(dialect: str, name: str, **values: Any) -> SqlQuery:
    """The statement of this name, with its values."""
    return SqlQuery(_statements(dialect)[name], values)


@cache
def _statements(dialect: str) -> dict[str, str]:
    parts = _SECTION.split(sql("outbox_steps"))[1:]
    return {name: _spoken(dialect, text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _spoken(dialect: str, text: str) -> str:
    """A statement in the words of a dialect, without its comments."""
    lines = [line for line in text.strip().splitlines() if not line.startswith("--")]
    spoken = "\n".join(lines)
    if dialect == "sqlite":
        return spoken.replace("{now}", _SQLITE_NOW).replace("{alone}", "")
    places = _PLACE.sub(r"%(\1)s", spoken)
    return places.replace("{now}", _POSTGRES_NOW).replace("{alone}", "FOR UPDATE OF message SKIP LOCKED")


def definitions(dialect: str) -> list[str]:
    """The statements that make the outbox and the ledger. None of them has a semicolon inside."""
    return [*sql(f"outbox_{dialect}").split(";\n"), sql(f"ledger_{dialect}")]


class SqliteOutboxStore:
    """`OutboxStore` over one sqlite3 connection. Its methods never suspend."""

    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def in_transaction(self) -> bool:
        """See `OutboxStore`."""
        return self._connection.in_transaction

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """See `OutboxStore`."""
        execute = self._connection.execute
        inside = self._connection.in_transaction
        execute("SAVEPOINT holdfast_outbox" if inside else "BEGIN IMMEDIATE")
        try:
            yield
            execute("RELEASE holdfast_outbox" if inside else "COMMIT")
        except BaseException:
            # SQLite rolls back automatically on some errors (a full disk); then there is nothing left to undo.
            if self._connection.in_transaction:
                for undo in ("ROLLBACK TO holdfast_outbox", "RELEASE holdfast_outbox") if inside else ("ROLLBACK",):
                    execute(undo)
            raise

    async def run(self, query: SqlQuery) -> Rows:
        """See `OutboxStore`."""
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the connection's own is the caller's business
        try:
            found = cursor.execute(query.text, query.values).fetchall()
            names = [column[0] for column in cursor.description or ()]
        except sqlite3.OperationalError as error:
            if "no such table: holdfast_guard_" in str(error):
                raise Misconfigured(UNPREPARED) from error
            raise
        finally:
            cursor.close()
        return [dict(zip(names, row, strict=True)) for row in found]

    async def own(self) -> None:
        """See `OutboxStore`."""
        self._connection.isolation_level = None
        if getattr(self._connection, "autocommit", None) is False:
            setattr(self._connection, "autocommit", True)  # noqa: B010 - an attribute of Python 3.12 and newer

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """See `OutboxStore`. A lock of the operating system beside the file: it ends with the process that has it.

        Not SQLite's own write lock, for that would block every writer of the database while the bus is slow. And not a
        claim that expires, for then a relay that was stopped would send an old message after newer ones.
        """
        from holdfast.guards.files.flock import locked, opened  # where there is no flock, the rest works all the same

        path = self._file()
        with contextlib.ExitStack() as stack:
            ours = True
            if path:  # otherwise it is in memory, and there is no other connection
                descriptor = stack.enter_context(
                    # Who may not open the database may not stop its relay either.
                    opened(f"{path}-holdfast-relay", _RELAY, mode=_mode_of(path))
                )
                try:
                    stack.enter_context(locked(descriptor, 0, path))
                except Unavailable:
                    ours = False
            yield ours

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """See `OutboxStore`. The relay whose turn it is, is alone already."""
        yield

    async def close(self) -> None:
        """See `OutboxStore`."""
        self._connection.close()

    def _file(self) -> str:
        for _, name, file in self._connection.execute("PRAGMA database_list").fetchall():
            if name == "main":
                return str(file)
        return ""


def blocking_store(connection: object) -> OutboxStore:
    """The store that fits a connection of a blocking driver, or `BadInput`."""
    if isinstance(connection, sqlite3.Connection):
        if sqlite3.sqlite_version_info < (3, 35):
            raise Misconfigured(f"the SQLite library is {sqlite3.sqlite_version}; the outbox needs 3.35 or newer")
        return SqliteOutboxStore(connection)
    if type(connection).__module__.partition(".")[0] == "psycopg":
        from holdfast.guards.messaging.outbox_postgres import blocking_postgres

        return blocking_postgres(connection)
    raise BadInput(
        "connection",
        f"{type(connection).__name__} is not a connection",
        "give a sqlite3.Connection or a psycopg.Connection",
    )


def _mode_of(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)
