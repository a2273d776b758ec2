"""psycopg 3, as far as guards use it; without it, an error that names the package to install."""

from __future__ import annotations

from typing import Any, Final

from holdfast.runtime.postgres_driver import missing_driver

try:
    from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, Error, errors
    from psycopg.pq import TransactionStatus
    from psycopg.rows import dict_row
    from psycopg.types.numeric import Int8
except ImportError as error:
    raise missing_driver("a guard on Postgres", error) from error

__all__ = ["AsyncConnection", "AsyncCursor", "Connection", "Cursor", "Error", "Int8", "dict_row", "errors", "is_idle"]

_IDLE: Final = TransactionStatus.IDLE


def is_idle(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether no transaction is open: what is begun now is ours to end."""
    return connection.info.transaction_status == _IDLE
