"""One connection to the file of the plane, and transactions on it. Used by one thread at a time.

Promises: what is committed through it survives the crash of the process and, with `synchronous=full`, the loss of
power. A statement that failed spoils its transaction in SQLite as it does in Postgres: also when the work swallows the
error, the transaction is not committed. A file that was deleted or replaced is noticed before it is used again: writes
to it would be lost.

Does not promise anything across machines: the file belongs on a local disk.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

from holdfast.errors import BadInput, Closed, HoldfastError, Misconfigured, RowExists, RowMissing, Timeout, Unavailable
from holdfast.plane.db.notifier import check_channel
from holdfast.plane.db.ports import Row, Work
from holdfast.plane.db.sqlite.read_only import ReadOnlyConnection, check_there, look_at
from holdfast.plane.db.statements import compiled
from holdfast.runtime.durable_files import create_private
from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite.errors import code_of, is_busy, translated
from holdfast.stores.sqlite.mounts import file_system, is_shared

T = TypeVar("T")
Synchronous = Literal["full", "normal"]

SQLITE_NEEDED: Final = (3, 35, 0)  # RETURNING
_CACHED_STATEMENTS: Final = 512
_ROW_THERE: Final = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
}
_WRONG_VALUE: Final = {
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_RANGE,
}


class WriteLockBusy(Exception):
    """Another connection has a lock that is needed. Nothing was done; it may be tried again."""


class PlaneFile:
    """The file that all connections of one database object mean: the one that the first of them found or made."""

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        """`read_only`: the file must exist; see the module `read_only`."""
        if sqlite3.sqlite_version_info < SQLITE_NEEDED:
            raise Misconfigured(f"SQLite {sqlite3.sqlite_version} is too old; use a Python with 3.35 or newer")
        self.path = path
        self.read_only = read_only
        self._identity: tuple[int, int] | None = None

    def check(self) -> None:
        """Refuse a file that is not the same any more: what is written to either of them would be lost."""
        if self._identity is not None and self._identity != _identity(self.path):
            raise Misconfigured(
                f"{self.path} was deleted or replaced while it was in use; restart the processes that use it"
            )

    def connect(self) -> sqlite3.Connection:
        """Open it. Only the first connection may make the file."""
        check_place(self.path)
        if self._identity is None:
            create_private(self.path)
        connection = sqlite3.connect(
            f"file:{quote(self.path)}?mode={'rwc' if self._identity is None else 'rw'}",
            uri=True,
            timeout=0,  # the threads wait on their own, and give up when no caller waits for the result
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
        )
        self._identity = self._identity or _identity(self.path)
        return connection

    def open_read_only(self) -> ReadOnlyConnection:
        """Open it read-only."""
        check_there(self.path)  # a reader is told to name another file, and not to create a directory
        check_place(self.path)
        found = look_at(self.path, _CACHED_STATEMENTS)
        self._identity = self._identity or _identity(self.path)
        return found


class SqliteConnection:
    """A connection that is opened when it is first used, and checks each time that the file is still the same one."""

    def __init__(self, file: PlaneFile, synchronous: Synchronous, *, writes: bool) -> None:
        self.path = file.path
        self._file = file
        self._synchronous = synchronous
        self._writes = writes
        self.still = False  # it takes the file as it stands, and there is no log
        self._open: sqlite3.Connection | None = None

    def begin(self) -> sqlite3.Connection:
        """Begin a transaction: with the write lock, or reading. Raises `WriteLockBusy`, or an error of the port."""
        try:
            connection = self._ready()
            connection.execute("BEGIN IMMEDIATE" if self._writes else "BEGIN")
        except sqlite3.Error as error:
            if is_busy(error):
                raise WriteLockBusy from error
            self.close()
            raise before_commit(error, self.path) from error
        return connection

    def commit(self) -> None:
        """Make it durable. `Timeout`: it may have become so; every other error: it did not."""
        if self._open is None:
            raise Unavailable(f"{self.path} is not open; nothing was changed")
        try:
            self._open.execute("COMMIT")
        except sqlite3.Error as error:
            self.rollback()
            if code_of(error) == sqlite3.SQLITE_CONSTRAINT or is_busy(error):
                raise before_commit(error, self.path) from error
            self.close()
            raise translated(error, self.path) from error

    def checkpoint(self) -> None:
        """Move all that is committed into the file itself, and sync that. Raises `Unavailable` if it cannot be now."""
        try:
            busy, *_ = self._ready().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            raise before_commit(error, self.path) from error
        if busy:
            raise Unavailable(f"{self.path} was not synced, and is being read; nothing was changed, try again")

    def rollback(self) -> None:
        """Undo what is open. A connection that cannot even do that is closed, which undoes it as well."""
        if self._open is None or not self._open.in_transaction:
            return
        try:
            self._open.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        """Close it. The next `begin` opens it again."""
        connection, self._open = self._open, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _ready(self) -> sqlite3.Connection:
        self._file.check()
        if self.still:
            self.close()
        if self._open is None:
            self._open = self._opened()
        return self._open

    def _opened(self) -> sqlite3.Connection:
        if self._file.read_only:
            found, self.still = self._file.open_read_only()
            return found
        connection = self._file.connect()
        try:
            if connection.execute("PRAGMA page_count").fetchone() == (0,):  # a new file
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # lets `cleanup` shrink it
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise Misconfigured(
                    f"{self.path} cannot use WAL mode (it stays in {mode} mode); put it on a local disk"
                )
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute("PRAGMA foreign_keys = ON")  # as in Postgres
            connection.execute(f"PRAGMA query_only = {'OFF' if self._writes else 'ON'}")
        except BaseException:
            connection.close()
            raise
        return connection


class SqliteTx:
    """See `ports.Tx`. Lives as long as its work runs."""

    dialect: Literal["sqlite"] = "sqlite"
    holds: Final = True  # there is one writer

    def __init__(self, connection: sqlite3.Connection, path: str, *, reads: bool = False) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._path = path
        self._reads = reads
        self._failure: BaseException | None = None
        self.channels: set[str] = set()
        self.calls: list[Callable[[], None]] = []

    def run(self, work: Work[T]) -> T:
        """Run a work to its end, here and now. Raises its error, or the one that it swallowed."""
        try:
            result = run_now(_driven(work, self))
            if self._failure is not None:
                raise self._failure
            return result
        finally:
            self._connection = None

    async def query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """See `ports.Tx`."""
        ready = compiled(statement, "sqlite")
        values = ready.ordered(parameters)
        try:
            cursor = self._live().execute(ready.text, values)
            if cursor.description is None:
                return []
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        except (sqlite3.Error, UnicodeError) as error:
            raise self._spoilt(error) from error

    async def query_many(self, statement: str, parameters: Sequence[Mapping[str, Any]]) -> int:
        """See `ports.Tx`."""
        ready = compiled(statement, "sqlite")
        values = [ready.ordered(each) for each in parameters]
        try:
            return max(0, self._live().executemany(ready.text, values).rowcount)
        except (sqlite3.Error, UnicodeError) as error:
            raise self._spoilt(error) from error

    async def put(
        self, statement: str, parameters: Mapping[str, Any] | None = None, *, rows: int | None = None
    ) -> None:
        """See `ports.Tx`. There is nothing to be gained by waiting."""
        changed = len(await self.query(statement, parameters))
        if rows is not None and changed != rows:
            missing = RowMissing(f"{changed} rows were written where there should have been {rows}")
            self._failure = self._failure or missing
            raise missing

    def step(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """Run a step of another component with the connection. It leaves the transaction open."""
        try:
            return step(self._live())
        except sqlite3.Error as error:
            raise self._spoilt(error) from error

    def notify(self, channel: str) -> None:
        """See `ports.Tx`. A work that changes nothing has nothing to tell."""
        if self._reads:
            raise BadInput("work", "notifies, and was given to `read`", "give it to `write`")
        self.channels.add(check_channel(channel))

    def after(self, call: Callable[[], None]) -> None:
        """See `ports.Tx`."""
        self.calls.append(call)

    def _live(self) -> sqlite3.Connection:
        if self._connection is None:
            raise Closed("this transaction is over; a work must not keep it")
        if self._failure is not None:
            raise self._failure
        return self._connection

    def _spoilt(self, error: sqlite3.Error | UnicodeError) -> Exception:
        if isinstance(error, UnicodeError):
            found: Exception = BadInput("parameters", "contain half a surrogate pair", "remove it")
        else:
            found = WriteLockBusy() if is_busy(error) else before_commit(error, self._path, reads=self._reads)
        self._failure = self._failure or found
        return found


def before_commit(error: sqlite3.Error, path: str, *, reads: bool = False) -> HoldfastError:
    """What an error says that came before the commit was tried: nothing has happened, whatever it was."""
    if getattr(error, "sqlite_errorcode", None) in _ROW_THERE:
        return RowExists(f"{path} has such a row already (SQLite: {error})")
    code = code_of(error)
    if code == -1:  # Python's own layer: more than one statement, a column of broken text, …
        return BadInput("statement", str(error), "run one statement at a time, with values that fit")
    if code in _WRONG_VALUE:
        return BadInput("parameters", f"do not fit the table (SQLite: {error})", "check the values")
    if code == sqlite3.SQLITE_READONLY and reads:
        return BadInput("work", "writes, and was given to `read`", "give it to `write`")
    found = translated(error, path)
    return Unavailable(f"{path} failed; nothing was changed (SQLite: {error})") if isinstance(found, Timeout) else found


def check_place(path: str) -> None:
    """Refuse a path that can never be a file of ours."""
    place = Path(path)
    if not place.parent.is_dir():
        raise Misconfigured(f"the directory {place.parent} does not exist; make it, or name another place for the file")
    if place.is_dir():
        raise Misconfigured(f"{place} is a directory; name a file in it")


def warn_if_shared(path: str) -> None:
    """Warn of a file that several machines may reach."""
    if is_shared(path):
        warnings.warn(
            f"{path} is on a network file system ({file_system(path)}), where SQLite's WAL mode does not work across "
            "machines: use it from one machine only, or use Postgres",
            RuntimeWarning,
            stacklevel=3,
        )


async def _driven(work: Work[T], tx: SqliteTx) -> T:
    return await work(tx)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - on the path of every commit, and a Path costs three times as much
    except OSError:
        return None
    return status.st_dev, status.st_ino
