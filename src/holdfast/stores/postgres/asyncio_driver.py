"""The asyncio driver: a few connections of one event loop, each used by one task at a time.

Promises: a call ends within its deadline, counted over waiting for a connection, connecting, sending and receiving. A
call that runs out of time closes its connection: the server may still finish the request. A call that is cancelled
leaves its connection to the background, which waits for the answer (`settled`). In another
process, or on another loop after the first was closed, it starts again. Clock: the loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from psycopg import pq

from holdfast.core.failpoints import ARMED, areach
from holdfast.errors import BackendError, BadInput, Timeout, Unavailable
from holdfast.runtime.connection_pool import ConnectionBroken
from holdfast.stores.postgres.connection import READ, WRITE, Row, Socket, Value, asking, connecting, not_in_time
from holdfast.stores.postgres.errors import Congested
from holdfast.stores.postgres.sync_driver import is_clean
from holdfast.stores.postgres.url import PostgresAddress, ServerAddress
from holdfast.types import NS

T = TypeVar("T")

# See `sync_driver`.
_inherited: list[Any] = []


class _Idle(list[pq.abc.PGconn]):
    """Connections that wait for a request, until the store is closed."""

    closed = False


class _Request:
    """A connection and a slot of the pool, until a request is over."""

    __slots__ = ("clean", "connection", "given_up", "idle", "slots")

    def __init__(self, slots: asyncio.Semaphore, idle: _Idle, connection: pq.abc.PGconn | None = None) -> None:
        self.slots = slots
        self.idle = idle
        self.connection = connection
        self.clean = False  # whether everything was answered
        self.given_up = False  # whether another one has taken over both

    @property
    def connected(self) -> pq.abc.PGconn:
        """The connection, once there is one."""
        assert self.connection is not None  # noqa: S101 - for the type checker
        return self.connection

    def end(self) -> None:
        """Return both, or close the connection if something is left unanswered."""
        if self.given_up:
            return
        self.slots.release()
        if self.connection is not None and self.clean and not self.idle.closed:
            self.idle.append(self.connection)
        elif self.connection is not None:
            self.connection.finish()


class AsyncioPool:
    """The connections of one loop."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle = _Idle()
        self._slots = asyncio.Semaphore(address.pool_max)
        self._abandoned: set[asyncio.Task[None]] = set()

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return int(asyncio.get_running_loop().time() * NS) + timeout_ns

    async def call(
        self, text: bytes, values: Sequence[Value] | None, deadline_ns: int, greeted: list[int] | None = None
    ) -> list[Row]:
        """Run one statement, or without `values` a script, and return its rows. `greeted`: see `store.Driver`."""
        self._check_home()
        slots = self._slots
        try:
            async with asyncio.timeout_at(deadline_ns / NS):
                await slots.acquire()
        except TimeoutError:
            raise Congested(f"{self._address}: all {self._address.pool_max} connections were busy") from None
        request = _Request(slots, self._idle)
        try:
            request.connection = self._sound() or await _connect(self._address, deadline_ns)
            if ARMED:
                await areach("store.postgres.asyncio.send")
            if deadline_ns <= self.deadline(0):
                raise Unavailable(f"{self._address}: no time was left to send the request")
            if greeted is not None:
                greeted.append(request.connection.backend_pid)
            steps = asking(request.connection, text, values, self._address)
            rows = await self._answer(request, steps, deadline_ns)
            if ARMED:
                await areach("store.postgres.asyncio.replied")
            return rows
        finally:
            request.end()

    async def _answer(
        self, request: _Request, steps: Generator[Socket, None, list[Row]], deadline_ns: int
    ) -> list[Row]:
        try:
            async with asyncio.timeout_at(deadline_ns / NS):
                rows = await _driven(steps)
        except asyncio.CancelledError:
            abandoned = _Request(request.slots, request.idle, request.connection)
            request.given_up = True
            task = asyncio.get_running_loop().create_task(self._settle(abandoned, steps, deadline_ns))
            self._abandoned.add(task)
            task.add_done_callback(self._abandoned.discard)
            raise
        except (BackendError, BadInput) as error:
            request.clean = not isinstance(error, ConnectionBroken) and is_clean(request.connected)
            raise
        except TimeoutError:
            raise Timeout(f"{self._address} did not answer in time; the request may take effect") from None
        request.clean = True
        return rows

    async def _settle(self, request: _Request, steps: Generator[Socket, None, list[Row]], deadline_ns: int) -> None:
        """Wait for the answer to a request whose caller was cancelled, so that a release is not sent before it."""
        try:
            with contextlib.suppress(BackendError, BadInput, TimeoutError):
                async with asyncio.timeout_at(deadline_ns / NS):
                    await _driven(steps)
                request.clean = True
        finally:
            request.end()

    async def settled(self, deadline_ns: int) -> None:
        """Wait until the requests of cancelled callers have their answers, or their time has ended."""
        self._check_home()
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=max(0.0, deadline_ns / NS - asyncio.get_running_loop().time()))

    def _sound(self) -> pq.abc.PGconn | None:
        """An idle connection on which the server has said nothing."""
        while self._idle:
            connection = self._idle.pop()
            try:
                with socket.socket(fileno=os.dup(connection.socket)) as peeked:
                    peeked.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return connection
            except OSError:
                pass
            connection.finish()
        return None

    async def close(self) -> None:
        """Close the idle connections. One in use stays its caller's, and is closed after the call."""
        self._check_home()
        abandoned = list(self._abandoned)
        for task in abandoned:
            task.cancel()
        if abandoned:
            await asyncio.wait(abandoned)
        idle, self._idle = self._idle, _Idle()
        idle.closed = True
        for connection in idle:
            connection.finish()

    def _check_home(self) -> None:
        """Make sure that process and loop are still those of the connections; else start again."""
        loop = asyncio.get_running_loop()
        if self._pid == os.getpid():
            if self._loop is loop:
                return
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this store belongs to another event loop: make one for each loop")
        else:
            _inherited.append((self._idle, self._abandoned))
        self._idle = _Idle()
        self._abandoned = set()
        self._slots = asyncio.Semaphore(self._address.pool_max)
        self._loop = loop
        self._pid = os.getpid()  # last: an interrupt before it repeats the others


async def _driven(steps: Generator[Socket, None, T]) -> T:
    """Run a generator of `connection` to its end, and return its result."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            descriptor, events = next(steps)
            happened: asyncio.Future[None] = loop.create_future()
            if events & READ:
                loop.add_reader(descriptor, _happened, happened)
            if events & WRITE:
                loop.add_writer(descriptor, _happened, happened)
            try:
                await happened
            finally:
                loop.remove_reader(descriptor)
                loop.remove_writer(descriptor)
    except StopIteration as end:
        result: T = end.value
        return result


def _happened(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _connect(address: PostgresAddress, deadline_ns: int) -> pq.abc.PGconn:
    """As in `sync_driver`, with the names resolved beside the loop."""
    loop = asyncio.get_running_loop()
    failed: BackendError | None = None
    targets = [(place, each) for place in address.places for each in await _addresses(place, deadline_ns)]
    for at, (place, found) in enumerate(targets):
        now = loop.time()
        if now >= deadline_ns / NS:
            break
        steps = connecting(place.conninfo(found), address)
        try:
            async with asyncio.timeout_at(now + (deadline_ns / NS - now) / (len(targets) - at)):
                return await _driven(steps)
        except BackendError as error:
            failed = error
        except TimeoutError:
            continue
        finally:
            steps.close()  # and with it a connection that was not completed
    raise failed or not_in_time(address)


async def _addresses(place: ServerAddress, deadline_ns: int) -> list[str | None]:
    if place.name is None:
        return [None]
    try:
        async with asyncio.timeout_at(deadline_ns / NS):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(place.name, int(place.port), type=socket.SOCK_STREAM)
    except TimeoutError:
        return []
    except (OSError, ValueError, UnicodeError):
        return [None]  # libpq reports it
    return list(dict.fromkeys(str(each[4][0]) for each in found))
