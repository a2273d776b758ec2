"""The resource that the demonstration protects: a balance in a SQLite table that refuses writes under an old fence.

Promises: a write or a read under a fence lower than the highest one seen changes nothing and is refused. Whoever enters
registers its fence *before its first read*: a fence that is checked only at the write would still let an owner who read
before the hand-over, and writes after it, overwrite its successor's work. Every attempt is kept, in order, in one
history, refused ones too; the verdict is read from there.
"""

from __future__ import annotations

import sqlite3
from types import TracebackType
from typing import NamedTuple, Self

_TABLES = """
CREATE TABLE IF NOT EXISTS account (
    id INTEGER PRIMARY KEY CHECK (id = 1), balance INTEGER NOT NULL, fence INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS history (
    id INTEGER PRIMARY KEY AUTOINCREMENT, worker TEXT NOT NULL, fence INTEGER NOT NULL, what TEXT NOT NULL,
    accepted INTEGER NOT NULL
);
INSERT OR IGNORE INTO account VALUES (1, 0, 0);
"""
_ENTER = "UPDATE account SET fence = :fence WHERE fence <= :fence"
_WRITE = "UPDATE account SET fence = :fence, balance = :balance WHERE fence <= :fence"
_REMEMBER = "INSERT INTO history (worker, fence, what, accepted) VALUES (?, ?, ?, ?)"


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
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.executescript(_TABLES)

    def enter(self, fence: int) -> bool:
        """Register a fence. False: a newer one has been here."""
        return self._attempt("enter", _ENTER, {"fence": fence})

    def write(self, fence: int, balance: int) -> bool:
        """Set the balance. False: a newer fence has been here, and nothing was changed."""
        return self._attempt("write", _WRITE, {"fence": fence, "balance": balance})

    def leave(self, fence: int) -> None:
        """Note that this grant is done."""
        self._connection.execute(_REMEMBER, (self._worker, fence, "leave", True))

    def balance(self) -> int:
        """The balance."""
        row = self._connection.execute("SELECT balance FROM account").fetchone()
        return int(row[0])

    def fence(self) -> int:
        """The highest fence that was ever here."""
        row = self._connection.execute("SELECT fence FROM account").fetchone()
        return int(row[0])

    def history(self) -> list[Deed]:
        """Everything that was tried, in the order in which the file saw it."""
        rows = self._connection.execute("SELECT worker, fence, what, accepted FROM history ORDER BY id").fetchall()
        return [Deed(worker, fence, what, bool(accepted)) for worker, fence, what, accepted in rows]

    def _attempt(self, what: str, statement: str, values: dict[str, int]) -> bool:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            accepted = self._connection.execute(statement, values).rowcount == 1
            self._connection.execute(_REMEMBER, (self._worker, values["fence"], what, accepted))
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
