"""A guarded row of a table with triggers, as the guard kit sees it: the triggers let the guards do their work."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg

from holdfast.guards import install
from holdfast.guards.postgres import GuardedTable as PostgresTable
from holdfast.guards.sqlite import GuardedTable as SqliteTable
from support.guards.subjects_sqlite import RowSubject

BUSY_TIMEOUT_S = 30.0


class TriggeredSubject(RowSubject):
    """A row, through a connection of its own."""

    def __init__(self, url: str, resource: str) -> None:
        self._connection: Any
        if url.startswith("sqlite"):
            path = url.removeprefix("sqlite:///")
            self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            super().__init__(SqliteTable(self._connection, "documents"), resource)
        else:
            self._connection = psycopg.connect(url, autocommit=True)
            super().__init__(PostgresTable(self._connection, "documents"), resource)

    def look(self) -> tuple[str | None, int | None]:
        found = self._connection.execute(f"SELECT value FROM documents WHERE id = '{self.row_id}'").fetchone()
        return None if found is None else found[0], self.table.seen(self.row_id)

    def close(self) -> None:
        super().close()
        self._connection.close()


def prepared(connection: Any, url: str, trigger: str) -> Callable[[str], TriggeredSubject]:
    """Make the table, install the triggers, and return how its rows are opened."""
    if url.startswith("sqlite"):
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, value TEXT)")
    install.install(url, "documents", trigger=trigger)
    return partial(TriggeredSubject, url)
