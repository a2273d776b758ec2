"""An outbox in Postgres, through psycopg 3, in sync and asyncio.

Several relays work concurrently: each takes a message with a row lock and skips those that others have. The lock lasts
until the message is marked, in the same transaction, and goes away with the connection of a relay that dies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from holdfast.errors import BadInput, Misconfigured
from holdfast.guards.messaging.outbox_store import UNPREPARED, OutboxStore, Rows
from holdfast.guards.sql.psycopg_driver import (
    AsyncConnection,
    AsyncCursor,
    Connection,
    Cursor,
    dict_row,
    errors,
    is_idle,
)
from holdfast.guards.sql.statements import SqlQuery


class _PostgresOutboxStore(ABC):
    dialect = "postgres"

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[object]: ...

    @abstractmethod
    async def _fetch(self, query: SqlQuery) -> Rows: ...

    async def run(self, query: SqlQuery) -> Rows:
        """See `OutboxStore`."""
        try:
            return await self._fetch(query)
        except errors.UndefinedTable as error:
            raise Misconfigured(UNPREPARED) from error

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """See `OutboxStore`. There can be many."""
        yield True

    def hold(self) -> AbstractAsyncContextManager[object]:
        """See `OutboxStore`."""
        return self.transaction()


class BlockingOutboxStore(_PostgresOutboxStore):
    """`OutboxStore` over one `psycopg.Connection`. Its methods never suspend."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    @property
    def in_transaction(self) -> bool:
        """See `OutboxStore`."""
        return not is_idle(self._connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """See `OutboxStore`."""
        with self._connection.transaction():
            yield

    async def _fetch(self, query: SqlQuery) -> Rows:
        with Cursor(self._connection, row_factory=dict_row) as cursor:
            cursor.execute(query.text, query.values or None)
            return cursor.fetchall() if cursor.description else []

    async def own(self) -> None:
        """See `OutboxStore`."""
        self._connection.autocommit = True

    async def close(self) -> None:
        """See `OutboxStore`."""
        self._connection.close()


class AwaitedOutboxStore(_PostgresOutboxStore):
    """`OutboxStore` over one `psycopg.AsyncConnection`."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    @property
    def in_transaction(self) -> bool:
        """See `OutboxStore`."""
        return not is_idle(self._connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """See `OutboxStore`."""
        async with self._connection.transaction():
            yield

    async def _fetch(self, query: SqlQuery) -> Rows:
        async with AsyncCursor(self._connection, row_factory=dict_row) as cursor:
            await cursor.execute(query.text, query.values or None)
            return await cursor.fetchall() if cursor.description else []

    async def own(self) -> None:
        """See `OutboxStore`."""
        await self._connection.set_autocommit(True)

    async def close(self) -> None:
        """See `OutboxStore`."""
        await self._connection.close()


def blocking_postgres(connection: object) -> OutboxStore:
    """The store of a blocking connection, or `BadInput`."""
    if isinstance(connection, Connection):
        return BlockingOutboxStore(connection)
    raise _wrong(connection, "psycopg.Connection, or use holdfast.guards.aio.outbox")


def awaited_postgres(connection: object) -> OutboxStore:
    """The store of an awaited connection, or `BadInput`."""
    if isinstance(connection, AsyncConnection):
        return AwaitedOutboxStore(connection)
    raise _wrong(connection, "psycopg.AsyncConnection, or use holdfast.guards.outbox")


def _wrong(connection: object, fix: str) -> BadInput:
    return BadInput("connection", f"{type(connection).__name__} cannot be used here", f"give a {fix}")
