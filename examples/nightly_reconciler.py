"""A nightly job that must run once, in any number of processes: compare two tables, and correct one of them.

    python -m examples.nightly_reconciler

The *schedule* submits one job each night, whatever number of processes run. A job may still run twice: its worker was
paused, or an operator submits the night again. The *lock* admits one attempt at a time. The *section* shows a second
attempt that the night is done, and the database refuses a first one that was paused and writes late. The corrections
and the guarded row of the night are one transaction, so neither exists without the other.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any, Final

from examples.showing import LIMIT_S, plane_at

import holdfast
from holdfast.guards.bearer import carried
from holdfast.guards.install import install
from holdfast.guards.sqlite import GuardedTable
from holdfast.plane import App, BlockingContext, Client, JobRequest

PLACE: Final = "RECONCILER_PLACE"  # the directory of the books, and of the leases in front of them
NIGHT: Final = date(2026, 3, 1)

TABLES: Final = """
    CREATE TABLE orders (id INTEGER PRIMARY KEY, paid INTEGER NOT NULL);
    CREATE TABLE statement (id INTEGER PRIMARY KEY, paid INTEGER NOT NULL);
    CREATE TABLE nights (night TEXT PRIMARY KEY, job TEXT NOT NULL, corrected INTEGER NOT NULL);
    INSERT INTO orders VALUES (1, 100), (2, 250), (3, 0), (4, 80);
    INSERT INTO statement VALUES (1, 100), (2, 200), (3, 75), (4, 80);
"""

DIFFERENT: Final = """
    SELECT statement.paid, orders.id FROM orders JOIN statement ON statement.id = orders.id
    WHERE orders.paid <> statement.paid ORDER BY orders.id
"""


app: Final = App("bank")


@app.cron("0 2 * * *", tz="Europe/Berlin")
def reconcile(night: date | None = None, *, ctx: BlockingContext) -> str:
    """Correct the orders by the bank's statement, unless that was done for this night. Returns the outcome."""
    key = ctx.labels["holdfast.due"][:10] if night is None else night.isoformat()  # the schedule gives no night
    with (
        closing(books()) as data,
        holdfast.connect(leases()) as locks,
        locks.lock(f"nightly:{key}", ttl=30, timeout=60) as lease,
        nights(data).section(lease, key) as row,
    ):
        if row.exists:
            return "it was done before"
        wrong = data.execute(DIFFERENT).fetchall()
        lease.ensure_held(min_remaining=5)  # comparing may have taken long
        with data:  # all of it, or nothing
            data.execute("BEGIN IMMEDIATE")
            data.executemany("UPDATE orders SET paid = ? WHERE id = ?", wrong)
            row.insert(job=ctx.job, corrected=len(wrong))
    for paid, order in wrong:
        ctx.emit(f"order {order}: {paid} paid")
    return f"corrected {len(wrong)}"


def nights(data: sqlite3.Connection) -> GuardedTable[Any]:
    """Which nights are done, held to the fence of the night's lock."""
    return GuardedTable(data, "nights", id="night", key="nightly:{night}")


def leases() -> str:
    """Where all processes keep their leases. On several hosts that is a Redis."""
    return f"sqlite:///{_directory() / 'leases.db'}"


def books() -> sqlite3.Connection:
    """A connection to the tables."""
    return sqlite3.connect(_directory() / "books.db", timeout=30)


def make_books() -> None:
    """The tables, once."""
    with closing(books()) as data:
        data.executescript(TABLES)
        install(data, "nights", id="night", trigger="strict")
        data.commit()


def _directory() -> Path:
    return Path(os.environ.get(PLACE, "."))


# All of it, in one process.


async def show(directory: Path) -> list[str]:
    """Submit one night three times, then let a paused attempt write late. Returns the events, in lines."""
    os.environ[PLACE] = str(directory)
    make_books()
    async with plane_at(directory, app) as plane, Client(plane, name="ada") as client:
        schedule = await client.get_schedule("bank.reconcile")
        jobs = await client.submit_many([JobRequest(reconcile, night=NIGHT) for _ in range(3)])
        outcomes = sorted([await job.result(timeout=LIMIT_S) for job in jobs])
        values = [event.value for job in jobs async for event in job.events() if event.kind == "value"]
    late = await asyncio.to_thread(_write_late, NIGHT.isoformat())
    lines = [f"next night: {schedule.next_at}", *outcomes, *values, f"late: {late}"]
    with closing(books()) as data:
        done = data.execute("SELECT night, corrected FROM nights").fetchall()
        return [*lines, f"nights: {done}", f"differences: {data.execute(DIFFERENT).fetchall()}"]


def _write_late(night: str) -> str:
    """An attempt compared and was paused; its lease expired, and another attempt did the work. Now it writes."""
    with closing(books()) as data, holdfast.connect(leases()) as locks:
        with locks.lock(f"nightly:{night}", ttl=30) as lease:
            paused = carried(lease)
        with locks.lock(f"nightly:{night}", ttl=30) as lease, nights(data).section(lease, night):
            pass
        try:
            nights(data).upsert(paused, night, {"job": "late", "corrected": 99})
        except holdfast.FencedOut:
            return "refused"
        return "written"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.stdout.write("\n".join(asyncio.run(show(Path(place)))) + "\n")
