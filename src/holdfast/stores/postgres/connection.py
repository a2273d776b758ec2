"""One connection to Postgres, through libpq itself: how to connect and ask, without waiting for anything.

`connecting` and `asking` are generators. They yield the events that they wait for on the connection's socket and are
resumed when one has happened, so that threads and event loops share them. Time limits belong to the caller, who gives
up a generator by closing the connection.

Promises: a request is one statement of the extended protocol and its own transaction. Nothing remains in the session:
no prepared statement, no setting, no lock. So a pooler in transaction mode may give the next request to another
session. An answer to another request is none: each statement has a column whose name is the number of the request.
"""

from __future__ import annotations

import itertools
import select
from collections.abc import Generator, Sequence
from typing import Final, TypeAlias

import psycopg
from psycopg import pq

from holdfast.errors import Unavailable
from holdfast.stores.postgres.errors import broken, of_connecting, of_result
from holdfast.stores.postgres.url import PostgresAddress

READ: Final = select.POLLIN
WRITE: Final = select.POLLOUT

Value: TypeAlias = bytes | None
Row: TypeAlias = tuple[Value, ...]
Socket: TypeAlias = tuple[int, int]  # file descriptor, and the events to wait for

_numbers: Final = itertools.count(1)  # `next` is atomic

_GOOD: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


def connecting(conninfo: bytes, address: PostgresAddress) -> Generator[Socket, None, pq.abc.PGconn]:
    """Connect to one server."""
    connection = pq.PGconn.connect_start(conninfo)
    try:
        while True:
            if connection.status == pq.ConnStatus.BAD:
                raise of_connecting(connection.error_message, address)
            status = connection.connect_poll()
            if status == pq.PollingStatus.OK:
                break
            if status == pq.PollingStatus.READING:
                yield connection.socket, READ
            elif status == pq.PollingStatus.WRITING:
                yield connection.socket, WRITE
            else:
                raise of_connecting(connection.error_message, address)
        connection.nonblocking = 1
    except BaseException:
        connection.finish()
        raise
    return connection


def asking(
    connection: pq.abc.PGconn, text: bytes, values: Sequence[Value] | None, address: PostgresAddress
) -> Generator[Socket, None, list[Row]]:
    """Run one SELECT, or without `values` a script, and return its rows. Raises its outcome."""
    number = b"holdfast_%d" % next(_numbers)
    try:
        if values is None:
            connection.send_query(text)
        else:
            connection.send_query_params(b"SELECT *, NULL AS %b FROM (%b) AS answer" % (number, text), values)
        while connection.flush():
            yield connection.socket, READ | WRITE
            connection.consume_input()
        rows: list[Row] = []
        failed: pq.abc.PGresult | None = None
        while True:
            while connection.is_busy():
                yield connection.socket, READ
                connection.consume_input()
            result = connection.get_result()
            if result is None:
                break
            if result.status not in _GOOD:
                failed = failed or result
            elif values is not None:
                last = result.nfields - 1
                if result.fname(last) != number:
                    raise broken(address)
                columns = range(last)
                rows = [tuple([result.get_value(row, each) for each in columns]) for row in range(result.ntuples)]
    except psycopg.Error as error:
        raise broken(address) from error
    if failed is not None:
        raise of_result(failed, address)
    return rows


def is_pooled(connection: pq.abc.PGconn, backend_pid: bytes | None) -> bool:
    """Whether a pooler is in between: it invents the process number that it gives to its clients."""
    return backend_pid != b"%d" % connection.backend_pid


def not_in_time(address: PostgresAddress) -> Unavailable:
    """No connection within the caller's time."""
    return Unavailable(f"{address} could not be reached in time")
