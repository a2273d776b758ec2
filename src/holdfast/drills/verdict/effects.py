"""Numbered items of work with an external effect: attempts of the replicas, and effects downstream.

Downstream is idempotent, as required where a lock may be granted without its store (fail open): the effect of an item
happens once, by its number. A repetition is counted and changes nothing. So `attempts` can exceed `effects`; the
difference is the number of absorbed duplicates.

Clock: the wall clock of the host.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

_TABLES = """
CREATE TABLE IF NOT EXISTS attempt (
    risk TEXT NOT NULL, item INTEGER NOT NULL, worker TEXT NOT NULL, fence INTEGER, at_ns INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS effect (
    risk TEXT NOT NULL, item INTEGER NOT NULL, worker TEXT NOT NULL, at_ns INTEGER NOT NULL, PRIMARY KEY (risk, item)
);
"""
_WAIT_S = 30.0


class EffectTally(NamedTuple):
    """The counts of one risk class."""

    attempts: int
    effects: int
    twice: int  # attempts beyond the first of an item: absorbed duplicates
    degraded: int  # attempts without a fence


class EffectAttempt(NamedTuple):
    """A started item."""

    item: int
    worker: str
    fence: int | None
    at_ns: int


class Effects:
    """One connection to the items."""

    def __init__(self, path: Path, worker: str) -> None:
        self._worker = worker
        self._connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")  # the file is deleted after the drill
        self._connection.executescript(_TABLES)

    def done(self, risk: str, item: int) -> bool:
        """Whether the effect of an item exists."""
        found = self._connection.execute("SELECT 1 FROM effect WHERE risk = ? AND item = ?", (risk, item)).fetchone()
        return found is not None

    def attempt(self, risk: str, item: int, fence: int | None) -> None:
        """Record that an item was started."""
        self._connection.execute(
            "INSERT INTO attempt VALUES (?, ?, ?, ?, ?)", (risk, item, self._worker, fence, time.time_ns())
        )

    def effect(self, risk: str, item: int) -> None:
        """Have the effect of an item once, even if several workers ask."""
        self._connection.execute(
            "INSERT OR IGNORE INTO effect VALUES (?, ?, ?, ?)", (risk, item, self._worker, time.time_ns())
        )

    def tally(self, risk: str) -> EffectTally:
        """The counts of a class."""
        one = self._connection.execute
        attempts, distinct, degraded = one(
            "SELECT count(*), count(DISTINCT item), coalesce(sum(fence IS NULL), 0) FROM attempt WHERE risk = ?",
            (risk,),
        ).fetchone()
        [effects] = one("SELECT count(*) FROM effect WHERE risk = ?", (risk,)).fetchone()
        return EffectTally(attempts, effects, attempts - distinct, degraded)

    def attempts(self, risk: str, since_ns: int) -> list[EffectAttempt]:
        """Items started since then, in the order of time."""
        statement = "SELECT item, worker, fence, at_ns FROM attempt WHERE risk = ? AND at_ns >= ? ORDER BY at_ns"
        return [EffectAttempt(*row) for row in self._connection.execute(statement, (risk, since_ns))]

    def times(self, risk: str) -> list[int]:
        """The times of effects."""
        found = self._connection.execute("SELECT at_ns FROM effect WHERE risk = ? ORDER BY at_ns", (risk,))
        return [at_ns for (at_ns,) in found]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
