"""The resource that the demonstration protects: a balance in a SQLite table behind a guard.

Promises: what `holdfast.guards` promises, shown on one row. Every attempt is kept, in order, in one history, refused
ones too; the verdict is read from there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from holdfast.errors import FencedOut
from holdfast.guards import CarriedFence
from holdfast.guards.settings import sql
from holdfast.guards.sqlite import GuardedTable
from holdfast.runtime.private_files import create_private

_TABLES = """
CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, holdfast_fence INTEGER);
CREATE TABLE IF NOT EXISTS history (
    id INTEGER PRIMARY KEY AUTOINCREMENT, worker TEXT NOT NULL, fence INTEGER NOT NULL, what TEXT NOT NULL,
    accepted INTEGER NOT NULL
);
INSERT OR IGNORE INTO account VALUES (1, 0, NULL);
"""
_REMEMBER = "INSERT INTO history (worker, fence, what, accepted) VALUES (?, ?, ?, ?)"
_ROW = 1
_KEY = "account"


class Deed(NamedTuple):
    """One line of the history."""

    worker: str
    fence: int
    what: str  # enter, write, leave
    accepted: bool


class Account:
    """One worker's connection to the balance."""

    def __init__(self, path: str, worker: str) -> None:
        self._worker = worker
        create_private(path)
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.executescript(f"{_TABLES};{sql('ledger_sqlite')}")
        self._table = GuardedTable(self._connection, "account")

    def enter(self, fence: int) -> bool:
        """Register a fence. False: a newer one has been here."""
        return self._attempt("enter", fence, lambda bearer: self._table.enter(bearer, _ROW))

    def write(self, fence: int, balance: int) -> bool:
        """Set the balance. False: a newer fence has been here, and nothing was changed."""
        return self._attempt("write", fence, lambda bearer: self._table.update(bearer, _ROW, {"balance": balance}))

    def leave(self, fence: int) -> None:
        """Note that this grant is done."""
        self._connection.execute(_REMEMBER, (self._worker, fence, "leave", True))

    def balance(self) -> int:
        """The balance."""
        row = self._connection.execute("SELECT balance FROM account").fetchone()
        return int(row[0])

    def fence(self) -> int:
        """The highest fence that was ever here."""
        return self._table.seen(_ROW) or 0

    def history(self) -> list[Deed]:
        """Everything that was tried, in the order in which the file saw it."""
        rows = self._connection.execute("SELECT worker, fence, what, accepted FROM history ORDER BY id").fetchall()
        return [Deed(worker, fence, what, bool(accepted)) for worker, fence, what, accepted in rows]

    def _attempt(self, what: str, fence: int, step: Callable[[CarriedFence], object]) -> bool:
        """Take a step through the guard and remember what came of it, in one transaction.

        The bare fence is presented, and not the lease: the demonstration is about what storage refuses, also from an
        owner that does not look at its own clock.
        """
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            accepted = True
            try:
                step(CarriedFence(_KEY, fence))
            except FencedOut:
                accepted = False
            self._connection.execute(_REMEMBER, (self._worker, fence, what, accepted))
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        return accepted

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
