"""The memory of guards that stand before a resource which keeps no fence itself: HTTP endpoints, message consumers.

Promises: for each resource the highest fence that was noted, across restarts and between all processes that share the
record; noting is one atomic step. Does not promise that the work behind it is done in that step: the record guards the
door, and a handler that writes to storage of its own hands the fence on to a guard there.

Clock: the monotonic clock, for time limits only; `seen_at` in the ledger is the database's, for people.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar, runtime_checkable

from holdfast.errors import BadInput, Timeout, Unavailable
from holdfast.guards.settings import sql
from holdfast.runtime.durable_files import create_private
from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite.errors import is_busy, translated
from holdfast.types import NS, Duration, duration_ns

T = TypeVar("T")

_RAISE: Final = (
    "INSERT INTO holdfast_guard_fence AS entry (place, resource, fence) VALUES (?, ?, ?) ON CONFLICT (place, resource) "
    "DO UPDATE SET fence = max(entry.fence, excluded.fence), seen_at = CURRENT_TIMESTAMP RETURNING fence"
)
_SEEN: Final = "SELECT fence FROM holdfast_guard_fence WHERE place = ? AND resource = ?"
BUSY_TIMEOUT_S: Final = 5.0
_PREPARE_PAUSE_S: Final = 0.01

_inherited: list[sqlite3.Connection] = []  # of the parent of a fork: never used here, and never closed here either


@runtime_checkable
class FenceRecord(Protocol):
    """Where fences are remembered. `place` is the guard's name space, `resource` the thing in it.

    A record whose methods block says so with an attribute `blocking` that is true; guards that run on an event loop
    then ask it on a thread (`off_the_loop`).
    """

    async def note(self, place: str, resource: str, fence: int) -> int:
        """Remember the fence if none higher is known; return the highest. Durable before it returns.

        Accepted when what it returns is `fence`. `Unavailable` or `Timeout` when it cannot be known.
        """
        ...

    async def seen(self, place: str, resource: str) -> int | None:
        """The highest fence that was noted; None: none was."""
        ...


class SqliteRecord:
    """A record in one SQLite file, for all processes of one machine. Blocking: its methods never suspend.

    The file may be one that has other tables. Each thread has a connection of its own.
    """

    blocking: ClassVar[bool] = True

    def __init__(self, path: str | Path) -> None:
        self.path = _check_path(path)
        self._local = threading.local()

    async def note(self, place: str, resource: str, fence: int) -> int:
        """See `FenceRecord`."""
        return self._one(_RAISE, (place, resource, fence))[0]

    async def seen(self, place: str, resource: str) -> int | None:
        """See `FenceRecord`."""
        found = self._one(_SEEN, (place, resource))
        return found[0] if found else None

    def close(self) -> None:
        """Close the connection of this thread. The next call opens it again."""
        self._local.own = None

    def _one(self, statement: str, values: tuple[object, ...]) -> tuple[int, ...]:
        try:
            # Read to the end: only then is the statement complete, and committed.
            with closing(self._connection().execute(statement, values)) as cursor:
                found: list[tuple[int, ...]] = cursor.fetchall()
        except sqlite3.Error as error:
            if is_busy(error):
                raise Unavailable(f"the fence record {self.path} is busy ({error}); nothing was noted") from error
            raise translated(error, self.path) from error
        return found[0] if found else ()

    def _connection(self) -> sqlite3.Connection:
        found = self._mine()
        if found is None:
            # It is used by this thread alone, and closed by whichever lets go of it last.
            create_private(self.path)
            found = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            try:
                _prepare(found)
            except BaseException:
                found.close()
                raise
            self._local.own = _Own(found, self)
        return found

    def _mine(self) -> sqlite3.Connection | None:
        """The connection of this thread, unless a fork has made it the parent's."""
        own: _Own | None = getattr(self._local, "own", None)
        if own is None or own.pid != os.getpid():
            return None
        return own.connection


class _Own:
    """The connection of one thread: closed when the thread has ended, or when the record is gone."""

    def __init__(self, connection: sqlite3.Connection, record: SqliteRecord) -> None:
        self.connection = connection
        self.pid = os.getpid()
        self.close = weakref.finalize(record, _let_go, connection, self.pid)
        self.close.atexit = False  # a daemon thread may still be using it then

    def __del__(self) -> None:
        self.close()


def _let_go(connection: sqlite3.Connection, pid: int) -> None:
    if pid == os.getpid():
        connection.close()
    else:
        # SQLite forbids to carry a connection over a fork. It is kept out of the way, not closed: that would act on the
        # parent's files.
        _inherited.append(connection)


def _check_path(path: object) -> str:
    if not isinstance(path, str | Path) or not str(path) or str(path) == ":memory:":
        raise BadInput("path", f"{path!r} is not a file", "give the path of a file: what is remembered must last")
    return str(Path(path).absolute())


def _prepare(connection: sqlite3.Connection) -> None:
    """Make a new connection durable, and see that the ledger exists."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
            # Full synchronisation: what was noted must survive a power failure, or a stale request is let in after it.
            connection.execute("PRAGMA synchronous = FULL").close()
            connection.execute(sql("ledger_sqlite")).close()
            return  # noqa: TRY300 - the loop is left here, and only here
        except sqlite3.OperationalError as error:
            # Two processes that turn the same new file into WAL mode: SQLite tells one of them immediately that it is
            # locked, whatever the connection's time limit.
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
            time.sleep(_PREPARE_PAUSE_S)


class ThreadedRecord:
    """A blocking record for an event loop: every question is asked on a thread of its own, so the loop never waits.

    One thread, in the order of the calls: a record has one writer at a time anyhow. A question that was cancelled while
    it was still queued is not asked. Started with the first question, ended by `close`; a forked child starts its own.
    """

    blocking: ClassVar[bool] = False

    def __init__(self, record: FenceRecord, *, timeout: Duration = 10) -> None:
        """`timeout` is for one question and its time in the queue; after it `Timeout`, for it may take effect yet."""
        self._record = check_record(record)
        self._timeout_ns = duration_ns("timeout", timeout, low_ns=1)
        self._mutex = threading.RLock()
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    async def note(self, place: str, resource: str, fence: int) -> int:
        """See `FenceRecord`."""
        return await self._ask(self._record.note(place, resource, fence))

    async def seen(self, place: str, resource: str) -> int | None:
        """See `FenceRecord`."""
        return await self._ask(self._record.seen(place, resource))

    def close(self) -> None:
        """End the thread, and close what the record keeps for it. The next question starts it again."""
        with self._mutex:
            pool, self._pool = self._pool, None
            if pool is None or self._pid != os.getpid():
                return
        shut = getattr(self._record, "close", None)
        if shut is not None:
            pool.submit(shut)
        pool.shutdown(wait=True)

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        try:
            asked = self._submit(question)
        except BaseException:
            question.close()
            raise
        # A question that is never asked is closed all the same, or Python warns that it was never awaited.
        asked.add_done_callback(lambda _done: question.close())
        try:
            async with asyncio.timeout(self._timeout_ns / NS):
                return await asyncio.wrap_future(asked)
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise
            raise Timeout(
                f"the fence record did not answer within {self._timeout_ns / NS:g} s; the fence may be noted yet"
            ) from error

    def _submit(self, question: Coroutine[Any, Any, T]) -> Future[T]:
        with self._mutex:
            if self._pool is None or self._pid != os.getpid():
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-record")
                self._pid = os.getpid()
            return self._pool.submit(run_now, question)


def check_record(record: object) -> FenceRecord:
    """Something that remembers fences, or `BadInput`."""
    if isinstance(record, type) or not isinstance(record, FenceRecord):
        raise BadInput(
            "record",
            f"{type(record).__name__} does not remember fences",
            "give a SqliteRecord, a PostgresRecord, or your own with `note` and `seen`",
        )
    return record


def off_the_loop(record: FenceRecord) -> FenceRecord:
    """The record as an event loop may ask it: as it is, or on a thread if its methods block."""
    return ThreadedRecord(record) if getattr(record, "blocking", False) else record
