"""Messages and the outbox as the conformance kit sees them. Importable from any process."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from holdfast.guards import Fenced
from holdfast.guards.messages import Inbox, stamped
from holdfast.guards.outbox import Outbox, prepare
from holdfast.guards.records import SqliteRecord
from holdfast.guards.sql.table import GuardedRow
from holdfast.guards.sqlite import GuardedTable

BUSY_S = 60.0


class MessageSubject:
    """A row behind a consumer: every step arrives as a message, passes the inbox, and is handed on to the table."""

    def __init__(self, folder: str, resource: str) -> None:
        self._stack = ExitStack()
        self._record = self._stack.enter_context(closing(SqliteRecord(Path(folder) / "fences.db")))
        self._inbox = Inbox(self._record, "kit")
        path = Path(folder) / "app.db"
        self._data = self._stack.enter_context(closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)))
        self._data.execute(
            "CREATE TABLE IF NOT EXISTS notes (id TEXT PRIMARY KEY, text TEXT, holdfast_fence INTEGER)"
        ).close()
        prepare(self._data)
        self._table = GuardedTable(self._data, "notes")
        self._resource = resource
        self._sections: dict[int, GuardedRow] = {}

    def enter(self, lease: Fenced) -> str | None:
        carried = self._inbox.admit(stamped(lease))
        row = self._stack.enter_context(self._table.section(carried, self._resource))
        self._sections[carried.fence] = row
        return row["text"] if row.exists else None

    def write(self, lease: Fenced, value: str) -> None:
        self._inbox.admit(stamped(lease))
        self._sections[lease.fence].upsert(text=value)

    def overwrite(self, lease: Fenced, value: str) -> None:
        self._table.upsert(self._inbox.admit(stamped(lease)), self._resource, {"text": value})

    def delete(self, lease: Fenced) -> None:
        self._table.delete(self._inbox.admit(stamped(lease)), self._resource)

    def look(self) -> tuple[str | None, int | None]:
        query = "SELECT text FROM notes WHERE id = ?"
        found = self._data.execute(query, (self._resource,)).fetchone()
        return found[0] if found else None, self._inbox.seen(self._resource)

    def close(self) -> None:
        self._stack.close()


class OutboxSubject:
    """The newest message of a lock: what the outbox would send last."""

    def __init__(self, target: str, resource: str) -> None:
        if target.startswith("postgresql:"):
            self._data: Any = psycopg.connect(target, autocommit=True)
            self._place = "%s"
        else:
            self._data = sqlite3.connect(target, timeout=BUSY_S, isolation_level=None)
            self._place = "?"
        self._outbox = Outbox(self._data)
        self._resource = resource

    def enter(self, lease: Fenced) -> str | None:
        with self._transaction():
            self._outbox.enter(lease)
            return self._newest()

    def write(self, lease: Fenced, value: str) -> None:
        self.overwrite(lease, value)

    def overwrite(self, lease: Fenced, value: str) -> None:
        with self._transaction():
            self._outbox.add(lease, "notes", value)

    def delete(self, lease: Fenced) -> None:
        raise NotImplementedError("what was sent cannot be taken back")

    def look(self) -> tuple[str | None, int | None]:
        # In one snapshot: a writer may be at it.
        query = (
            "SELECT (SELECT body FROM holdfast_guard_outbox WHERE key = {0} ORDER BY id DESC LIMIT 1), "
            "(SELECT fence FROM holdfast_guard_fence WHERE place = 'holdfast_guard_outbox' AND resource = {0})"
        )
        body, fence = self._data.execute(query.format(self._place), (self._resource, self._resource)).fetchone()
        return None if body is None else bytes(body).decode(), fence

    def close(self) -> None:
        self._data.close()

    def _newest(self) -> str | None:
        query = f"SELECT body FROM holdfast_guard_outbox WHERE key = {self._place} ORDER BY id DESC LIMIT 1"
        found = self._data.execute(query, (self._resource,)).fetchone()
        return bytes(found[0]).decode() if found else None

    @contextmanager
    def _transaction(self) -> Any:
        if not isinstance(self._data, sqlite3.Connection):
            with self._data.transaction():
                yield
            return
        self._data.execute("BEGIN")  # takes no lock yet: a writer stopped after its check blocks no other
        try:
            yield
            self._data.execute("COMMIT")
        except BaseException:
            self._data.execute("ROLLBACK")
            raise


def open_message(folder: str, resource: str) -> MessageSubject:
    return MessageSubject(folder, resource)


def open_outbox(target: str, resource: str) -> OutboxSubject:
    return OutboxSubject(target, resource)
