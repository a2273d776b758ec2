"""The blocking driver: a pool of plain sockets, one per concurrent caller. Nothing here ever suspends.

Promises: a call ends within its deadline, counted over connecting, sending and receiving (name resolution is the
system's, and not bounded); an error says whether the request may have taken effect; a connection whose answer did not
arrive completely is never used again, whatever ended the wait, so answers cannot cross. An interrupt at any point loses
at most the connection at hand, and never its place in the pool: that ends with the connection object. In a forked child
the parent's connections are left alone. Clock: monotonic.

Cost: a call is one send and one receive. The kernel bounds both (SO_SNDTIMEO, SO_RCVTIMEO), because Python's own socket
timeout would add a poll before each; the bound is set again only when it changes. With TLS Python's timeout it is.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import time
from typing import Any

from holdfast.core.failpoints import reach
from holdfast.errors import Timeout, Unavailable
from holdfast.runtime.connection_pool import ConnectionPool, PoolSlot
from holdfast.stores.redis.protocol import (
    ConnectionBroken,
    ProtocolError,
    Reply,
    ReplyReader,
    check_handshake,
    garbled,
    handshake,
    keep_alive,
    own_account,
    ungreeted,
    unreachable,
)
from holdfast.stores.redis.url import RedisAddress, ServerSource
from holdfast.types import MS, NS

POOL_MAX = 64
_CHUNK = 8192


class Connection:
    """One socket, used by one caller at a time."""

    __slots__ = ("_armed_ms", "_bound_by_kernel", "_reader", "_recv", "_send", "_socket", "address", "slot", "used_ns")

    def __init__(self, address: RedisAddress, deadline_ns: int) -> None:
        self.address = address
        self.slot: PoolSlot | None = None
        self._reader = ReplyReader()
        self._armed_ms = 0  # nothing
        self._bound_by_kernel = address.tls is None
        self._socket = _connect(address, deadline_ns)
        self._send = self._socket.sendall
        self._recv = self._socket.recv
        self.used_ns = time.monotonic_ns()
        try:
            if self._bound_by_kernel:
                self._socket.settimeout(None)
            packed, count = handshake(address, own_account(address))
            check_handshake(address, self.ask_all(packed, count, deadline_ns))
        except Timeout as error:
            self.close()
            raise ungreeted(address, error) from error
        except BaseException:
            self.close()
            raise

    def ask(self, packed: bytes, deadline_ns: int) -> Reply:
        """Send one command and return its reply, which may be a `ReplyError`."""
        self.send(packed, deadline_ns)
        reply = self.next_reply(deadline_ns, armed=True)
        self._check_end()
        return reply

    def ask_all(self, packed: bytes, count: int, deadline_ns: int) -> list[Reply]:
        """Send `count` commands in one write and return their replies: fewer, if the answers broke off."""
        self.send(packed, deadline_ns)
        replies: list[Reply] = []
        try:
            while len(replies) < count:
                replies.append(self.next_reply(deadline_ns))
        except Timeout:
            if not replies:
                raise
            self.close()
            return replies
        self._check_end()
        return replies

    def _check_end(self) -> None:
        """Refuse more replies than requests: the next caller would take the rest for its own."""
        if self._reader.has_data():
            raise garbled(self.address, "a request (there is more than was asked for)")

    def send(self, packed: bytes, deadline_ns: int) -> None:
        """Send without waiting for an answer."""
        if not self._arm(deadline_ns):
            raise Unavailable(f"redis at {self.address}: no time was left to send the request")
        try:
            reach("store.redis.send")
            self._send(packed)
            reach("store.redis.sent")
        except (TimeoutError, BlockingIOError, ssl.SSLWantWriteError):
            raise Timeout(f"redis at {self.address} did not take the request in time; it may take effect") from None
        except OSError as error:
            raise ConnectionBroken(
                f"redis at {self.address}: connection lost while sending; it may take effect"
            ) from error

    def next_reply(self, deadline_ns: int, *, armed: bool = False) -> Reply:
        """Wait for one reply. `armed`: the deadline was set just now, by sending."""
        reader = self._reader
        try:
            # False means: not complete yet. No reply of RESP2 is read as False.
            while (reply := reader.gets()) is False:
                if not armed and not self._arm(deadline_ns):
                    raise TimeoutError
                data = self._recv(_CHUNK)
                if not data:
                    raise ConnectionBroken(f"redis at {self.address} closed the connection before it answered")
                reader.feed(data)
                armed = False
            reach("store.redis.replied")
        except ConnectionBroken:
            raise  # it is a TimeoutError too
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            raise Timeout(f"redis at {self.address} did not answer in time; it may have taken effect") from None
        except OSError as error:
            raise ConnectionBroken(f"redis at {self.address}: connection lost before the answer") from error
        except ProtocolError:
            raise garbled(self.address, "a request") from None
        return reply

    def _arm(self, deadline_ns: int) -> bool:
        """Bound what follows by the deadline, to the next millisecond. False: the deadline is past."""
        left_ms = (deadline_ns - time.monotonic_ns() + MS - 1) // MS
        if left_ms <= 0:  # before all else: no length of time that is armed stands for one that has ended
            return False
        if left_ms == self._armed_ms:
            return True
        if self._bound_by_kernel:
            bound = struct.pack("@ll", left_ms // 1000, left_ms % 1000 * 1000)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
        else:
            self._socket.settimeout(left_ms / 1000)
        self._armed_ms = left_ms
        return True

    def stale(self) -> bool:
        """Whether the server has closed an idle connection, or sent an unexpected message."""
        try:
            if self._bound_by_kernel:
                self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                return True
            self._socket.settimeout(0)
            self._armed_ms = 0
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        return True

    def interrupt(self) -> None:
        """From another thread: end the wait of the caller for a reply."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. In a forked child this leaves the parent's end of it open."""
        self._socket.close()

    def __del__(self) -> None:
        """Close a connection that an interrupt has lost, without a warning that no caller could act on."""
        lost = getattr(self, "_socket", None)
        if lost is not None:
            lost.close()


class RedisConnectionPool(ConnectionPool[Connection]):
    """The connections of one engine in one process. Calls may come from any thread."""

    def __init__(
        self, source: RedisAddress | ServerSource, most: int = POOL_MAX, shown: RedisAddress | None = None
    ) -> None:
        """`shown`: the address of errors before the source has found one."""
        self._source = source
        self._address = source if isinstance(source, RedisAddress) else shown
        super().__init__(
            lambda deadline_ns: Connection(source.find(deadline_ns), deadline_ns), f"redis at {self._address}", most
        )
        source.follow(self._moved)

    async def call(self, packed: bytes, deadline_ns: int) -> Reply:
        """Send one command and return its reply, which may be a `ReplyError`."""
        connection = self.take(deadline_ns)
        try:
            reply = connection.ask(packed, deadline_ns)
        except BaseException as error:
            self.drop(connection, error)
            raise
        if connection.address is self._address:
            self.put_back(connection)
        else:  # the primary has changed meanwhile
            self.drop(connection, None)
        return reply

    async def call_all(self, packed: bytes, count: int, deadline_ns: int) -> list[Reply]:
        """Send `count` commands in one write and return their replies: at least one, fewer if the answers broke off."""
        connection = self.take(deadline_ns)
        try:
            replies = connection.ask_all(packed, count, deadline_ns)
        except BaseException as error:
            self.drop(connection, error)
            raise
        if len(replies) == count and connection.address is self._address:
            self.put_back(connection)
        else:
            self.drop(connection, None)
        return replies

    async def close(self) -> None:
        """See `close_idle`."""
        self.close_idle()
        self._source.close()

    async def distrust(self) -> None:
        """See `Driver.distrust`."""
        self._wake(self._empty())

    def _moved(self, address: RedisAddress) -> None:
        self._address = address
        self._server = f"redis at {address}"
        if self._pid == os.getpid():
            self._wake(self._empty())


def _connect(address: RedisAddress, deadline_ns: int) -> socket.socket:
    if deadline_ns <= time.monotonic_ns():
        raise Unavailable(f"redis at {address}: no time was left to connect")
    plain: socket.socket | None = None
    try:
        if address.path is not None:
            return _dialled(socket.AF_UNIX, address.path, deadline_ns)
        plain = _dialled_by_name(address.host, address.port, deadline_ns)
        keep_alive(plain)
        if address.tls is None:
            return plain
        plain.settimeout(_left_s(deadline_ns))
        return address.tls.wrap_socket(plain, server_hostname=address.host)
    except (OSError, UnicodeError) as error:
        if plain is not None:
            plain.close()
        raise unreachable(address, error) from error
    except BaseException:
        if plain is not None:
            plain.close()
        raise


def _dialled_by_name(host: str, port: int, deadline_ns: int) -> socket.socket:
    """Try the addresses of a host one after the other. They share the time, as they would not with `socket`'s own."""
    failed = OSError(f"{host} has no address")
    for family, _, _, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            return _dialled(family, where, deadline_ns)
        except OSError as error:
            failed = error
    raise failed


def _dialled(family: int, where: Any, deadline_ns: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(_left_s(deadline_ns))
        made.connect(where)
    except BaseException:
        made.close()
        raise
    return made


def _left_s(deadline_ns: int) -> float:
    left_ns = deadline_ns - time.monotonic_ns()
    if left_ns <= 0:
        raise TimeoutError("no time was left to connect")
    return left_ns / NS
