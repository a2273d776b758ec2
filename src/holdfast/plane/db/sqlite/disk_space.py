"""Whether the disk of the plane's file has room for more, and why the file cannot be written, in words.

`ROOM_KEPT` bytes of the disk are kept for what was begun: a plane that takes new jobs until nothing fits any more
cannot write down how the ones it has end. It is room for eight results of the largest kind (as many as a worker makes
at the same time by default), each once in the log and once in the file. No request is refused for it: it makes a
process unready, so that new work goes elsewhere or waits.

Does not promise to see quotas and limits of size: those are found by writing.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Final

from holdfast.errors import BackendError
from holdfast.plane.db.write_probe import NoRoom
from holdfast.stores.sqlite.errors import code_of

ROOM_KEPT: Final = 16_000_000

_WHY: Final = {
    sqlite3.SQLITE_FULL: "the disk, the quota or the size limit is full; free space there, or raise the limit",
    sqlite3.SQLITE_READONLY: "the file, one beside it (-wal, -shm), the directory or the file system is "
    "read-only; give this user write permission, or mount it for writing",
    sqlite3.SQLITE_IOERR: "the system reports an error of input or output; look at its disk, the quota, the limits of "
    "the process and the log of the system",
}


async def check_room(path: str) -> None:
    """Return if there is room beside the file, or if that is unknown; else raise `NoRoom`."""
    try:
        found = await asyncio.to_thread(shutil.disk_usage, Path(path).parent)  # which a disk may keep waiting
    except OSError:
        return  # the file is asked next, and says more
    if found.total and found.free < ROOM_KEPT:
        raise NoRoom(
            f"{path} should not grow: its disk has {_megabytes(found.free)} left, and {_megabytes(ROOM_KEPT)} are "
            "kept for what was begun; free space there"
        )


def described(path: str, error: BackendError) -> str:
    """Why the file cannot be written, and what to do about it. Names the file, and not its directory."""
    name, cause = Path(path).name, error.__cause__
    why = _WHY.get(code_of(cause)) if isinstance(cause, sqlite3.Error) else None
    if why is None and path in str(error):
        return str(error).replace(path, name)
    return f"{name} cannot be written: {why or error}"


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB"
