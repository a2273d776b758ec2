"""The open transaction of a caller, on the database of the plane: the plane writes into it, and the caller commits.

Takes connections of sqlite3, aiosqlite, psycopg 3 (blocking and awaited), and connections and sessions of SQLAlchemy on
one of these drivers.

Promises: nothing is begun, committed or rolled back here. A connection without a transaction, or to another database
than that of the plane, is refused before anything is written. Errors of the driver are raised as they are, because they
are about the caller's transaction. Notifications are a part of the transaction on Postgres; SQLite has none.

Clock: none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from holdfast.errors import BadInput, RowMissing
from holdfast.plane.db.notifier import check_channel
from holdfast.plane.db.ports import Dialect, Row, Tx
from holdfast.plane.db.statements import compiled

T = TypeVar("T")

Execute: TypeAlias = Callable[[str, Sequence[Any]], Awaitable[list[Row]]]

_FIX: Final = "give a connection of sqlite3, aiosqlite, psycopg 3 or SQLAlchemy, or a session of SQLAlchemy"
_IDENTITY: Final[Mapping[Dialect, str]] = {
    "sqlite": "SELECT file FROM pragma_database_list WHERE name = 'main'",
    "postgres": "SELECT current_database()::text AS name, current_schema()::text AS folder, "
    "extract(epoch FROM pg_postmaster_start_time())::text AS server",
}


class CallerTx:
    """See `ports.Tx`."""

    def __init__(self, dialect: Dialect, execute: Execute) -> None:
        self.dialect = dialect
        self._execute = execute
        self._channels: set[str] = set()

    @property
    def holds(self) -> bool:
        """See `ports.Tx`."""
        return True

    async def query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """See `ports.Tx`."""
        ready = compiled(statement, self.dialect)
        return await self._execute(ready.text, ready.ordered(parameters))

    async def query_many(self, statement: str, parameters: Sequence[Mapping[str, Any]]) -> int:
        """See `ports.Tx`."""
        for each in parameters:
            await self.query(statement, each)
        return len(parameters)

    async def put(
        self, statement: str, parameters: Mapping[str, Any] | None = None, *, rows: int | None = None
    ) -> None:
        """See `ports.Tx`."""
        changed = len(await self.query(statement, parameters))
        if rows is not None and changed != rows:
            raise RowMissing(f"{changed} rows were written where there should have been {rows}")

    def notify(self, channel: str) -> None:
        """See `ports.Tx`. `flush` sends it."""
        self._channels.add(check_channel(channel))

    def after(self, call: Callable[[], None]) -> None:
        """See `ports.Tx`. The commit is the caller's and not seen here: what it would start is found by polling."""

    async def flush(self) -> None:
        """Make the notifications a part of the transaction."""
        if self.dialect == "postgres" and self._channels:
            from holdfast.plane.db.postgres.notify import CHANNEL, payload_of

            await self.query(
                "SELECT pg_notify(:channel, :payload)", {"channel": CHANNEL, "payload": payload_of(self._channels)}
            )


async def caller_transaction(connection: object) -> CallerTx:
    """The open transaction of a connection, or `BadInput`."""
    driver = await _driver(connection)
    kinds = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(driver).__mro__}
    if "sqlite3.Connection" in kinds:
        return _on_sqlite(driver)
    if "aiosqlite.Connection" in kinds:
        return _on_aiosqlite(driver)
    if kinds & {"psycopg.Connection", "psycopg.AsyncConnection"}:
        return _on_psycopg(driver, awaited="psycopg.AsyncConnection" in kinds)
    name = f"{type(driver).__module__}.{type(driver).__qualname__}"
    raise BadInput("connection", f"{name} is no connection that can be used", _FIX)


async def write_within(
    connection: object, identity: tuple[str, ...], work: Callable[[Tx], Awaitable[T]], *, awaited: bool
) -> T:
    """Do the work in the open transaction of a connection to this database. `awaited`: the caller has an event loop."""
    if not awaited and _needs_loop(connection):
        fix = "use Client, or a connection that blocks"
        raise BadInput("connection", f"{type(connection).__name__} needs an event loop", fix)
    tx = await caller_transaction(connection)
    if await identity_of(tx) != identity:
        raise BadInput("connection", "is to another database than the plane", "submit in the database of the plane")
    found = await work(tx)
    await tx.flush()
    return found


def _needs_loop(connection: object) -> bool:
    kind = type(connection)
    return kind.__name__.startswith("Async") or kind.__module__.startswith("aiosqlite")


async def identity_of(tx: Tx) -> tuple[str, ...]:
    """Which database the transaction is in."""
    (row,) = await tx.query(_IDENTITY[tx.dialect])
    if tx.dialect == "sqlite":
        return ("sqlite", row["file"] or "in memory")
    return ("postgres", *(str(value) for value in row.values()))


async def _driver(connection: Any) -> Any:
    """The connection of the driver behind one of SQLAlchemy, which is asked to open its transaction."""
    if not type(connection).__module__.startswith("sqlalchemy."):
        return connection
    if hasattr(connection, "get_raw_connection"):  # AsyncConnection
        _check_begun(connection)
        return (await connection.get_raw_connection()).driver_connection
    if not hasattr(connection, "connection"):
        raise BadInput("connection", f"{type(connection).__name__} is no connection", _FIX)
    inner = connection.connection
    if not callable(inner):  # Connection
        _check_begun(connection)
        return inner.driver_connection
    found = inner()  # Session, AsyncSession
    return await _driver(await found if isinstance(found, Awaitable) else found)


def _check_begun(connection: Any) -> None:
    """SQLAlchemy commits only transactions that it has begun itself."""
    if not connection.in_transaction():
        raise _without_transaction()


def _without_transaction() -> BadInput:
    return BadInput("connection", "has no transaction open", "begin one first, and commit it after the submission")


def _on_sqlite(connection: Any) -> CallerTx:
    if not connection.in_transaction and connection.isolation_level is None and not _manual(connection):
        raise _without_transaction()

    async def execute(text: str, values: Sequence[Any]) -> list[Row]:
        cursor = connection.cursor()
        cursor.row_factory = None
        cursor.execute(text, values)
        return _rows(cursor.description, cursor.fetchall())

    return CallerTx("sqlite", execute)


def _manual(connection: Any) -> bool:
    """Whether the connection always has a transaction (`autocommit=False` of Python 3.12)."""
    return getattr(connection, "autocommit", None) is False


def _on_aiosqlite(connection: Any) -> CallerTx:
    if not connection.in_transaction and connection.isolation_level is None:
        raise _without_transaction()

    async def execute(text: str, values: Sequence[Any]) -> list[Row]:
        async with connection.execute(text, values) as cursor:
            found = [tuple(row) for row in await cursor.fetchall()]
            return _rows(cursor.description, found)

    return CallerTx("sqlite", execute)


def _on_psycopg(connection: Any, *, awaited: bool) -> CallerTx:
    import psycopg
    from psycopg.pq import TransactionStatus
    from psycopg.rows import dict_row

    status = connection.info.transaction_status
    if status is TransactionStatus.INERROR:
        raise BadInput("connection", "has a transaction that has failed", "roll it back, and begin another one")
    if status is not TransactionStatus.INTRANS and (status is not TransactionStatus.IDLE or connection.autocommit):
        raise _without_transaction()

    async def execute(text: str, values: Sequence[Any]) -> list[Row]:
        if awaited:
            async with psycopg.AsyncRawCursor(connection, row_factory=dict_row) as cursor:
                await cursor.execute(text.encode(), values)
                return list(await cursor.fetchall()) if cursor.description is not None else []
        with psycopg.RawCursor(connection, row_factory=dict_row) as blocking:
            blocking.execute(text.encode(), values)
            return list(blocking.fetchall()) if blocking.description is not None else []

    return CallerTx("postgres", execute)


def _rows(description: Sequence[Sequence[Any]] | None, found: Sequence[Sequence[Any]]) -> list[Row]:
    names = [each[0] for each in description or ()]
    return [dict(zip(names, row, strict=True)) for row in found]
