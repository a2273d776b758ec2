"""Records what processes do to the files below a directory, down to each write and each sync, with what they said.

    stage = PowerStage(tmp_path, shim)
    stage.begin()                                     # what is there now is on the disk
    subprocess.run(command, env=stage.environment())  # writes below stage.disk, says things with `mark`
    trace = stage.trace()                             # what happened, in the order in which it happened

`power_disk` works out from a trace what is left when the power fails at any moment of it: one run has as many crashes
as it has records. Processes are recorded by a small library (`power_shim.c`) which is compiled once per test run and
preloaded into them; nothing needs root, a kernel module or a file system of its own.

What a process acknowledges is part of the record, and so is its place among the writes: `mark` writes to one file that
the library knows. A crash before that record owes the outside nothing; any crash after it does.

Does not see: writes through mmap (SQLite's `-shm`, a cache), io_uring, and programs that do not use the
C library, such as Go's. `Disk.differences` tells whether anything was missed.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

SOURCE: Final = Path(__file__).resolve().parent / "power_shim.c"
HEADER: Final = struct.Struct("<IIQqQII")  # mirrors `struct header` of the library
MAGIC: Final = 0x50575231

_MARKS: Final = "POWER_MARKS"


class Kind(IntEnum):
    """What a record says; mirrors `enum kind` of the library."""

    WRITE = 1
    TRUNCATE = 2
    CREATE = 3
    MKDIR = 4
    RENAME = 5
    UNLINK = 6
    RMDIR = 7
    LINK = 8
    SYMLINK = 9
    SYNC = 10
    SYNC_ALL = 11
    MARK = 12
    ALLOCATE = 13


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened."""

    kind: Kind
    inode: int
    offset: int  # of a write; the size of a truncation
    first: str
    second: str
    data: bytes


@cache
def why_not() -> str | None:
    """Why nothing can be recorded here; None: it can."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return "power loss is recorded on 64-bit Linux only"
    if shutil.which("gcc") is None:
        return "no gcc: the library that records power loss cannot be compiled"
    return None


def compiled(directory: Path) -> Path:
    """The library, for processes of this machine."""
    library = directory / "power_shim.so"
    words = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run([*words, "-ldl", "-lpthread"], check=True, timeout=120)
    return library


class PowerStage:
    """One directory whose files are on the disk in question, and the record of what happens to them."""

    def __init__(self, directory: Path, library: Path) -> None:
        self.directory = directory.resolve()
        self.disk = self.directory / "disk"
        self.base = self.directory / "base"
        self._library = library
        self._log = self.directory / "power.log"
        self._marks = self.directory / "marks"
        self.inodes: Mapping[str, int] = {}  # at the beginning, by path
        self.disk.mkdir()

    def begin(self) -> None:
        """What is on the disk now is there for good: the record begins here."""
        shutil.copytree(self.disk, self.base, symlinks=True)
        places = [self.disk, *self.disk.rglob("*")]
        self.inodes = {str(path.relative_to(self.disk)): path.lstat().st_ino for path in places}
        for path in (self._log, self._marks, self._log.with_name(self._log.name + ".lock")):
            path.touch()
            path.chmod(0o666)  # a server that is not root may have to write it

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a process that is to be recorded."""
        own = {"POWER_DISK": str(self.disk), "POWER_LOG": str(self._log), _MARKS: str(self._marks)}
        return {**os.environ, **own, "LD_PRELOAD": str(self._library), **more}

    def run(self, words: Sequence[str], *, limit_s: float = 60.0, **more: str) -> None:
        """Run a program to its end, which must be a good one, and record it."""
        done = subprocess.run(
            [sys.executable, *words],
            env=self.environment(**more),
            cwd=self.directory,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]

    def trace(self) -> Trace:
        """What happened so far. A record that a killed process did not finish is the last, and is left out."""
        return Trace(list(_records(self._log.read_bytes())))


class Trace:
    """Everything that happened, in order. Moment `n` is when the first `n` records had happened, and no more."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def said(self) -> list[tuple[int, dict[str, Any]]]:
        """What was acknowledged: the first moment at which it had been, and what."""
        found: list[tuple[int, dict[str, Any]]] = []
        for number, record in enumerate(self.records, 1):
            if record.kind is Kind.MARK:
                found.extend((number, json.loads(line)) for line in record.data.splitlines())
        return found

    def said_by(self, moment: int) -> list[dict[str, Any]]:
        """What had been acknowledged at a moment."""
        return [what for at, what in self.said() if at <= moment]

    def before_syncs(self) -> list[int]:
        """The moments at which most was under way: just before each sync."""
        return [number for number, record in enumerate(self.records) if record.kind is Kind.SYNC]


def mark(what: Mapping[str, Any]) -> None:
    """Acknowledge something to the outside, in a process that is recorded."""
    descriptor = os.open(os.environ[_MARKS], os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, json.dumps(what).encode() + b"\n")
    finally:
        os.close(descriptor)


def _records(log: bytes) -> Iterator[Record]:
    place = 0
    while place + HEADER.size <= len(log):
        magic, kind, inode, offset, length, first, second = HEADER.unpack_from(log, place)
        assert magic == MAGIC, f"the record is damaged at byte {place}"
        place += HEADER.size
        end = place + first + second + length
        if end > len(log):
            return
        names, data = log[place : place + first + second], log[place + first + second : end]
        yield Record(Kind(kind), inode, offset, os.fsdecode(names[:first]), os.fsdecode(names[first:]), data)
        place = end
