"""Whether the write lock of a SQLite file is free, and which processes hold it.

Promises: takes the lock and gives it back; nothing is written, and a missing file is not created.
"""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

BUSY_S: Final = 1.5
"""A lock that is not free for this long is held by one process, and not by many in turn."""
PAUSE_S: Final = 0.05


def busy_file(path: str) -> str:
    """Why a write would wait for longer than any write takes; "": the lock is free."""
    if not Path(path).exists():
        return ""
    holders: set[str] | None = None
    try:
        with closing(
            sqlite3.connect(f"file:{Path(path).absolute()}?mode=rw", uri=True, timeout=0, isolation_level=None)
        ) as connection:
            for _ in range(round(BUSY_S / PAUSE_S)):
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.execute("ROLLBACK")
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error):
                        return f"{path} cannot be written: {error}"
                else:
                    return ""
                now = lockers(path)
                holders = now if holders is None else holders & now
                time.sleep(PAUSE_S)
    except sqlite3.Error as error:
        return f"{path} cannot be opened for writing: {error}"
    who = f" by process {', '.join(sorted(holders))}" if holders else ""
    return f"its write lock has been held{who} for the whole {BUSY_S:g} s of this check"


def lockers(path: str) -> set[str]:
    """The processes with a write lock on the file or the index of its log, where the system lists them."""
    inodes = set()
    for each in (path, f"{path}-shm"):
        with suppress(OSError):
            inodes.add(str(Path(each).stat().st_ino))
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return set()
    found = (re.match(r"\d+: \w+\s+\w+\s+WRITE\s+(\d+)\s+\S+:(\d+)\s", line) for line in lines)
    return {each[1] for each in found if each is not None and each[2] in inodes}
