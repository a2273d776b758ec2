"""A table as users have it, in a SQLite file and in a Postgres database: `place` runs a test once on each.

`place.run` is a client that knows nothing of Holdfast: plain SQL, committed statement by statement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.guards import Fenced
from holdfast.guards.postgres import GuardedTable as PostgresTable
from holdfast.guards.sql.table import AnyGuardedTable
from holdfast.guards.sqlite import GuardedTable as SqliteTable
from servers_postgres import PostgresExecutable, postgres_executables

INVOICES = "CREATE TABLE invoices (id BIGINT PRIMARY KEY, total BIGINT NOT NULL DEFAULT 0, email TEXT UNIQUE)"

# What Postgres keeps about a schema, and would show if something were left behind.
_COLUMNS = """
    SELECT c.relname, c.relkind::text, a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname !~ '^(pg_|information_)') ORDER BY 1, 3
"""
_CATALOGUE = (
    _COLUMNS,
    "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgname",
    "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
    "SELECT relname FROM pg_class WHERE relpersistence = 't'",
)


class Place:
    """One database, and a plain client of it."""

    def __init__(self, engine: str, url: str, connect: Callable[[], Any]) -> None:
        self.engine = engine
        self.url = url
        self._connect = connect
        self._stack = ExitStack()
        self.connection = self.connect()

    def connect(self) -> Any:
        """Another connection, which commits every statement. It is closed at the end."""
        connection = self._connect()
        self._stack.callback(connection.close)
        return connection

    def run(self, statement: str, by: Any = None) -> list[Any]:
        """Plain SQL; the rows that it returns."""
        cursor = (by or self.connection).execute(statement)
        return list(cursor.fetchall()) if cursor.description else []

    def refused(self, statement: str, by: Any = None) -> str:
        """Plain SQL that a trigger must refuse; with which code."""
        with pytest.raises((sqlite3.IntegrityError, psycopg.Error)) as caught:
            self.run(statement, by)
        if isinstance(caught.value, psycopg.Error):
            return str(caught.value.sqlstate)
        text = str(caught.value)
        assert text.startswith("holdfast HF"), text
        return text.split()[1].rstrip(":")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction of the plain client, committed at the end."""
        self.run("BEGIN")
        yield
        self.run("COMMIT")

    def guard(self, table: str = "invoices", connection: Any = None, **settings: Any) -> AnyGuardedTable[Fenced]:
        """The guard of a table."""
        kind: Any = SqliteTable if self.engine == "sqlite" else PostgresTable
        made: AnyGuardedTable[Fenced] = kind(connection or self.connection, table, **settings)
        return made

    def rows(self, table: str = "invoices") -> list[Any]:
        """Id, total and fence of each row."""
        return self.run(f"SELECT id, total, holdfast_fence FROM {table} ORDER BY id")

    def ledger(self) -> dict[str, int]:
        """What is remembered."""
        return dict(self.run("SELECT resource, fence FROM holdfast_guard_fence ORDER BY 1"))

    def content(self) -> list[Any]:
        """Everything there is: schema, rows, triggers."""
        if self.engine == "sqlite":
            return list(self.connection.iterdump())
        found = [self.run(each) for each in _CATALOGUE]
        tables = self.run(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname !~ '^(pg_|information_)' ORDER BY 1, 2"
        )
        return [*found, *(self.run(f'SELECT * FROM "{schema}"."{table}" ORDER BY 1') for schema, table in tables)]

    def close(self) -> None:
        """Close all connections."""
        self._stack.close()


@contextmanager
def sqlite_place(folder: Path) -> Iterator[Place]:
    path = folder / "app.db"
    place = Place("sqlite", f"sqlite:///{path}", lambda: sqlite3.connect(path, isolation_level=None, timeout=20))
    try:
        yield place
    finally:
        place.close()


def _engines(newest_only: bool) -> list[Any]:
    servers = postgres_executables()[-1:] if newest_only else postgres_executables()
    return [
        pytest.param(None, id="sqlite"),
        *(pytest.param(each, id=str(each), marks=pytest.mark.server) for each in servers),
    ]


def on(engine: str, *values: Any, id: str = "") -> Any:
    """The parameters of a test that only one engine can run: `place`, and whatever else."""
    server = None if engine == "sqlite" else next(iter(postgres_executables()[-1:]), None)
    if engine == "postgres" and server is None:
        return pytest.param(None, *values, id=f"none{id}", marks=pytest.mark.skip(reason="no Postgres server"))
    marks = [pytest.mark.server] if server else []
    name = str(server or "sqlite")
    return pytest.param(server, *values, id=f"{name}-{id}" if id else name, marks=marks)


postgres_only = pytest.mark.parametrize("place", [on("postgres")], indirect=True)
every_engine = pytest.mark.parametrize("place", _engines(newest_only=False), indirect=True)
"""Runs a test on each version of Postgres, too."""


@pytest.fixture(params=_engines(newest_only=True))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A database with a table of invoices that nobody has prepared for a guard."""
    executable: PostgresExecutable | None = request.param
    with ExitStack() as stack:
        if executable is None:
            made = stack.enter_context(sqlite_place(tmp_path))
        else:
            server = request.getfixturevalue("_postgres_servers")(executable)
            url = stack.enter_context(server.database())
            made = Place("postgres", url, lambda: psycopg.connect(url, autocommit=True))
            stack.callback(made.close)
        made.run(INVOICES)
        made.run("INSERT INTO invoices (id, total, email) VALUES (1, 10, 'a'), (2, 20, 'b')")
        yield made
