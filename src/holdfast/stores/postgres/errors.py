"""What an error of Postgres, or of the way to it, lets the caller conclude.

Every request of this store is one statement, which is its own transaction. An error that the server reports means that
it was rolled back: nothing happened. Only a session that the server ends, or a connection that breaks, leaves the
outcome unknown: the commit may have come first. No text made here contains a password or a value.
"""

from __future__ import annotations

from typing import Final

from psycopg import pq

from holdfast.errors import BackendError, BadInput, Misconfigured, Unavailable
from holdfast.runtime.connection_pool import ConnectionBroken
from holdfast.stores.postgres.url import PostgresAddress

_AGAIN: Final = ("40001", "40P01")  # serialization failure, deadlock: the server requests the same work again
_ENDED: Final = ("57P01", "57P02", "57P05", "25P03", "25P04")  # the server ends the session
_NOT_NOW: Final = ("57P03", "57P04")  # it starts, or is shutting down; or the database was dropped
_WAITED: Final = ("55P03", "57014")  # lock timeout; statement timeout or a cancellation
_READ_ONLY: Final = "25006"
_NO_TABLES: Final = ("3F000", "42P01", "42883")  # no such schema, table or function
_NO_RIGHT: Final = "42501"
_CHECK: Final = "23514"
_TEXT: Final = ("22021", "22P05")  # the database's encoding has no such character
_NEVER: Final = ("0A", "26", "28", "34", "3D", "3F", "42", "22", "23")  # by class

_UNVERIFIED: Final = ("root certificate file", "certificate verify failed", "server certificate", "SSL was required")
_REFUSED: Final = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


class Congested(Unavailable):
    """Other transactions kept a lock for all of the time, or the server asked too often to try again."""

    congested = True


class Conflict(Congested):
    """A serialization failure or a deadlock: nothing was changed, and the same request may succeed."""


class TablesMissing(Misconfigured):
    """The schema, or a table or function in it, does not exist."""


def of_result(result: pq.abc.PGresult, address: PostgresAddress) -> BackendError | BadInput:
    """The meaning of an error that came instead of an answer."""
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = _line(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message)
    if not state:
        return ConnectionBroken(f"{address}: the connection was lost; the request may have taken effect ({text})")
    if state in _AGAIN:
        return Conflict(f"{address} asks for the request again ({text}); nothing was changed")
    if state in _ENDED or state[:2] == "08":
        return ConnectionBroken(f"{address} ended the session ({text}); the request may have taken effect")
    if state in _WAITED:
        return Congested(f"{address}: another transaction keeps a row or table locked ({text}); nothing was changed")
    if state == _READ_ONLY or "during recovery" in text:
        return Unavailable(f"{address} only reads now (a standby, or a failover under way); nothing was changed")
    if state in _NO_TABLES:
        return TablesMissing(f"{address} does not have the tables and functions of this store ({text})")
    if state == _NO_RIGHT:
        fix = "holdfast access postgres prints the rights that are needed; an owner creates the tables with its own URL"
        return Misconfigured(f"{address} refuses this user ({text}); {fix}")
    if state == _CHECK:
        return Misconfigured(f"{address}: the fence counter is outside of its range ({text}); was it changed by hand?")
    if state in _TEXT:
        return BadInput("name", f"cannot be stored: {text}", "use a database whose encoding is UTF8")
    if state[:2] in _NEVER:
        return Misconfigured(f"{address} cannot do what is asked of it ({text})")
    return Unavailable(f"{address} failed; nothing was changed ({text})")


def of_connecting(message: bytes, address: PostgresAddress) -> BackendError:
    """Why there is no connection. libpq reports refusals without their code, so that the text is all there is."""
    text = _line(message)
    if any(each in text for each in _UNVERIFIED):
        fix = (
            "renew its certificate if it has expired; url options: sslrootcert=FILE is the CA that signed it, "
            "sslmode=disable is plain text"
        )
        return Misconfigured(f"{address} is not trusted: {text}; {fix}")
    if any(each in text for each in _REFUSED):
        return Misconfigured(f"{address} refuses us: {text}")
    return Unavailable(f"{address} cannot be reached: {text}")


def broken(address: PostgresAddress) -> ConnectionBroken:
    """The connection was lost, and whether the request took effect is unknown."""
    return ConnectionBroken(f"{address}: the connection was lost; the request may have taken effect")


def _line(message: bytes) -> str:
    """The first line of a message, without what libpq puts before it. The next lines may contain values of a row."""
    text = message.decode("utf-8", "replace").strip().partition("\n")[0]
    return text.removeprefix("connection to server ").strip() or "no reason given"
