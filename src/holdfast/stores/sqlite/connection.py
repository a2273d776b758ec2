"""One SQLite file, and this process's one connection to it: opened when needed, waited for, and safe across `fork`.

Promises: `run` makes its piece of work happen once, completely, or not at all, from any thread; it gives up when its
time has ended, and then nothing has happened. The connection is closed before every fork and opened again on both sides
when needed: SQLite keeps its own account of file locks in memory, which would be wrong in a child. A file that was
deleted or replaced is noticed, and the new one is used.

One connection for all threads, behind a mutex, is on purpose: SQLite has one writer at a time anyway, threads that
queue here are woken immediately where SQLite's own wait would sleep and poll, and the page cache stays warm.

Clock: the monotonic clock, for time limits only.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.core.failpoints import reach
from holdfast.errors import Misconfigured, Unavailable
from holdfast.runtime.durable_files import create_private
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.errors import FileBusy, damaged, is_busy, translated
from holdfast.stores.sqlite.mounts import file_system, is_shared
from holdfast.types import MS, NS

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

SQLITE_NEEDED = (3, 35, 0)  # RETURNING
_PAUSE_MIN_NS = 50_000  # about the length of one transaction
_PAUSE_MAX_NS = 5 * MS
_FORK_WAIT_S = 5.0
_CLOSED = (-1, -1)

_files: weakref.WeakValueDictionary[int, SqliteFile] = weakref.WeakValueDictionary()
_inherited: list[sqlite3.Connection] = []  # kept from the garbage collector, which would close them


class SqliteFile:
    """The file, the mutex, and the connection when there is one."""

    def __init__(self, path: str, *, synchronous: str = "normal", busy_timeout_ns: int | None = None) -> None:
        if sqlite3.sqlite_version_info < SQLITE_NEEDED:
            raise Misconfigured(
                f"SQLite {sqlite3.sqlite_version} is too old; Holdfast needs 3.35 or newer: use a newer Python build"
            )
        self.path = str(Path(path).absolute())
        self.shared = is_shared(self.path)
        self.synchronous = synchronous
        self._busy_timeout_ns = busy_timeout_ns
        self._mutex = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity = _CLOSED
        self._pid = os.getpid()
        self._warned = False
        self._forking = False  # the mutex is held across a fork
        self._orphaned = False
        _files[id(self)] = self

    def run(self, work: Work[T], timeout_ns: int) -> T:
        """Do the work on the connection. It may be called again from its start, after SQLite reported that it was busy.

        The work is one statement, or opens its own transaction with BEGIN IMMEDIATE and commits it; what it leaves
        open is rolled back.
        """
        limit = timeout_ns if self._busy_timeout_ns is None else min(timeout_ns, self._busy_timeout_ns)
        deadline = time.monotonic_ns() + limit
        pause = _PAUSE_MIN_NS
        while True:  # ends with a result, an error, or the deadline
            if self._pid != os.getpid():
                self.after_fork_in_child()
            self._refuse_reentry()
            with self._mutex:
                try:
                    return self._attempt(work)
                except sqlite3.Error as error:
                    if not is_busy(error):
                        self._close()  # whatever it was, the next call begins with a good connection
                        raise translated(error, self.path) from error
                except UnicodeDecodeError as error:  # SQLite's message about a damaged file may quote the damage
                    self._close()
                    raise damaged(self.path) from error
            now = time.monotonic_ns()
            if now >= deadline:
                raise FileBusy(f"{self.path} is locked by another writer; nothing was changed")
            time.sleep(min(pause, deadline - now) / NS)
            pause = min(2 * pause, _PAUSE_MAX_NS)

    def close(self) -> None:
        """Close the connection. The next `run` opens another."""
        if self._pid != os.getpid():
            self.after_fork_in_child()
        self._refuse_reentry()
        with self._mutex:
            self._close()

    def _refuse_reentry(self) -> None:
        """Refuse a signal handler that interrupted a call on this thread: the connection is inside a transaction."""
        if self._mutex._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - what `threading.Condition` asks too
            raise Unavailable(
                f"{self.path} is in use by the call that this signal handler interrupted; nothing was changed"
            )

    def _attempt(self, work: Work[T]) -> T:
        connection = self._connection
        if connection is not None and connection.in_transaction:  # left behind by two interrupts, one after the other
            connection.execute("ROLLBACK")
        if connection is None or self._identity != _identity(self.path):
            connection = self._open()
        reach("store.sqlite.begin")
        try:
            result = work(connection)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        reach("store.sqlite.committed")
        return result

    def _open(self) -> sqlite3.Connection:
        self._close()
        if self._orphaned:
            raise Misconfigured(
                f"this process was forked in the middle of a call to {self.path}, so SQLite cannot be used in it; "
                "fork with os.fork, or when no call is under way"
            )
        self._check_place()
        create_private(self.path)
        try:
            connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._identity = _identity(self.path)
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if connection.execute("PRAGMA page_count").fetchone() == (0,):  # a new file, which may become that of a plane
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # whose cleanup can then shrink it
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise Misconfigured(f"{self.path} cannot use WAL mode (it stays in {mode} mode); put it on a local disk")
        # NORMAL lets the last commits before a power failure be lost, never the file's consistency. That is enough
        # here: a power failure ends every holder on this machine as well, so a lost grant has no holder, a lost
        # release expires, and the fence does not go back because its floor is the wall clock. FULL costs an fsync per
        # commit, and is for those whose wall clock may go back over the power failure.
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        # The journals that statements need to undo themselves stay off the disk.
        connection.execute("PRAGMA temp_store = MEMORY")
        schema.ensure(connection, self.path)

    def _check_place(self) -> None:
        path = Path(self.path)
        if not path.parent.is_dir():
            raise Misconfigured(
                f"the directory {path.parent} does not exist; make it, or name another place for the file"
            )
        if path.is_dir():
            raise Misconfigured(f"{path} is a directory; name a file in it")
        if self.shared and not self._warned:
            self._warned = True
            warnings.warn(
                f"{path} is on a network file system ({file_system(self.path)}), where SQLite's WAL mode does not work "
                "across machines: use it from one machine only, or use a server as the store",
                RuntimeWarning,
                stacklevel=2,
            )

    def _close(self) -> None:
        connection, self._connection, self._identity = self._connection, None, _CLOSED
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    # Fork. The hooks run around `os.fork` and everything in the standard library that is built on it.

    def before_fork(self) -> None:
        """Let no thread be inside SQLite, and no connection be open, at the moment of the fork."""
        inside = self._mutex._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 - a handler that forks
        self._forking = not inside and self._mutex.acquire(timeout=_FORK_WAIT_S)
        if self._forking:
            self._close()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._forking:
            self._forking = False
            self._mutex.release()

    def after_fork_in_child(self) -> None:
        """Start again in a child. A connection is inherited only when the fork came from C code without our hooks.

        An idle one is closed, for while it exists SQLite believes that this process has file locks which only the
        parent has; the parent's own locks, and its file, are not touched by that. One that another thread was using can
        neither be closed nor be ignored.
        """
        inside = self._mutex._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 - a handler that forks
        in_use = inside or not self._mutex.acquire(blocking=False)
        self._mutex, self._pid, self._forking = threading.RLock(), os.getpid(), False
        if self._connection is not None and in_use:
            _inherited.append(self._connection)
            self._connection, self._orphaned = None, True
        self._close()


def _identity(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - on the path of every call, and a Path costs three times as much
    except OSError:
        return _CLOSED
    return status.st_dev, status.st_ino


def _all_files() -> list[SqliteFile]:
    # One step, so that a thread that opens a file meanwhile does no harm.
    return [file for reference in _files.valuerefs() if (file := reference()) is not None]


def _before_fork() -> None:
    for file in _all_files():
        file.before_fork()


def _after_fork_in_parent() -> None:
    for file in _all_files():
        file.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for file in _all_files():
        file.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
