"""Scenarios about guarded Postgres tables, written once as `async def` and played in both colors.

A scenario asks the stage for connections and tables and awaits whatever it does with them; on the blocking stage that
never suspends. `Waits` lets it see, from outside, that one session waits for another's lock.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg

from holdfast.guards import postgres
from holdfast.guards.aio import postgres as awaited
from holdfast.guards.settings import sql
from holdfast.runtime.run_sync import run_now

WAIT_LIMIT_S: Final = 30.0

PREPARE: Final = (
    "CREATE TABLE invoices (id BIGINT PRIMARY KEY, total BIGINT, note TEXT)",
    "ALTER TABLE invoices ADD COLUMN holdfast_fence BIGINT",
    sql("ledger_postgres"),
)


class _Awaited:
    """A blocking object whose methods are awaited. Properties, items and the like are the object's own."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not inspect.ismethod(found) or name == "statistics":
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            return found(*args, **kwargs)

        return call

    def __getitem__(self, name: str) -> Any:
        return self.inner[name]


class _AwaitedTable(_Awaited):
    @asynccontextmanager
    async def section(self, *args: Any) -> AsyncIterator[Any]:
        with self.inner.section(*args) as row:
            yield _Awaited(row)


class _Thread(Awaitable[Any]):
    """A step in a thread of its own. Awaiting it blocks, as everything does on the blocking stage."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()  # nothing to wait for in a loop: there is none
        return self._future.result(WAIT_LIMIT_S)


class Stage:
    """One color, one database."""

    def __init__(self, colour: str, url: str) -> None:
        self.colour = colour
        self.url = url
        self._open: list[Any] = []
        self._threads = ThreadPoolExecutor(max_workers=32)

    def play(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Run a scenario to its end in this color, and close what it has opened."""
        run = asyncio.run if self.colour == "asyncio" else run_now
        with self._threads:
            run(self._played(scenario))

    async def _played(self, scenario: Coroutine[Any, Any, None]) -> None:
        try:
            await scenario
        finally:
            for connection in self._open:
                await settled(connection.close())

    async def connect(self, **options: Any) -> Any:
        """A connection of this color; it commits every statement unless told otherwise."""
        options = {"autocommit": True, **options}
        connection: Any
        if self.colour == "asyncio":
            connection = await psycopg.AsyncConnection.connect(self.url, **options)
        else:
            connection = psycopg.connect(self.url, **options)
        self._open.append(connection)
        return connection

    def table(self, connection: Any, name: str = "invoices", **settings: Any) -> Any:
        """A guarded table on the connection."""
        if self.colour == "asyncio":
            return awaited.GuardedTable(connection, name, **settings)
        return _AwaitedTable(postgres.GuardedTable(connection, name, **settings))

    def start(self, step: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        """Begin a step on the side, in a task or a thread. Awaiting what is returned gives its result."""
        if self.colour == "asyncio":
            return asyncio.create_task(step)
        return _Thread(self._threads.submit(run_now, step))

    async def blocked(self, waits: Waits, waiter: Any, holder: Any) -> None:
        """Return when one connection waits for a lock of the other."""
        pids = (waiter.info.backend_pid, holder.info.backend_pid)
        await asyncio.to_thread(waits.until, *pids) if self.colour == "asyncio" else waits.until(*pids)

    async def run(self, connection: Any, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        """One statement as the caller's own code would run it, and its rows as plain tuples."""
        kind = psycopg.AsyncCursor if self.colour == "asyncio" else psycopg.Cursor
        cursor = kind(connection, row_factory=psycopg.rows.tuple_row)
        await settled(cursor.execute(statement, values))
        return list(await settled(cursor.fetchall())) if cursor.description else []

    async def content(self, connection: Any) -> list[tuple[Any, ...]]:
        """Everything that a refused step must leave alone."""
        rows = await self.run(connection, "SELECT id, total, holdfast_fence FROM invoices ORDER BY id")
        return rows + await self.run(
            connection, "SELECT place, resource, fence FROM holdfast_guard_fence ORDER BY 1, 2"
        )


async def settled(answer: Any) -> Any:
    """The answer of a call in either color."""
    return await answer if inspect.isawaitable(answer) else answer


def prepare(url: str) -> None:
    """A table as users have it, made ready for a guard."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in PREPARE:
            connection.execute(statement)


class Waits:
    """Looks at the server from outside: who waits for whom."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def until(self, waiter: int, holder: int) -> None:
        """Return when the session `waiter` waits for a lock of `holder`. Both are their `backend_pid`."""
        limit = time.monotonic() + WAIT_LIMIT_S
        while holder not in self._blockers(waiter):
            assert time.monotonic() < limit, f"{waiter} does not wait for {holder}"
            time.sleep(0.005)  # between two looks, not instead of one

    def _blockers(self, pid: int) -> list[int]:
        found = self._connection.execute("SELECT pg_blocking_pids(%s)", [pid]).fetchone()
        assert found is not None
        return list(found[0])

    def close(self) -> None:
        self._connection.close()
