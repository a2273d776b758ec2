"""A guarded row of a SQLite file, as the guard kit and the demonstrations see it. Importable from child processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from holdfast.guards import Fenced, GuardStatistics
from holdfast.guards.settings import sql
from holdfast.guards.sql.table import AnyGuardedTable
from holdfast.guards.sqlite import GuardedRow, GuardedTable

BUSY_TIMEOUT_S = 30.0


class RowSubject:
    """One row of a blocking guarded table, `id` and `value`. Sections stay open until the subject is closed."""

    def __init__(self, table: AnyGuardedTable[Fenced], row_id: str) -> None:
        self.table = table
        self.row_id = row_id
        self._sections = ExitStack()
        self._rows: dict[object, GuardedRow] = {}

    def enter(self, lease: Fenced) -> str | None:
        # Left when the subject is closed: the kit writes later, when a newer holder has entered meanwhile.
        row = self._sections.enter_context(self.table.section(lease, self.row_id))
        self._rows[lease.fence] = row
        return row["value"] if row.exists else None

    def write(self, lease: Fenced, value: str) -> None:
        self._rows[lease.fence].upsert(value=value)

    def overwrite(self, lease: Fenced, value: str) -> None:
        self.table.upsert(lease, self.row_id, {"value": value})

    def delete(self, lease: Fenced) -> None:
        self.table.delete(lease, self.row_id)

    def close(self) -> None:
        self._sections.close()

    def statistics(self) -> GuardStatistics:
        return self.table.statistics()


class SqliteSubject(RowSubject):
    """A row, through a connection of its own."""

    def __init__(self, path: str, resource: str) -> None:
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        super().__init__(GuardedTable(self._connection, "invoice"), resource)

    def look(self) -> tuple[str | None, int | None]:
        found = self._connection.execute("SELECT value FROM invoice WHERE id = ?", (self.row_id,)).fetchone()
        return None if found is None else found[0], self.table.seen(self.row_id)

    def close(self) -> None:
        super().close()
        self._connection.close()


def prepared(folder: Path) -> Callable[[str], SqliteSubject]:
    """A file with a table as users have it, made ready for a guard; returns how its rows are opened."""
    path = folder / "data.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE invoice (id TEXT PRIMARY KEY, value TEXT)")
    connection.execute("ALTER TABLE invoice ADD COLUMN holdfast_fence INTEGER")
    connection.execute(sql("ledger_sqlite"))
    connection.close()
    return partial(SqliteSubject, str(path))
