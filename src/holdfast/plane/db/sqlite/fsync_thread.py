"""Commits become durable while the next transaction runs: one thread syncs the log of the file.

SQLite's own way (`synchronous = FULL`) syncs within COMMIT, while it holds the write lock, so that no one else can
write until the disk has answered. Here a commit only writes to the log (`NORMAL`); the lock is free, and this thread
syncs the log. Whatever was committed before a sync began is safe with it, also what other processes have committed: the
log is one file, and is read from its beginning up to the first piece that is not whole. What a checkpoint has moved out
of the log SQLite has synced itself.

Promises: the caller of a commit is notified after it is on the disk, in the order of the commits, or with the error
that it may not be. A reader is notified when what it has read is. After a sync that failed nothing counts as
synced, whatever later ones say, until `trust`: the kernel reports an error once and may have dropped what it could not
write. A log that is not where it should be is such a failure. The file of the database itself is never opened here:
closing it would end the locks of this process on it.

Does not promise that a commit is invisible before it is safe: readers that do not ask for that may see it, for as long
as a sync takes. What is written because of it is safe only together with it. Does not promise that a process which
opens the log after a failed sync of another one hears of it: if that one dies before its next write, which would have
mended it, later commits stand behind one that may be gone after a loss of power.

Clock: none.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from holdfast.core.failpoints import reach

POSSIBLE: Final = hasattr(os, "fdatasync")

OnDurable: TypeAlias = Callable[[OSError | None], None]
"""Is called when a commit is safe, or with why it may not be. Must not raise."""


class _Commit(NamedTuple):
    changed: bool  # whether there is something to sync
    on_durable: OnDurable


class FsyncThread:
    """The thread. `trust` and `close` belong to the thread that writes."""

    def __init__(self, path: str) -> None:
        self._log = f"{path}-wal"
        self._waiting: deque[_Commit] = deque()
        # Of the writer and this thread alone. Signal handlers run in the main thread, so none meets it.
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self._thread: threading.Thread | None = None
        self._file: tuple[tuple[int, int], int] | None = None  # which one is open, and its descriptor
        self.doubt: OSError | None = None  # why what was committed may not be on the disk
        self.syncs = 0

    def put(self, on_durable: OnDurable, *, changed: bool) -> None:
        """Call `on_durable` when every commit so far is durable. Not `changed`: when every earlier one is."""
        with self._changed:
            self._waiting.append(_Commit(changed, on_durable))
            self._changed.notify()
            if self._thread is None:
                # A daemon: a program that forgot to close its database must still be able to end.
                self._thread = threading.Thread(target=self._serve, name="holdfast-plane-sync", daemon=True)
                self._thread.start()

    def trust(self) -> None:
        """Everything that is committed is on the disk after all: it was checkpointed."""
        self.doubt = None

    def close(self) -> None:
        """Sync the rest, notify all callers, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._forget()

    def _serve(self) -> None:
        while commits := self._next():
            if self.doubt is None and any(each.changed for each in commits):
                try:
                    self._sync()
                except OSError as error:
                    self.doubt = error
            doubt = self.doubt  # once for all of them: it may be dispelled meanwhile
            reach("plane.sqlite.synced")
            for each in commits:
                each.on_durable(doubt if each.changed else None)

    def _next(self) -> list[_Commit]:
        """All that wait. None, when there will never be any."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            commits = list(self._waiting)
            self._waiting.clear()
            return commits

    def _sync(self) -> None:
        status = os.stat(self._log)  # noqa: PTH116 - for every commit, and a Path costs three times as much
        identity = status.st_dev, status.st_ino
        if self._file is None or self._file[0] != identity:  # opened for the first time, or replaced
            self._forget()
            self._file = identity, os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
        os.fdatasync(self._file[1])
        self.syncs += 1

    def _forget(self) -> None:
        if self._file is not None:
            os.close(self._file[1])
            self._file = None
