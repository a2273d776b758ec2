"""A nightly job that must run once, however many replicas wake up for it: compare two tables, and mend one of them.

    python -m examples.nightly_reconciler

Every replica has the same timer and calls `reconcile` at the same moment. The *lock* lets one in at a time. The
*section* tells the second that the night is done, and makes the database refuse a first one that was paused and wakes
up late: the corrections and the guarded line that says so are one transaction, so neither is there without the other.
No plane is needed: this is a lock and a guard, in any process of yours.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import holdfast
from holdfast.guards.bearer import carried
from holdfast.guards.install import install
from holdfast.guards.sqlite import GuardedTable

TABLES: Final = """
    CREATE TABLE orders (id INTEGER PRIMARY KEY, paid INTEGER NOT NULL);
    CREATE TABLE statement (id INTEGER PRIMARY KEY, paid INTEGER NOT NULL);
    CREATE TABLE nights (night TEXT PRIMARY KEY, replica TEXT NOT NULL, corrected INTEGER NOT NULL);
    INSERT INTO orders VALUES (1, 100), (2, 250), (3, 0), (4, 80);
    INSERT INTO statement VALUES (1, 100), (2, 200), (3, 75), (4, 80);
"""

DIFFERENT: Final = """
    SELECT statement.paid, orders.id FROM orders JOIN statement ON statement.id = orders.id
    WHERE orders.paid <> statement.paid ORDER BY orders.id
"""


@dataclass(frozen=True)
class Replica:
    """One process of a service, so to speak."""

    name: str
    directory: Path

    def reconcile(self, night: str) -> str:
        """Correct the orders by the bank's statement, unless that was done tonight. Returns the outcome."""
        with (
            closing(books(self.directory)) as data,
            holdfast.connect(leases(self.directory)) as locks,
            locks.lock(f"nightly:{night}", ttl=30, timeout=60) as lease,
            nights(data).section(lease, night) as row,
        ):
            if row.exists:
                return f"{self.name}: {row['replica']} has done it"
            wrong = data.execute(DIFFERENT).fetchall()
            lease.ensure_held(min_remaining=5)  # comparing may have taken long
            with data:  # all of it, or nothing
                data.execute("BEGIN IMMEDIATE")
                data.executemany("UPDATE orders SET paid = ? WHERE id = ?", wrong)
                row.insert(replica=self.name, corrected=len(wrong))
            return f"{self.name}: corrected {len(wrong)}"


def nights(data: sqlite3.Connection) -> GuardedTable[Any]:
    """Which nights are done, held to the fence of the night's lock."""
    return GuardedTable(data, "nights", id="night", key="nightly:{night}")


def leases(directory: Path) -> str:
    """Where the replicas keep their leases. On several hosts that is a Redis."""
    return f"sqlite:///{directory / 'leases.db'}"


def books(directory: Path) -> sqlite3.Connection:
    """A connection to the tables."""
    return sqlite3.connect(directory / "books.db", timeout=30)


def make_books(directory: Path) -> None:
    """The tables, once."""
    with closing(books(directory)) as data:
        data.executescript(TABLES)
        install(data, "nights", id="night", trigger="strict")
        data.commit()


def show(directory: Path) -> list[str]:
    """Let three replicas wake up together, and a paused one continue late. Returns the events, in lines."""
    make_books(directory)
    replicas = [Replica(name, directory) for name in ("a", "b", "c")]
    with ThreadPoolExecutor(len(replicas)) as threads:
        told = threads.map(lambda each: each.reconcile("2026-03-01"), replicas)
        lines = sorted(told, key=lambda line: line.partition(": ")[2])  # the replica that did the work is the last
    lines.append(f"late: {_write_late(directory, '2026-03-01')}")
    with closing(books(directory)) as data:
        done = data.execute("SELECT night, corrected FROM nights").fetchall()
        return [*lines, f"nights: {done}", f"differences: {data.execute(DIFFERENT).fetchall()}"]


def _write_late(directory: Path, night: str) -> str:
    """A replica had the lock and looked; it was paused, its lease ran out, another did the work; now it writes."""
    with closing(books(directory)) as data, holdfast.connect(leases(directory)) as locks:
        with locks.lock(f"nightly:{night}", ttl=30) as lease:
            paused = carried(lease)
        with locks.lock(f"nightly:{night}", ttl=30) as lease, nights(data).section(lease, night):
            pass
        try:
            nights(data).upsert(paused, night, {"replica": "late", "corrected": 99})
        except holdfast.FencedOut:
            return "refused"
        return "written"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.stdout.write("\n".join(show(Path(place))) + "\n")
