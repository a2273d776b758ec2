"""The blocking driver: a pool of connections, one per concurrent caller. Nothing here ever suspends.

Promises: a call ends within its deadline, counted over connecting, sending and receiving (name resolution is the
system's, and not bounded); a connection whose answer did not arrive completely is closed, whatever ended the wait, so
answers cannot cross. Interrupts and forks: see `runtime.connection_pool`. Clock: monotonic.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Generator, Sequence
from typing import TypeVar

from psycopg import pq

from holdfast.core.failpoints import reach
from holdfast.errors import BackendError, BadInput, Timeout, Unavailable
from holdfast.runtime.connection_pool import ConnectionBroken, ConnectionPool, PoolSlot
from holdfast.stores.postgres.connection import READ, Row, Socket, Value, asking, connecting, not_in_time
from holdfast.stores.postgres.url import PostgresAddress, ServerAddress
from holdfast.types import MS

T = TypeVar("T")

# Connections inherited by a forked child. To end them would end the parent's sessions, so they are kept, and not used.
_inherited: list[pq.abc.PGconn] = []


class PostgresConnection:
    """One connection, used by one caller at a time."""

    __slots__ = ("_address", "_pid", "connection", "slot", "used_ns")

    def __init__(self, address: PostgresAddress, deadline_ns: int) -> None:
        self._address = address
        self._pid = os.getpid()
        self.slot: PoolSlot | None = None
        self.connection = _connect(address, deadline_ns)
        self.used_ns = time.monotonic_ns()

    def ask(self, text: bytes, values: Sequence[Value] | None, deadline_ns: int) -> list[Row]:
        """Run one statement, or without `values` a script, and return its rows."""
        if deadline_ns <= time.monotonic_ns():
            raise Unavailable(f"{self._address}: no time was left to send the request")
        reach("store.postgres.send")
        rows = driven(asking(self.connection, text, values, self._address), deadline_ns)
        if rows is None:
            raise Timeout(f"{self._address} did not answer in time; the request may take effect")
        reach("store.postgres.replied")
        return rows

    def stale(self) -> bool:
        """Whether the server has said anything on an idle connection: that it ends, most likely."""
        if self.connection.status != pq.ConnStatus.OK:
            return True
        poll = select.poll()
        poll.register(self.connection.socket, READ)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close it. In a forked child it is left to the parent."""
        if self._pid != os.getpid():
            _inherited.append(self.connection)
            return
        self.connection.finish()


def driven(steps: Generator[Socket, None, T], deadline_ns: int) -> T | None:
    """Run a generator of this package to its end, and return its result; None: the deadline came first."""
    try:
        while True:
            descriptor, events = next(steps)
            poll = select.poll()
            poll.register(descriptor, events)
            left_ms = -(-(deadline_ns - time.monotonic_ns()) // MS)
            if left_ms <= 0 or not poll.poll(left_ms):
                steps.close()
                return None
    except StopIteration as end:
        result: T = end.value
        return result


class LeaseConnections(ConnectionPool[PostgresConnection]):
    """The connections of one engine in one process. Calls may come from any thread."""

    doubt_ns = 0  # to look at the socket costs little, and a lost answer a good deal

    def __init__(self, address: PostgresAddress) -> None:
        super().__init__(lambda deadline_ns: PostgresConnection(address, deadline_ns), str(address), address.pool_max)

    async def call(
        self, text: bytes, values: Sequence[Value] | None, deadline_ns: int, greeted: list[int] | None = None
    ) -> list[Row]:
        """Run one statement, or without `values` a script, and return its rows. `greeted`: see `store.Driver`."""
        connection = self.take(deadline_ns)
        try:
            if greeted is not None:
                greeted.append(connection.connection.backend_pid)
            rows = connection.ask(text, values, deadline_ns)
        except BaseException as error:
            told = isinstance(error, BackendError | BadInput) and not isinstance(error, ConnectionBroken)
            if told and is_clean(connection.connection):
                self.put_back(connection)  # the server answered, with an error
            else:
                self.drop(connection, error)
            raise
        self.put_back(connection)
        return rows

    async def settled(self, deadline_ns: int) -> None:
        """Nothing is left behind by callers: an interrupted one has closed its connection."""

    async def close(self) -> None:
        """See `close_idle`."""
        self.close_idle()


def is_clean(connection: pq.abc.PGconn) -> bool:
    """Whether a connection has answered everything and has no transaction open."""
    return (
        connection.status == pq.ConnStatus.OK
        and connection.transaction_status == pq.TransactionStatus.IDLE
        and connection.get_result() is None
    )


def _connect(address: PostgresAddress, deadline_ns: int) -> pq.abc.PGconn:
    """Try the places one after the other, and the addresses of each. Those that are left share the time."""
    failed: BackendError | None = None
    targets = [(place, each) for place in address.places for each in _addresses(place)]
    for at, (place, found) in enumerate(targets):
        left_ns = deadline_ns - time.monotonic_ns()
        if left_ns <= 0:
            break
        until = time.monotonic_ns() + left_ns // (len(targets) - at)
        try:
            connection = driven(connecting(place.conninfo(found), address), until)
        except BackendError as error:
            failed = error
            continue
        if connection is not None:
            return connection
    raise failed or not_in_time(address)


def _addresses(place: ServerAddress) -> list[str | None]:
    if place.name is None:
        return [None]
    try:
        found = socket.getaddrinfo(place.name, int(place.port), type=socket.SOCK_STREAM)
    except (OSError, ValueError, UnicodeError):
        return [None]  # libpq reports it
    return list(dict.fromkeys(str(each[4][0]) for each in found))
