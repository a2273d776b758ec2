"""The state of the plane in Postgres, for a fleet.

Promises:

- `write` is one READ COMMITTED transaction. `read` is REPEATABLE READ READ ONLY, so that all statements of a work see
  one state, unless the caller needs no such view.
- `checked` work is first tried without a transaction, each statement on its own (`transaction`): two round trips
  instead of four, and no row is locked meanwhile.
- A commit is acknowledged when it is durable, also if the default of the server is weaker.
- A transaction is run again a few times if the server demands it (serialization, deadlock), or if its connection was
  lost before COMMIT was sent. So a restart of the server, or a dead idle connection, causes no error. (A transaction of
  one statement has no COMMIT. It is sent only if the connection shows no sign of an end.)
- No call waits forever: there are limits for connecting, for a connection of the pool, for a lock, for a statement, and
  for an idle transaction.
- A cancelled task undoes its transaction, unless COMMIT was sent already. `close` finishes what has begun.

Errors: `Unavailable`: nothing was written; also if all connections are busy for too long. `Timeout`: the connection was
lost while waiting for the answer to COMMIT. `Misconfigured`: no retry can help.

| Module | Contains |
|---|---|
| `pool` | connections |
| `transaction`, `combined_statement` | one transaction, as a work sees it |
| `errors`, `disk_space` | the meaning of errors; a full disk |
| `notify`, `db.notifier` | notifications between processes, and within one |

Clock: the event loop's for limits on this side, the server's for those on the other.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final, Literal, TypeVar

import psycopg

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.ports import Clock, Entropy
from holdfast.errors import BackendError, BadInput, Closed, HoldfastError, Misconfigured, Timeout, Unavailable
from holdfast.plane.db.notifier import ChannelSubscription, DatabaseNotifier
from holdfast.plane.db.ports import Work
from holdfast.plane.db.postgres.disk_space import PostgresRoom, described
from holdfast.plane.db.postgres.errors import at_commit, is_lost, is_worth_another_try
from holdfast.plane.db.postgres.notify import PostgresHints
from holdfast.plane.db.postgres.pool import CLOSED, Connection, PostgresPool, is_silent
from holdfast.plane.db.postgres.transaction import PostgresTx
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.stores.registry import redacted
from holdfast.types import MS, NS

T = TypeVar("T")

POOL_MAX: Final = 10
POOL_TIMEOUT_NS: Final = 10 * NS
LOCK_TIMEOUT_NS: Final = 10 * NS
STATEMENT_TIMEOUT_NS: Final = 30 * NS

_TRIES: Final = 5
_PAUSE_NS: Final = 10 * MS  # before the second try; doubled each time, and drawn by chance


class PostgresDatabase:
    """See `ports.Database`. Nothing is sent before the first call."""

    dialect: Literal["postgres"] = "postgres"
    file: None = None

    def __init__(
        self,
        url: str,
        *,
        pool_min: int = 1,
        pool_max: int = POOL_MAX,
        pool_timeout_ns: int = POOL_TIMEOUT_NS,
        lock_timeout_ns: int = LOCK_TIMEOUT_NS,
        statement_timeout_ns: int = STATEMENT_TIMEOUT_NS,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        """Two more connections than `pool_max` are opened for listeners."""
        if not 0 <= pool_min <= pool_max or pool_max < 1:
            raise BadInput("pool_max", f"{pool_min} to {pool_max} connections cannot be", "give 1 or more")
        self.server_url = url
        self._shown = redacted(url)
        self._entropy = entropy or SystemEntropy()
        self._pid = os.getpid()
        self._notifier = DatabaseNotifier()
        self._pool = PostgresPool(
            url,
            self._shown,
            least=pool_min,
            most=pool_max,
            timeout_ns=pool_timeout_ns,
            lock_timeout_ns=lock_timeout_ns,
            statement_timeout_ns=statement_timeout_ns,
            clock=clock or SystemClock(),
        )
        self._room = PostgresRoom()
        self._hints: PostgresHints | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Task[None] | None = None
        self._active = 0
        self._quiet = asyncio.Event()
        self._counts = dict.fromkeys(("writes", "reads", "failed", "run_again", "held", "unknown"), 0)

    async def write(self, work: Work[T], *, checked: bool = False, lasting: bool = True) -> T:
        """See `ports.Database`."""
        self._counts["writes"] += 1
        return await self._done(work, reads=False, apart=checked)

    async def read(self, work: Work[T], *, one_view: bool = True, lasting: bool = True) -> T:
        """See `ports.Database`. Postgres shows nothing that is not durable."""
        self._counts["reads"] += 1
        return await self._done(work, reads=True, apart=not one_view)

    async def check_room(self) -> None:
        """See `writability.Describes`."""
        await self._room.check(self.write)

    def described(self, error: BackendError) -> str:
        """See `writability.Describes`."""
        return described(error)

    def listen(self, channel: str) -> ChannelSubscription:
        """See `ports.Database`. Belongs to the running event loop."""
        hints = self._here()
        listener = self._notifier.listen(channel)
        hints.listen()
        return listener

    async def close(self) -> None:
        """Finish what has begun, and close the connections. Idempotent; what is asked from then on gets `Closed`."""
        if self._pid != os.getpid():
            return  # the connections are the parent's
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    def statistics(self) -> dict[str, int]:
        """What was done so far, and what is being done."""
        reconnects = 0 if self._hints is None else self._hints.reconnects
        return {
            **self._counts,
            "active": self._active,
            "pool_wait_ns": self._pool.waited_ns,
            "hint_reconnects": reconnects,
            "bells": len(self._notifier),
        }

    def _here(self) -> PostgresHints:
        if self._pid != os.getpid():
            raise Misconfigured("this process was forked after the database was opened; open another one in the child")
        if self._closing is not None:
            raise Closed(CLOSED)
        loop = asyncio.get_running_loop()
        if self._hints is None:
            self._loop = loop
            self._hints = PostgresHints(self._pool.connect, self._notifier, self._entropy)
        if self._loop is not loop:
            raise Misconfigured("this database belongs to another event loop; open one for each")
        return self._hints

    async def _done(self, work: Work[T], *, reads: bool, apart: bool) -> T:
        hints = self._here()
        self._active += 1
        try:
            await self._pool.open()
            result, tx = await self._tried(work, reads=reads, apart=apart)
        except BaseException as error:
            self._counts["failed"] += 1
            self._room.note(error)
            raise
        finally:
            self._active -= 1
            if not self._active:
                self._quiet.set()
        if tx.channels:
            self._notifier.notify(tx.channels)
            hints.notify(tx.channels)
        return result

    async def _tried(self, work: Work[T], *, reads: bool, apart: bool) -> tuple[T, PostgresTx]:
        pause, left = _PAUSE_NS, _TRIES
        while True:
            try:
                return await self._attempt(work, reads=reads, apart=apart)
            except _MustHold:  # of works that go apart: so this happens once, and is none of the tries
                apart = False
                self._counts["held"] += 1
            except _Again as again:
                left -= 1
                if not left:
                    raise again.error from again.__cause__
                if again.lost:
                    await self._pool.heal()
                self._counts["run_again"] += 1
                await asyncio.sleep((pause // 2 + self._entropy.below(pause)) / NS)
                pause *= 2

    async def _attempt(self, work: Work[T], *, reads: bool, apart: bool) -> tuple[T, PostgresTx]:
        connection = await self._pool.borrow()
        tx = PostgresTx(connection, self._shown, reads=reads, apart=apart)
        try:
            try:
                if ARMED:
                    await areach("plane.postgres.begin")
                result = await work(tx)
                alone = tx.failure is None and tx.is_one_statement and is_silent(connection)
                if not alone:
                    await tx.flush()
            except Exception:
                if tx.must_hold:
                    raise _MustHold from None
                if isinstance(tx.cause, psycopg.Error):
                    self._again(tx.cause, tx.failure, connection)
                raise
            if tx.must_hold:
                raise _MustHold
            if tx.failure is not None:  # swallowed by the work; the server will not commit after it
                if isinstance(tx.cause, psycopg.Error):
                    self._again(tx.cause, tx.failure, connection)
                raise tx.failure
            if not reads and (alone or tx.begun):
                await self._commit(connection, tx, alone=alone)
                if ARMED:
                    await areach("plane.postgres.committed")
            for call in tx.calls:  # before the connection is returned, so that waiting messages leave immediately
                call()
            return result, tx
        finally:
            tx.end()
            await self._pool.give_back(connection, reads=reads)

    async def _commit(self, connection: Connection, tx: PostgresTx, *, alone: bool) -> None:
        """End the transaction; or, `alone`, make it: then its one statement is also its commit."""
        if ARMED:
            await areach("plane.postgres.written")
        try:
            if alone:
                await tx.whole()
                return
            cursor = await connection.execute(b"COMMIT")
        except psycopg.Error as error:
            if tx.must_hold:
                raise _MustHold from None
            found = at_commit(error, connection, self._shown)
            if is_worth_another_try(error):
                raise _Again(found, lost=False) from error
            self._counts["unknown"] += isinstance(found, Timeout)
            raise found from error
        if cursor.statusmessage != "COMMIT":
            raise Unavailable(f"{self._shown} rolled the transaction back; nothing was changed")

    def _again(self, error: psycopg.Error, found: HoldfastError | None, connection: Connection) -> None:
        """Raise `_Again` if the same work may succeed when it is run again."""
        lost = is_lost(connection, error)
        if lost or is_worth_another_try(error):
            raise _Again(found or Unavailable(f"{self._shown} was lost; nothing was changed"), lost=lost) from error

    async def _close(self) -> None:
        while self._active:
            self._quiet.clear()
            await self._quiet.wait()
        if self._hints is not None:
            await self._hints.close()
        await self._pool.close()
        self._notifier.close()


class _MustHold(Exception):
    """Nothing has happened, and the work should be run again, as one transaction that holds what it reads."""


class _Again(Exception):
    """Nothing has happened, and the same work should be run again. `error` is for when it was tried often enough."""

    def __init__(self, error: HoldfastError, *, lost: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.lost = lost
