"""Stopping another process, as a suspended machine does, at a moment when it locks no SQLite file.

A process that is stopped in the middle of a write transaction holds the write lock of the whole file until it goes on:
that is how SQLite is, docs/guarantees.md says so, and it is not what a test of a paused lease holder is about. `freeze`
stops the process, asks whether the files can be written, and if not lets it continue and stops it again.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

_LIMIT_S = 60.0


def freeze(pid: int, *urls: str) -> None:
    """Return when a process stands still and every SQLite database among these can be written."""
    files = [url.removeprefix("sqlite:///").partition("?")[0] for url in urls if url.startswith("sqlite:///")]
    deadline = time.monotonic() + _LIMIT_S
    while True:
        os.kill(pid, signal.SIGSTOP)
        while state_of(pid) != "T":
            assert time.monotonic() < deadline, "it does not stop"
            time.sleep(0.001)
        if all(_can_be_written(file) for file in files):
            return
        assert time.monotonic() < deadline, "it never stood still outside of a transaction"
        os.kill(pid, signal.SIGCONT)


def state_of(pid: int) -> str:
    """The letter that the kernel has for what a process does: `T` is stopped."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


def _can_be_written(file: str) -> bool:
    with closing(sqlite3.connect(file, timeout=1.0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True
