"""What an error of SQLite lets the caller conclude.

Busy is not here: the caller that waits for the write lock decides when to stop. Of the rest, only an input/output error
leaves the outcome open (the commit may have reached the file before the report of it failed), unless it was the writing
itself that failed, for a commit that is not complete in the log is none. Every other error means that the statement,
and with it the transaction, was rolled back.
"""

from __future__ import annotations

import sqlite3

from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

_NEVER = {
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; name another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: "is damaged; stop every user of it, then restore it or move it away (fences keep rising)",
    sqlite3.SQLITE_READONLY: "cannot be written; give this user write permission for the file and for its directory",
    sqlite3.SQLITE_PERM: "cannot be opened; give this user permission for the file and for its directory",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that it is a file and that its directory can be written",
    sqlite3.SQLITE_AUTH: "cannot be opened; SQLite's authorizer refuses it",
    sqlite3.SQLITE_CONSTRAINT: "refused a row: is the fence past the range of 64 bits, or was a table changed by hand?",
    sqlite3.SQLITE_ERROR: "does not have the tables it should have; were they changed by hand?",
}

_LATER = {
    sqlite3.SQLITE_FULL: "cannot grow: the disk, the quota or the size limit is full; nothing was changed",
    sqlite3.SQLITE_NOMEM: "could not be used: out of memory; nothing was changed",
    sqlite3.SQLITE_INTERRUPT: "was interrupted; nothing was changed",
}


class FileBusy(Unavailable):
    """Other writers, or requests of this process, kept the file busy for all of the time. Nothing was changed."""

    congested = True


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection has the write lock: nothing was done, and it may be tried again immediately."""
    return code_of(error) in _BUSY


def code_of(error: sqlite3.Error) -> int:
    """The primary result code; -1 when Python's own layer raised the error."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else -1


def damaged(path: str) -> BackendError:
    """For rows and texts that no version of Holdfast has written."""
    return Misconfigured(
        f"{path} holds what cannot be: it is damaged, or was changed by hand; restore it, or move it away"
    )


def translated(error: sqlite3.Error, path: str) -> BackendError:
    """Say the same in the words of the port. SQLite's messages hold names of tables and columns, never values."""
    code = code_of(error)
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_WRITE:
        return Unavailable(f"{path} could not be written; nothing was changed (SQLite: {error})")
    if code in _NEVER:
        return Misconfigured(f"{path} {_NEVER[code]} (SQLite: {error})")
    if code in _LATER:
        return Unavailable(f"{path} {_LATER[code]} (SQLite: {error})")
    return Timeout(f"{path} failed and may or may not have taken the change (SQLite: {error})")
