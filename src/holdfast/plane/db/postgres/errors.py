"""What an error of Postgres, or of the way to it, lets the caller conclude.

A connection that is lost before COMMIT was sent takes its transaction with it: nothing has happened. One that is lost
while the answer to COMMIT is awaited leaves the outcome open. An error that the server reports itself means that the
transaction was rolled back. No text made here holds a password or a value.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from holdfast.errors import BackendError, BadInput, HoldfastError, Misconfigured, RowExists, Timeout, Unavailable
from holdfast.plane.db.write_probe import NoRoom

_AGAIN: Final = ("40001", "40P01")  # serialization failure, deadlock: the server requests the same work again
_CHANGED: Final = ("0A000", "RevalidateCachedQuery")  # a table has other columns than when a statement was prepared
_GOING_DOWN: Final = ("57P01", "57P02", "57P03", "57P04", "57P05", "25P03")
_STATEMENT_TIMEOUT: Final = "57014"
_LOCK_TIMEOUT: Final = "55P03"
_READ_ONLY: Final = "25006"
_STANDBY: Final = ("0A000", "during recovery")  # said to those who ask for a transaction that writes
_FULL: Final = "53100"
_NEVER: Final = ("0A", "26", "28", "34", "3D", "3F", "42")  # by class: features, authentication, names, syntax, rights

_UNVERIFIED: Final = ("root certificate file", "certificate verify failed", "server certificate", "SSL was required")


def is_lost(connection: psycopg.AsyncConnection[Any], error: BaseException) -> bool:
    """Whether the connection is gone, and with it the transaction."""
    state = getattr(error, "sqlstate", None) or ""
    return connection.closed or connection.broken or state[:2] == "08" or state in _GOING_DOWN


def is_worth_another_try(error: psycopg.Error) -> bool:
    """Whether the server requests the same transaction again.

    So does one whose tables were changed while we were connected, by a newer version that came beside us: what was
    prepared before is of no use, and is forgotten with the transaction that met it.
    """
    return (error.sqlstate or "") in _AGAIN or (error.sqlstate, error.diag.source_function) == _CHANGED


def is_standby(error: psycopg.Error) -> bool:
    """Whether the server only reads."""
    return error.sqlstate == _READ_ONLY or (error.sqlstate == _STANDBY[0] and _STANDBY[1] in server_text(error))


def before_commit(error: Exception, shown: str, *, reads: bool) -> HoldfastError:
    """What an error says that came before COMMIT was sent. Nothing has happened."""
    if not isinstance(error, psycopg.Error) or error.sqlstate is None:
        return _of_the_driver(error, shown)
    state, text = error.sqlstate, server_text(error)
    if state == "23505":
        return RowExists(f"{shown} has such a row already (Postgres: {text})")
    if state[:2] in {"22", "23"}:
        return BadInput("parameters", f"do not fit the table (Postgres: {text})", "check the values")
    if state == _FULL:
        return NoRoom(f"{shown} has no room left on a disk; nothing was changed (Postgres: {text})")
    if state == _READ_ONLY and reads:
        return BadInput("work", "writes, and was given to `read`", "give it to `write`")
    if is_standby(error):
        return Unavailable(f"{shown} only reads now (a standby, or a failover under way); nothing was changed")
    if state == _STATEMENT_TIMEOUT:
        return Unavailable(f"{shown} took too long for a statement, and was stopped; nothing was changed")
    if state == _LOCK_TIMEOUT:
        return Unavailable(f"{shown} has a row or table that another session keeps locked; nothing was changed")
    if state[:2] in _NEVER:
        return Misconfigured(f"{shown} cannot do what is asked of it (Postgres: {text})")
    return Unavailable(f"{shown} failed; nothing was changed (Postgres: {text})")


def at_commit(error: psycopg.Error, connection: psycopg.AsyncConnection[Any], shown: str) -> HoldfastError:
    """What an error says that came instead of the answer to COMMIT."""
    if is_lost(connection, error) or error.sqlstate is None:
        return Timeout(f"{shown} was lost while it committed; the change may or may not have been made")
    return before_commit(error, shown, reads=False)


def of_connecting(error: Exception, shown: str) -> BackendError:
    """Why there is no connection."""
    state = getattr(error, "sqlstate", None) or ""
    # libpq reports refusals at connecting without their code, so that the text is all there is.
    text = server_text(error)
    if any(each in text for each in _UNVERIFIED):
        fix = (
            "renew its certificate if it has expired; url options: sslrootcert=FILE is the CA that signed it, "
            "sslmode=disable is plain text"
        )
        return Misconfigured(f"{shown} is not trusted: {text}; {fix}")
    refused = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")
    if state[:2] in _NEVER or any(each in text for each in refused):
        return Misconfigured(f"{shown} refuses us: {text}")
    return Unavailable(f"{shown} cannot be reached: {text}")


def server_text(error: Exception) -> str:
    """The first line of what the server or the driver said. The second may hold values of a row."""
    diagnosis = getattr(getattr(error, "diag", None), "message_primary", None)
    text = str(diagnosis or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _of_the_driver(error: Exception, shown: str) -> HoldfastError:
    if isinstance(error, psycopg.DataError | psycopg.ProgrammingError | UnicodeError):
        return BadInput("parameters", f"cannot be sent ({server_text(error)})", "check the statement and its values")
    return Unavailable(f"{shown} was lost; nothing was changed ({server_text(error)})")
