"""The blocking driver: one HTTP connection per concurrent caller. Nothing here ever suspends.

Promises: a call ends within its deadline, counted over connecting, TLS, sending and receiving (name resolution is the
system's, and not bounded); an error says whether the request may have taken effect. A connection whose answer did not
arrive completely is never used again, whatever ended the wait, so answers cannot cross: an interrupt at any point costs
at most the connection at hand. In a forked child the parent's connections are left alone. Clock: monotonic.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import httpcore

from holdfast.core.failpoints import reach
from holdfast.errors import Timeout
from holdfast.stores.etcd.errors import broken, garbled, late, unreachable
from holdfast.stores.etcd.http import ANSWER_MAX, ANSWERING, SENDING, lines, request
from holdfast.stores.etcd.url import EtcdAddress
from holdfast.stores.url_parts import Endpoint
from holdfast.types import NS

IDLE_MAX = 16


class BoundedBackend(httpcore.NetworkBackend):
    """Sockets whose every step ends at one deadline, which is set for each call."""

    def __init__(self) -> None:
        self.deadline_ns = 0
        self._sockets = httpcore.SyncBackend()

    def left_s(self, error: type[Exception]) -> float:
        """The time until the deadline, or that error."""
        left_ns = self.deadline_ns - time.monotonic_ns()
        if left_ns <= 0:
            raise error("no time is left")
        return left_ns / NS

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Try the addresses of a host one after the other. They share the time."""
        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
        failed: Exception = httpcore.ConnectError(f"{host} has no address")
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(str(error)) from error
        for place in found:
            try:
                limit = self.left_s(httpcore.ConnectTimeout)
                return _BoundedStream(
                    self._sockets.connect_tcp(str(place[4][0]), port, timeout=limit, socket_options=options), self
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed


class _BoundedStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, bound: BoundedBackend) -> None:
        self._stream = stream
        self._bound = bound

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._bound.left_s(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._bound.left_s(httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        limit = self._bound.left_s(httpcore.ConnectTimeout)
        return _BoundedStream(self._stream.start_tls(ssl_context, server_hostname, limit), self._bound)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class HttpConnection:
    """One HTTP connection, used by one caller at a time."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
        self._endpoint = endpoint
        self._scheme = "http" if tls is None else "https"
        self._bound = BoundedBackend()
        origin = httpcore.Origin(self._scheme.encode(), endpoint.host.encode("idna"), endpoint.port)
        self._http = httpcore.HTTPConnection(origin, tls, network_backend=self._bound)
        self._sent = False
        self._used = False

    def usable(self) -> bool:
        """Whether the server has not closed it meanwhile."""
        return self._http.is_available() and not self._http.has_expired()

    def post(self, path: str, body: bytes, token: str | None, deadline_ns: int) -> tuple[int, bytes]:
        """Send one request and read the whole answer: its status and its body."""
        collected = bytearray()

        def collect(chunk: bytes) -> bool:
            collected.extend(chunk)
            return len(collected) > ANSWER_MAX

        reach("store.etcd.send")
        status = self.exchange(path, body, token, deadline_ns, collect)
        reach("store.etcd.replied")
        if len(collected) > ANSWER_MAX:
            raise garbled(self._endpoint)
        return status, bytes(collected)

    def exchange(
        self, path: str, body: bytes, token: str | None, deadline_ns: int, heard: Callable[[bytes], bool]
    ) -> int:
        """Send one request, and pass on the answer as it arrives, until it ends or `heard` returns True."""
        self._sent = False
        self._bound.deadline_ns = deadline_ns
        message = request(self._endpoint, self._scheme, path, body, token, self._trace)
        try:
            response = self._http.handle_request(message)
            for chunk in response.iter_stream():
                if heard(chunk):
                    self.close()
                    return response.status
            response.close()
        except httpcore.TimeoutException as error:
            raise late(self._endpoint) if self._sent else unreachable(self._endpoint, error) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
            if not self._sent:
                raise unreachable(self._endpoint, error, tls=self._scheme == "https") from error
            raise broken(self._endpoint, error, plain_and_new=self._scheme == "http" and not self._used) from error
        self._used = True
        return response.status

    def _trace(self, event: str, _info: Any) -> None:
        if event == SENDING:
            self._sent = True
        elif event == ANSWERING:
            reach("store.etcd.sent")

    def close(self) -> None:
        """Close the socket. In a forked child this leaves the parent's end of it open."""
        self._http.close()

    def __del__(self) -> None:
        """Close a connection that an interrupt has lost, without a warning that no caller could act on."""
        lost = getattr(self, "_http", None)
        if lost is not None:
            with contextlib.suppress(Exception):
                lost.close()


class BlockingHttp:
    """The connections of one engine in one process. Calls may come from any thread."""

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self._start()

    def _start(self) -> None:
        # Last in, first out. `append` and `pop` of a deque are atomic, so no call takes a lock.
        self._idle: dict[Endpoint, deque[HttpConnection]] = {each: deque() for each in self._address.endpoints}
        self._pid = os.getpid()  # last: in a child, an interrupt before it repeats the others

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return time.monotonic_ns() + timeout_ns

    async def post(
        self, endpoint: Endpoint, path: str, body: bytes, token: str | None, deadline_ns: int
    ) -> tuple[int, bytes]:
        """Send one request and return the status and the body of its answer."""
        connection = self._take(endpoint)
        whole = False
        try:
            answer = connection.post(path, body, token, deadline_ns)
            whole = True
        finally:
            if not whole:
                connection.close()
        self._put_back(endpoint, connection)
        return answer

    async def listen(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        token: str | None,
        deadline_ns: int,
        heard: Callable[[bytes], bool],
    ) -> None:
        """Send one request and pass on each line of its answer, until `heard` returns True or the time has ended."""
        connection = self._take(endpoint)
        try:
            connection.exchange(path, body, token, deadline_ns, lines(heard))
        except Timeout:
            if self.deadline(0) < deadline_ns:
                raise
        finally:
            connection.close()

    async def settle(self, deadline_ns: int) -> None:
        """Return immediately: a request does not outlive its caller here."""

    async def sleep(self, ns: int) -> None:
        """Block for a while."""
        time.sleep(ns / NS)  # noqa: ASYNC251 - this color blocks

    async def discard(self) -> None:
        """See `close_idle`."""
        self.close_idle()

    async def close(self) -> None:
        """See `close_idle`."""
        self.close_idle()

    def close_idle(self) -> None:
        """Close what is idle. A connection in use stays its caller's, and is idle again after the call."""
        for idle in self._idle.values():
            while True:
                try:
                    connection = idle.pop()
                except IndexError:
                    break
                connection.close()
        if self._pid != os.getpid():
            self._start()

    def _take(self, endpoint: Endpoint) -> HttpConnection:
        if self._pid != os.getpid():
            self.close_idle()  # of the parent: only this end is closed
        idle = self._idle[endpoint]
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                return HttpConnection(endpoint, self._address.tls)
            if connection.usable():
                return connection
            connection.close()

    def _put_back(self, endpoint: Endpoint, connection: HttpConnection) -> None:
        if len(self._idle[endpoint]) < IDLE_MAX and self._pid == os.getpid():
            self._idle[endpoint].append(connection)
        else:
            connection.close()
