"""The connections of one process to one Postgres database.

Promises: a connection is lent with every limit set and without a transaction, or there is an error that says why not:
all are busy, or the server cannot be reached, in the server's own words. A server that comes back is used again within
about a second. A connection that comes back with a transaction is rid of it before another caller gets it.

Every statement of the plane is made for one plan: by index, in the index's order, row by row. The server is told so
(`_SESSION`), and plans each statement of a connection once. Left to itself it takes a table that was empty a moment ago
for one that is best read from end to end, and stays with that while the table grows.

Connections are not asked whether they are alive each time they are lent: that is a round trip for every transaction,
and proves nothing about the next moment. A caller that finds one dead reports it (`heal`), and the pool checks all.

Clock: the event loop's; the one that is passed in, for statistics.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from holdfast.core.ports import Clock
from holdfast.errors import BadInput, Closed, Unavailable
from holdfast.plane.db.ports import STANDSTILL_NS
from holdfast.plane.db.postgres.errors import of_connecting
from holdfast.runtime.postgres_driver import tls_options
from holdfast.types import MS, NS

Connection: TypeAlias = psycopg.AsyncConnection[Any]

CLOSED: Final = "this database is closed; open it again"

_LOOK_S: Final = 1.0  # how often a queued caller checks whether the server accepts connections at all
_RECONNECT_S: Final = 1.0  # after which the pool gives up an attempt; the next caller begins another
_UNDO_LIMIT_S: Final = 2.0
_DEFAULTS: Final = {
    "application_name": "holdfast",
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "target_session_attrs": "read-write",  # of several hosts the one that can be written
}
_SESSION: Final = """
    SELECT set_config('statement_timeout', $1, false), set_config('lock_timeout', $2, false),
           set_config('idle_in_transaction_session_timeout', $3, false), set_config('client_encoding', 'UTF8', false),
           set_config('default_transaction_isolation', 'read committed', false),
           set_config('default_transaction_read_only', 'off', false),
           set_config('plan_cache_mode', 'force_generic_plan', false), set_config('jit', 'off', false),
           set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
           set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false),
           set_config('enable_sort', 'off', false),
           CASE WHEN current_setting('synchronous_commit') = 'off'
                THEN set_config('synchronous_commit', 'on', false) END
"""
# A server that runs a statement does not notice that its client has gone, and keeps the rows of the transaction locked
# until the statement ends. So dies a process in the middle, and so ends a cancellation that the server has missed.
_NOTICE_GONE: Final = "SELECT set_config('client_connection_check_interval', '1s', false)"


class PostgresPool:
    """See the module."""

    def __init__(
        self,
        url: str,
        shown: str,
        *,
        least: int,
        most: int,
        timeout_ns: int,
        lock_timeout_ns: int,
        statement_timeout_ns: int,
        clock: Clock,
    ) -> None:
        try:
            given = conninfo_to_dict(url)
        except (psycopg.ProgrammingError, UnicodeError):  # its text may hold the password; and %ff is no text
            fix = "use postgresql://user:password@host:5432/database?option=value"
            raise BadInput("url", f"{shown} is not understood by Postgres's own library", fix) from None
        self._shown = shown
        self._url = url
        self._most = most
        self._timeout_s = timeout_ns / NS
        self._limits = [str(max(1, each // MS)) for each in (statement_timeout_ns, lock_timeout_ns, STANDSTILL_NS)]
        self._clock = clock
        self._options: dict[str, Any] = {
            **{name: value for name, value in _DEFAULTS.items() if name not in given},
            **tls_options(url),
            "autocommit": True,  # transactions are begun and ended in words
            "prepare_threshold": 0,  # a statement is planned when it is first used, and never again
            "cursor_factory": psycopg.AsyncRawCursor,
        }
        self._trouble: Exception | None = None  # why the last attempt to connect failed; None: it did not
        self._lent = 0
        self._opened = False
        self._healing = False
        self.waited_ns = 0
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url,
            connection_class=self._reporting(),
            kwargs=self._options,
            min_size=least,
            max_size=most,
            open=False,
            configure=self._configure,
            timeout=self._timeout_s,
            reconnect_timeout=_RECONNECT_S,
            name="holdfast-plane",
        )

    async def open(self) -> None:
        """Begin to connect. Does not wait for it. Idempotent."""
        if not self._opened:
            self._opened = True
            await self._pool.open()

    async def connect(self) -> Connection:
        """A connection of the caller's own, which is not counted. Raises errors of the driver."""
        connection: Connection = await psycopg.AsyncConnection.connect(self._url, **self._options)
        try:
            await self._configure(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def borrow(self) -> Connection:
        """A connection, which the caller has to return."""
        connection = await self._borrowed()
        self._lent += 1
        return connection

    async def _borrowed(self) -> Connection:
        began = self._clock.now().mono
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout_s
        try:
            while True:  # ends with a connection, or at the time limit
                try:
                    return await self._pool.getconn(max(0.0, min(_LOOK_S, end - loop.time())))
                except PoolTimeout:
                    over = loop.time() >= end
                    # With none of ours in use there is nothing to wait for but the server.
                    if self._trouble is not None and (over or not self._lent):
                        raise of_connecting(self._trouble, self._shown) from self._trouble
                    if over:
                        raise Unavailable(
                            f"all {self._most} connections to {self._shown} were busy for {self._timeout_s:g} s; "
                            "nothing was changed: raise the size of the pool, or send fewer requests at a time"
                        ) from None
        except PoolClosed:
            raise Closed(CLOSED) from None
        finally:
            self.waited_ns += self._clock.now().mono - began

    async def give_back(self, connection: Connection, *, reads: bool = False) -> None:
        """Take a connection back, in whatever state. Also when the caller is cancelled meanwhile.

        `reads`: its transaction, if there is one, has changed nothing.
        """
        self._lent -= 1
        await asyncio.shield(asyncio.ensure_future(self._taken_back(connection, reads=reads)))

    async def heal(self) -> None:
        """A connection was found dead: look at the others, and replace those that are dead too."""
        if self._healing:
            return
        self._healing = True
        try:
            with contextlib.suppress(PoolClosed):
                await self._pool.check()
        finally:
            self._healing = False

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    async def _taken_back(self, connection: Connection, *, reads: bool) -> None:
        status = connection.info.transaction_status
        if status != TransactionStatus.IDLE:
            try:
                async with asyncio.timeout(_UNDO_LIMIT_S):
                    if reads and status == TransactionStatus.INTRANS:
                        # Not ROLLBACK: after that the driver has the server forget all that was prepared.
                        await connection.execute(b"COMMIT")
                    else:
                        await connection.rollback()
            except (psycopg.Error, OSError, TimeoutError):
                await connection.close()
        await self._pool.putconn(connection)

    async def _configure(self, connection: Connection) -> None:
        # One width for whole numbers: else the driver takes the narrowest that fits, and a statement has as many plans
        # as there are widths, and may overflow in the narrow ones.
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        await connection.execute(_SESSION, self._limits)
        with contextlib.suppress(psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
            await connection.execute(_NOTICE_GONE)  # not before Postgres 14, and not on every platform

    def _reporting(self) -> type[Connection]:
        """A class of connections that tells this pool how connecting went: the library's pool only logs it."""
        pool = self

        class Reporting(psycopg.AsyncConnection[Any]):
            @classmethod
            async def connect(cls, *args: Any, **kwargs: Any) -> Any:
                try:
                    connection = await super().connect(*args, **kwargs)
                except (psycopg.Error, OSError) as error:
                    pool._trouble = error
                    raise
                pool._trouble = None
                return connection

        return Reporting


def is_silent(connection: Connection) -> bool:
    """Whether the server has said nothing on an idle connection: neither that it ends, nor anything else."""
    if not hasattr(select, "poll"):  # not on every system; then it is unknown
        return False
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return not poll.poll(0)
