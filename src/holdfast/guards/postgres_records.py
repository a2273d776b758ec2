"""Fence records in Postgres, through psycopg 3: shared by all processes that reach the database.

Promises: what `records` says; what was noted is on disk before `note` returns, whatever the database's default for
`synchronous_commit`. The ledger is made with the first use if the role may do so; otherwise an operator makes it
from `guards/sql/ledger_postgres.sql`. Does not promise to outlive a failover to a standby that lags behind: for that
the standby must be synchronous.

Clock: time limits only. The server stops a statement after `timeout`; a peer that is gone without a word is given up
by the kernel after as long (`tcp_user_timeout`, on Linux), and by the awaited record in any case.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, ClassVar, Final, Generic, LiteralString, Protocol, Self, TypeVar

from holdfast.errors import BackendError, BadInput, Misconfigured, Timeout, Unavailable
from holdfast.guards.settings import sql
from holdfast.runtime.postgres_driver import missing_driver
from holdfast.runtime.run_sync import run_now
from holdfast.types import MS, NS, Duration, duration_ns

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    from holdfast.runtime.postgres_driver import tls_options
except ImportError as error:
    raise missing_driver("a record in Postgres", error) from error

C = TypeVar("C")

_RAISE: Final[LiteralString] = (
    "INSERT INTO holdfast_guard_fence AS entry (place, resource, fence) VALUES (%s, %s, %s) "
    "ON CONFLICT (place, resource) DO UPDATE SET fence = greatest(entry.fence, excluded.fence), "
    "seen_at = CURRENT_TIMESTAMP RETURNING fence"
)
_SEEN: Final[LiteralString] = "SELECT fence FROM holdfast_guard_fence WHERE place = %s AND resource = %s"
# `remote_apply` is stronger than `on`, and is left alone.
_SETTLE: Final[LiteralString] = (
    "SELECT set_config('statement_timeout', %s, false), set_config('synchronous_commit', "
    "CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)"
)
# Another client made the ledger at the same moment, which IF NOT EXISTS does not cover.
_MADE_ALREADY: Final = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
)
_GRACE_S: Final = 1.0  # by which the server may overrun before the awaited record gives up

_inherited: list[object] = []  # connections of the parent of a fork: closing them here would end the parent's sessions


class _Settings:
    """The checked request."""

    def __init__(self, url: str, timeout: Duration, connections: int) -> None:
        self.url = _check_url(url)
        self.connections = _check_connections(connections)
        self.timeout_ns = duration_ns("timeout", timeout, low_ns=10 * MS, high_ns=3600 * NS)
        self.timeout_s = self.timeout_ns / NS
        self.statement_timeout = str(self.timeout_ns // MS)
        self.options: dict[str, Any] = {
            "autocommit": True,
            "connect_timeout": max(2, round(self.timeout_s)),  # libpq takes whole seconds, and no fewer than two
            "tcp_user_timeout": self.timeout_ns // MS,
            "application_name": "holdfast-record",
            **tls_options(self.url),
        }


def _check_url(url: object) -> str:
    if not isinstance(url, str) or not url:
        raise BadInput("url", f"{type(url).__name__} is not a URL", "give text such as postgresql://user@host/name")
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The driver's own message would repeat the text, and with it the password.
        raise BadInput("url", "is not understood by libpq", "give postgresql://user@host/name") from None
    return url


def _check_connections(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 1000:
        raise BadInput("connections", f"{number!r} is not a number of connections", "give 1 to 1000")
    return number


class _Driver(Protocol[C]):
    """One color of psycopg."""

    async def open(self) -> C: ...

    async def run(self, connection: C, statement: LiteralString, values: tuple[object, ...]) -> tuple[Any, ...]: ...

    async def drop(self, connection: C) -> None: ...

    def turn(self) -> AbstractAsyncContextManager[None]:
        """One of the few callers that may have a connection at a time."""
        ...


class _Ledger(Generic[C]):
    """The steps of a record, color-free."""

    def __init__(self, driver: _Driver[C]) -> None:
        self._driver = driver
        self._idle: list[C] = []
        self._pid = os.getpid()

    async def ask(self, statement: LiteralString, values: tuple[object, ...]) -> int | None:
        async with self._driver.turn():
            found = await self._ask(statement, values)
        return int(found[0]) if found else None

    async def close(self) -> None:
        while (connection := self._taken()) is not None:
            await self._driver.drop(connection)

    async def _ask(self, statement: LiteralString, values: tuple[object, ...]) -> tuple[Any, ...]:
        used = self._taken()
        if used is not None:
            try:
                return await self._on(used, statement, values)
            except psycopg.OperationalError as error:
                # The server was restarted since, say. Asking again does no harm: to note a fence twice is to note it.
                if isinstance(error, psycopg.errors.QueryCanceled):
                    raise _conclusion(error, asked=True) from error
            except psycopg.Error as error:
                raise _conclusion(error, asked=True) from error
        try:
            fresh = await self._driver.open()
        except psycopg.Error as error:
            raise _conclusion(error, asked=used is not None) from error
        try:
            return await self._on(fresh, statement, values)
        except psycopg.Error as error:
            raise _conclusion(error, asked=True) from error

    async def _on(self, connection: C, statement: LiteralString, values: tuple[object, ...]) -> tuple[Any, ...]:
        """Ask on this connection, which is kept for the next question only if all went well."""
        try:
            try:
                found = await self._driver.run(connection, statement, values)
            except psycopg.errors.UndefinedTable:
                await self._make(connection)
                found = await self._driver.run(connection, statement, values)
        except BaseException:
            await self._driver.drop(connection)
            raise
        self._idle.append(connection)
        return found

    async def _make(self, connection: C) -> None:
        try:
            await self._driver.run(connection, sql("ledger_postgres"), ())
        except _MADE_ALREADY:
            return

    def _taken(self) -> C | None:
        if self._pid != os.getpid():
            _inherited.extend(self._idle)
            self._idle, self._pid = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return None


def _conclusion(error: psycopg.Error, *, asked: bool) -> BackendError:
    """What an error of the driver lets the caller conclude. Messages of libpq hold no password."""
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, psycopg.errors.QueryCanceled):
        return Unavailable(f"the fence record took too long ({text}); nothing was noted")
    if isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError | psycopg.DataError):
        return Misconfigured(f"the fence record cannot be used ({text}); see guards/sql/ledger_postgres.sql")
    if asked and isinstance(error, psycopg.OperationalError):
        return Timeout(f"the connection to the fence record broke ({text}); the fence may be noted or not")
    return Unavailable(f"the fence record is not available ({text}); nothing was noted")


class _Blocking:
    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._turns = threading.BoundedSemaphore(settings.connections)

    async def open(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = psycopg.connect(self._settings.url, **self._settings.options)
        try:
            connection.execute(_SETTLE, (self._settings.statement_timeout,))
        except BaseException:
            connection.close()
            raise
        return connection

    async def run(
        self, connection: psycopg.Connection[tuple[Any, ...]], statement: LiteralString, values: tuple[object, ...]
    ) -> tuple[Any, ...]:
        cursor = connection.execute(statement, values)
        return (cursor.fetchone() or ()) if cursor.description else ()

    async def drop(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        connection.close()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        if not self._turns.acquire(timeout=self._settings.timeout_s):
            raise Unavailable("all connections to the fence record are in use; nothing was noted")
        try:
            yield
        finally:
            self._turns.release()


class _Awaited:
    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._turns = asyncio.BoundedSemaphore(settings.connections)

    async def open(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        connection = await psycopg.AsyncConnection.connect(self._settings.url, **self._settings.options)
        try:
            await connection.execute(_SETTLE, (self._settings.statement_timeout,))
        except BaseException:
            await connection.close()
            raise
        return connection

    async def run(
        self, connection: psycopg.AsyncConnection[tuple[Any, ...]], statement: LiteralString, values: tuple[object, ...]
    ) -> tuple[Any, ...]:
        with _in_time(self._settings.timeout_s):
            async with asyncio.timeout(self._settings.timeout_s + _GRACE_S):
                cursor = await connection.execute(statement, values)
                return (await cursor.fetchone() or ()) if cursor.description else ()

    async def drop(self, connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
        await connection.close()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._turns.acquire()
        except TimeoutError as error:
            raise Unavailable("all connections to the fence record are in use; nothing was noted") from error
        try:
            yield
        finally:
            self._turns.release()


@contextmanager
def _in_time(limit_s: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise Timeout(f"the fence record did not answer within {limit_s:g} s; the fence may be noted yet") from error


class PostgresRecord:
    """A record in a Postgres database, for blocking code. Safe from any thread.

    At most `connections` are open at a time; further callers wait for one, as long as `timeout`.
    """

    blocking: ClassVar[bool] = True

    def __init__(self, url: str, *, timeout: Duration = 5, connections: int = 4) -> None:
        """`url` is what libpq takes: `postgresql://user@host/name`, or `host=… dbname=…`."""
        self._ledger = _Ledger(_Blocking(_Settings(url, timeout, connections)))

    async def note(self, place: str, resource: str, fence: int) -> int:
        """See `FenceRecord`."""
        return _noted(await self._ledger.ask(_RAISE, (place, resource, fence)))

    async def seen(self, place: str, resource: str) -> int | None:
        """See `FenceRecord`."""
        return await self._ledger.ask(_SEEN, (place, resource))

    def close(self) -> None:
        """Close the connections that are not in use. The next question opens one again."""
        run_now(self._ledger.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_about: object) -> None:
        self.close()


class AsyncPostgresRecord:
    """A record in a Postgres database, for one event loop. Many questions share `connections` connections."""

    blocking: ClassVar[bool] = False

    def __init__(self, url: str, *, timeout: Duration = 5, connections: int = 4) -> None:
        """`url` is what libpq takes: `postgresql://user@host/name`, or `host=… dbname=…`."""
        self._ledger = _Ledger(_Awaited(_Settings(url, timeout, connections)))

    async def note(self, place: str, resource: str, fence: int) -> int:
        """See `FenceRecord`."""
        return _noted(await self._ledger.ask(_RAISE, (place, resource, fence)))

    async def seen(self, place: str, resource: str) -> int | None:
        """See `FenceRecord`."""
        return await self._ledger.ask(_SEEN, (place, resource))

    async def aclose(self) -> None:
        """Close the connections that are not in use. The next question opens one again."""
        await self._ledger.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_about: object) -> None:
        await self.aclose()


def _noted(found: int | None) -> int:
    if found is None:
        raise RuntimeError("an upsert that returned no row")
    return found
