"""The audit ledger: an append-only record of what happened to leases, in files that outlive the process.

A ledger is a directory. Each process that writes to it has files of its own there (`HOST-PID-START.000001.jsonl`, …):
several processes, also on several hosts of one shared file system, need no lock between them, and no line is torn by a
neighbor. A file is full at `file_bytes` or after `file_age`, and then the next one is begun. When the directory has
more than `keep_bytes`, or files older than `keep_age`, the oldest files without a writer are deleted.

Promises: `note` never blocks, never raises and never waits for the disk; memory is bounded by `room`. What could not be
written (the line was full, the disk is) is counted, and the count is written as a line of its own as soon as that is
possible. Every line has a checksum; a crash can tear the last line of a file, which readers recognise. No line contains
a token, because no record does.

Does not promise that the last moments of a process that is killed are there: a record is written within about 10 ms,
and reaches the disk itself within `sync` seconds, which matters when the host loses power.

Clock: the wall clock of the process, as its records carry it; file ages are by the same clock.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from holdfast.core.history.events import EventKind, Record
from holdfast.core.ports import Clock
from holdfast.errors import BadInput
from holdfast.observe.ledger.codec import Remark, line
from holdfast.runtime.background_writer import BackgroundWriter
from holdfast.runtime.durable_files import PRIVATE, make_directory, set_mode, sync_directory
from holdfast.runtime.system import SystemClock
from holdfast.types import NS, Duration, duration_ns

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be deleted anyway
    fcntl = None  # type: ignore[assignment]  # every use asks whether it is there

MIB: Final = 1024 * 1024
SUFFIX: Final = ".jsonl"

_RARE: Final = frozenset(
    {
        EventKind.LOST,
        EventKind.FORCED,
        EventKind.POLICY,
        EventKind.WRITE,
        EventKind.DUPLICATE,
        EventKind.FELL_BACK,
        EventKind.EXERCISED,
        EventKind.PROMOTED,
        EventKind.DENIED,
    }
)
AUDITED: Final = _RARE | {
    *(EventKind.GRANTED, EventKind.RELEASED, EventKind.RELEASE_REFUSED, EventKind.RELEASE_FAILED, EventKind.LET_GO),
    *(EventKind.UNCONFIRMED, EventKind.FAILED, EventKind.COMPENSATED),
}


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """What one ledger has done since it was opened."""

    written: int  # records
    dropped: int  # records that could not be written
    queued: int  # records that wait to be written
    bytes: int
    files: int  # begun by this process; each after the first is a rotation
    failures: int = 0  # batches that the disk did not take
    deleted: int = 0  # old files that this process has made room with


class Ledger:
    """Writes records into a directory. Pass it to `connect(observers=[ledger])`, and to guards."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        everything: bool = False,
        file_bytes: int = 16 * MIB,
        file_age: Duration = 86_400,
        keep_bytes: int = 512 * MIB,
        keep_age: Duration | None = None,
        room: int = 50_000,
        sync: Duration | None = 1.0,
        clock: Clock | None = None,
    ) -> None:
        """Open (and make, if need be) the directory.

        `everything`: also busy attempts, warnings, and the reads and writes that guards accepted. `sync`: how long a
        line may be on its way to the disk, for the case that the host loses power; None leaves that to the system.
        """
        self._path = _directory(path)
        self._everything = bool(everything)
        self._file_bytes = _count("file_bytes", file_bytes, 4096)
        self._file_age_ns = duration_ns("file_age", file_age, low_ns=NS)
        self._keep_bytes = _count("keep_bytes", keep_bytes, self._file_bytes)
        self._keep_age_ns = None if keep_age is None else duration_ns("keep_age", keep_age, low_ns=NS)
        self._sync = sync is not None
        self._clock = clock or SystemClock()
        self._start_again()
        tick_s = duration_ns("sync", 60.0 if sync is None else sync, high_ns=3600 * NS) / NS
        self._background_writer: BackgroundWriter[Record] = BackgroundWriter(
            "holdfast-ledger", self._write, self._tick, room=_count("room", room, 1), tick_s=tick_s
        )
        _LEDGERS.add(self)

    def _start_again(self) -> None:
        self._file: int | None = None
        self._name = ""  # of this process; made with its first file
        self._name_is_safe = False  # the directory was synced since the file was made
        self._number = 0
        self._size = 0
        self._opened_ns = 0
        self._written = 0
        self._unfit = 0
        self._bytes = 0
        self._deleted = 0

    def note(self, record: Record) -> None:
        """Record an event. Returns immediately."""
        kind = record.kind
        if self._everything or (kind in AUDITED and not (kind is EventKind.WRITE and record.ok)):
            self._background_writer.put(record, rare=kind in _RARE)
        elif kind is EventKind.READ and not record.ok:
            self._background_writer.put(record, rare=True)

    def statistics(self) -> LedgerStatistics:
        """Counts so far."""
        background_writer = self._background_writer
        return LedgerStatistics(
            written=self._written,
            dropped=background_writer.dropped + self._unfit,
            queued=background_writer.queued(),
            bytes=self._bytes,
            files=self._number,
            failures=background_writer.failures,
            deleted=self._deleted,
        )

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until what was noted before is in the file. False: the time was over first."""
        return self._background_writer.flush(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Write what is left, say that the process is done, and close the file. Idempotent; never raises."""
        self._background_writer.close(timeout)
        if self._file is not None:
            with contextlib.suppress(OSError):  # the disk is full; what matters is written, or counted
                self._append(line(Remark("closed", self._clock.now().wall)))
            with contextlib.suppress(OSError):
                self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def forked(self) -> None:
        """In a child process: the open file is the parent's. The child begins one of its own when it has something."""
        if self._file is not None:
            os.close(self._file)
        self._start_again()

    # What follows runs on the scribe's thread alone, or after it has ended.

    def _write(self, batch: Sequence[Record], dropped: int) -> None:
        now_ns = self._clock.now().wall
        if self._file is not None and self._is_full(now_ns):
            self._append(line(Remark("closed", now_ns, {"continued": True})))
            self._shut()
        if self._file is None:
            self._begin(now_ns)
        lines = []
        for record in batch:
            try:
                lines.append(line(record))
            except (TypeError, ValueError, RecursionError):  # made by an application, of values that are not JSON
                dropped += 1
                self._unfit += 1
        written = len(lines)
        if dropped:
            lines.insert(0, line(Remark("dropped", now_ns, {"count": dropped})))
        self._append(b"".join(lines))
        self._written += written

    def _tick(self) -> None:
        if self._file is not None and self._sync:
            self._settle(self._file)

    def _settle(self, file: int) -> None:
        """Have the lines on the disk, and the name of their file: without it the lines could not be found."""
        os.fsync(file)
        if not self._name_is_safe:
            sync_directory(self._path)
            self._name_is_safe = True

    def _is_full(self, now_ns: int) -> bool:
        return self._size >= self._file_bytes or not 0 <= now_ns - self._opened_ns < self._file_age_ns

    def _begin(self, now_ns: int) -> None:
        if not self._name:
            host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:64] or "host"
            self._name = f"{host}-{os.getpid()}-{now_ns:x}{os.urandom(2).hex()}"
        self._prune(now_ns)
        path = self._path / f"{self._name}.{self._number + 1:06d}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, PRIVATE)
        # A directory with the setgid bit is shared with its group on purpose: its members may read the ledger.
        set_mode(self._file, PRIVATE | (stat.S_IRGRP if self._path.stat().st_mode & stat.S_ISGID else 0))
        self._number += 1
        self._name_is_safe = False
        self._size, self._opened_ns = 0, now_ns
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks: then old files are judged by age alone
                fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self._append(line(Remark("opened", now_ns, {"process": self._name, "file": self._number})))

    def _append(self, data: bytes) -> None:
        """All of it, or nothing: a line that does not fit on the disk is not left there half."""
        if self._file is None:
            return
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            try:
                os.ftruncate(self._file, self._size)
            except OSError:  # the next lines go into a new file, and readers skip what is torn in this one
                self._shut()
            raise
        self._size += len(data)
        self._bytes += len(data)

    def _shut(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                if self._sync:
                    self._settle(file)
            finally:
                os.close(file)

    def _prune(self, now_ns: int) -> None:
        """Make room for one more file: delete the oldest one without a writer."""
        found = sorted(_files(self._path), key=lambda each: each[0])
        total = sum(size for _, size, _ in found) + self._file_bytes
        for changed_ns, size, path in found:
            old = self._keep_age_ns is not None and now_ns - changed_ns > self._keep_age_ns
            if not old and total <= self._keep_bytes:
                break
            if _deleted(path):
                total -= size
                self._deleted += 1


def _files(directory: Path) -> Iterable[tuple[int, int, Path]]:
    for path in directory.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):  # a neighbor has deleted it
            status = path.stat()
            yield status.st_mtime_ns, status.st_size, path


def _deleted(path: Path) -> bool:
    """Delete a file, unless a process is writing to it (which holds a shared lock on it until it ends)."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(file)
        path.unlink()
        return True
    return False


def _directory(path: object) -> Path:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise BadInput("path", f"{path!r} is not a directory", "give the path of a directory for the ledger")
    directory = Path(os.fsdecode(os.fspath(path)))
    try:
        make_directory(directory)  # and not its parents: one that is not there is a path that was mistyped
    except (OSError, ValueError) as error:
        raise BadInput("path", f"{directory} cannot be a directory ({error})", "give one that can be made") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise BadInput("path", f"{directory} cannot be written to", "change its owner or its rights")
    return directory


def _count(field: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise BadInput(field, f"{value!r} is not a number of at least {low}", "give a whole number")
    return value


_LEDGERS: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _after_fork() -> None:
    for ledger in list(_LEDGERS):
        with contextlib.suppress(OSError):
            ledger.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
