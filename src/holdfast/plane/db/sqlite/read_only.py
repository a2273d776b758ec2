"""A read-only connection to the file of the plane: it creates no file and changes nothing.

Promises: a file that is not there is refused, and not made. A file that may not be written is read, also in a directory
that may not be: then SQLite cannot share memory with those who write, so such a file is read as it stands, and only
while there is no log beside it, which is while no process has it open.

Does not promise one view of a file that another process starts to write while it is read as it stands: `still`
connections are opened again for each transaction.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from holdfast.errors import BadInput
from holdfast.stores.sqlite.errors import code_of

_CANNOT_SHARE: Final = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class ReadOnlyConnection(NamedTuple):
    """A connection, and whether it takes the file as it stands, without a log."""

    connection: sqlite3.Connection
    still: bool


def check_there(path: str) -> None:
    """Refuse to look at, or act on, what is not there."""
    if not Path(path).exists():
        fix = "name the plane's own with --database or --config, or start one there: holdfast up"
        raise BadInput("database", f"there is no file {path}", fix)


def look_at(path: str, cached_statements: int) -> ReadOnlyConnection:
    """Open it for reading. Raises what SQLite raises."""
    check_there(path)
    connection = _connected(f"file:{quote(path)}?mode=rw", cached_statements)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # only now is the log looked for
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    except sqlite3.Error as error:
        connection.close()
        if code_of(error) not in _CANNOT_SHARE or Path(f"{path}-wal").exists():
            raise
        return ReadOnlyConnection(_connected(f"file:{quote(path)}?mode=ro&immutable=1", cached_statements), still=True)
    return ReadOnlyConnection(connection, still=mode != "wal")


def _connected(uri: str, cached_statements: int) -> sqlite3.Connection:
    return sqlite3.connect(
        uri,
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=cached_statements,
    )
