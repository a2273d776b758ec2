"""A guarded row of a Postgres table, as the guard kit and the drills see it. Importable from child processes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

import psycopg

from holdfast.guards import Fenced, GuardStatistics
from holdfast.guards.aio import postgres as awaited
from holdfast.guards.postgres import GuardedRow, GuardedTable
from holdfast.guards.settings import sql

WAIT_LIMIT_S = 30.0

_LOOK = "SELECT value FROM subject WHERE id = %s"
_CLIENTS = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND backend_type = %s"


def _settle(url: str) -> None:
    """Wait until the server has ended the sessions of processes that are dead.

    What a killed process sent last may still be under way, and be done a moment after it was checked. So each
    session is named by the process that it belongs to.
    """
    limit = time.monotonic() + WAIT_LIMIT_S
    with psycopg.connect(url, autocommit=True, application_name=str(os.getpid())) as connection:
        while any(not _alive(name) for (name,) in connection.execute(_CLIENTS, ["client backend"])):
            assert time.monotonic() < limit, "a session outlives its process"
            time.sleep(0.005)  # between two looks, not instead of one


def _alive(name: str) -> bool:
    try:
        os.kill(int(name), 0)
    except (ValueError, ProcessLookupError):
        return not name.isdigit()  # not one of ours
    return True


class PostgresSubject:
    """A row, through a connection of its own. Sections stay open until the subject is closed."""

    def __init__(self, url: str, resource: str) -> None:
        _settle(url)
        self._connection: psycopg.Connection[Any] = psycopg.connect(
            url, autocommit=True, application_name=str(os.getpid())
        )
        self._table = GuardedTable(self._connection, "subject")
        self._row_id = resource
        self._sections = ExitStack()
        self._rows: dict[int, GuardedRow] = {}

    def enter(self, lease: Fenced) -> str | None:
        # Left when the subject is closed: the kit writes later, when a newer holder has entered meanwhile.
        row = self._sections.enter_context(self._table.section(lease, self._row_id))
        self._rows[lease.fence] = row
        return row["value"] if row.exists else None

    def write(self, lease: Fenced, value: str) -> None:
        self._rows[lease.fence].upsert(value=value)

    def overwrite(self, lease: Fenced, value: str) -> None:
        self._table.upsert(lease, self._row_id, {"value": value})

    def delete(self, lease: Fenced) -> None:
        self._table.delete(lease, self._row_id)

    def look(self) -> tuple[str | None, int | None]:
        found = self._connection.execute(_LOOK, [self._row_id]).fetchone()
        return None if found is None else found[0], self._table.seen(self._row_id)

    def close(self) -> None:
        self._sections.close()
        self._connection.close()

    def statistics(self) -> GuardStatistics:
        return self._table.statistics()


class AsyncPostgresSubject:
    """`PostgresSubject`, awaited. Made by `open_async`."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], resource: str) -> None:
        self._connection = connection
        self._table = awaited.GuardedTable(connection, "subject")
        self._row_id = resource
        self._sections = AsyncExitStack()
        self._rows: dict[int, awaited.GuardedRow] = {}

    async def enter(self, lease: Fenced) -> str | None:
        row = await self._sections.enter_async_context(self._table.section(lease, self._row_id))
        self._rows[lease.fence] = row
        return row["value"] if row.exists else None

    async def write(self, lease: Fenced, value: str) -> None:
        await self._rows[lease.fence].upsert(value=value)

    async def overwrite(self, lease: Fenced, value: str) -> None:
        await self._table.upsert(lease, self._row_id, {"value": value})

    async def delete(self, lease: Fenced) -> None:
        await self._table.delete(lease, self._row_id)

    async def look(self) -> tuple[str | None, int | None]:
        found = await (await self._connection.execute(_LOOK, [self._row_id])).fetchone()
        return None if found is None else found[0], await self._table.seen(self._row_id)

    async def close(self) -> None:
        await self._sections.aclose()
        await self._connection.close()

    def statistics(self) -> GuardStatistics:
        return self._table.statistics()


async def open_async(url: str, resource: str) -> AsyncPostgresSubject:
    """A row, through a connection of its own on the running loop."""
    await asyncio.to_thread(_settle, url)
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True, application_name=str(os.getpid()))
    return AsyncPostgresSubject(connection, resource)


def prepared(url: str) -> Callable[[str], PostgresSubject]:
    """Make a table as users have it, ready for a guard; returns how its rows are opened."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS subject (id TEXT PRIMARY KEY, value TEXT)")
        connection.execute("ALTER TABLE subject ADD COLUMN IF NOT EXISTS holdfast_fence BIGINT")
        connection.execute(sql("ledger_postgres"))
    return partial(PostgresSubject, url)


def prepared_async(url: str) -> Callable[[str], Any]:
    """`prepared`, for the awaited guard."""
    prepared(url)
    return partial(open_async, url)
