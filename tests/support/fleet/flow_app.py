"""The functions that the steps of workflows under test run, on either stack, and what they leave for the checker.

An effect is written through a guard, in one transaction with a line that says so (`flow_effect`): a job may well run
twice, its effect must not happen twice. The address of the data says which database it is: a SQLite file, or Postgres.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from holdfast.errors import RetryLater
from holdfast.guards import postgres, sqlite
from holdfast.guards.install import install
from holdfast.plane import App, BlockingContext, Fatal

DATABASE: Final = "FLEET_DATABASE"  # as `fleet.Process` tells those that it starts
ROWS: Final = "CREATE TABLE flow_row (job TEXT NOT NULL PRIMARY KEY, applied BIGINT NOT NULL)"
EFFECTS: Final = "CREATE TABLE flow_effect (job TEXT NOT NULL, fence BIGINT NOT NULL)"

app = App("flows")

_here = threading.local()


def furnish(address: str) -> None:
    """Make the tables of an empty database."""
    with opened(address) as data:
        for statement in (ROWS, EFFECTS):
            data.execute(statement)
        install(data, "flow_row", id="job")


@contextmanager
def opened(address: str) -> Iterator[Any]:
    """A connection that commits each statement separately."""
    connection = _connected(address)
    try:
        yield connection
    finally:
        connection.close()


def _connected(address: str) -> Any:
    if address.startswith("sqlite:///"):
        made = sqlite3.connect(address.removeprefix("sqlite:///"), isolation_level=None, timeout=30.0)
        made.execute("PRAGMA journal_mode = WAL")
        return made
    return psycopg.connect(address, autocommit=True, connect_timeout=5)


def _data() -> Any:
    """The connection of this thread."""
    known = getattr(_here, "connection", None)
    if known is None or getattr(known, "closed", False):
        known = _here.connection = _connected(os.environ[DATABASE])
    return known


@app.job("flow.effect")
def effect(ctx: BlockingContext, payload: dict[str, Any] | None) -> dict[str, Any]:
    """Has its effect, unless an earlier run of the same job has had it. `fails`: so many attempts fail before."""
    attempt = int(ctx.job.rpartition("@")[2])
    if payload is not None and attempt <= payload["fails"]:
        raise ValueError("on purpose")
    try:
        _take_effect(_data(), ctx)
    except (psycopg.OperationalError, sqlite3.OperationalError) as error:  # no fault of the job's
        raise RetryLater(0.2, error) from error
    return {"attempt": attempt, "items": [1, 2, 3]}


def _take_effect(data: Any, ctx: BlockingContext) -> None:
    kind: Any = sqlite.GuardedTable if isinstance(data, sqlite3.Connection) else postgres.GuardedTable
    place = "?, ?" if isinstance(data, sqlite3.Connection) else "%s, %s"
    table = kind(data, "flow_row", id="job", key="holdfast:worker:job:{job}")
    with table.section(ctx.carried, ctx.job) as row:
        if row.exists:
            return
        with _transaction(data):
            row.upsert(applied=1)
            data.execute(f"INSERT INTO flow_effect (job, fence) VALUES ({place})", (ctx.job, ctx.fence))


@contextmanager
def _transaction(data: Any) -> Iterator[None]:
    if isinstance(data, psycopg.Connection):
        with data.transaction():
            yield
        return
    data.execute("BEGIN IMMEDIATE")
    try:
        yield
        data.execute("COMMIT")
    except BaseException:
        if data.in_transaction:
            data.execute("ROLLBACK")
        raise


@app.job("flow.broken")
def broken(payload: object) -> None:
    """Never works, and says that trying again would not help."""
    raise Fatal("broken on purpose")
