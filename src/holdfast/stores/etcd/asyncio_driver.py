"""The asyncio driver: one HTTP connection per concurrent task, on the loop of the first caller.

Promises: a call ends at its deadline or with the cancellation of its caller. A request that was sent by then continues
without its caller: connections are not ordered, so what undoes it has to wait for its end (`settle`). Its answer cannot
be taken for another one. An error says whether the request may have taken effect. In a forked child the parent's
connections are left alone. Clock: the loop's.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

import httpcore

from holdfast.core.failpoints import ARMED, areach
from holdfast.errors import Timeout
from holdfast.stores.etcd.errors import broken, garbled, late, unreachable
from holdfast.stores.etcd.http import ANSWER_MAX, ANSWERING, SENDING, lines, request
from holdfast.stores.etcd.url import EtcdAddress
from holdfast.stores.url_parts import Endpoint
from holdfast.types import NS

IDLE_MAX = 16
CLOSED = ConnectionAbortedError("the store was closed")

# Connections inherited by a forked child. Closing them would unregister them from the parent's selector.
_inherited: list[Any] = []


class AsyncioConnection:
    """One HTTP connection, used by one task at a time."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
        self._endpoint = endpoint
        self._scheme = "http" if tls is None else "https"
        origin = httpcore.Origin(self._scheme.encode(), endpoint.host.encode("idna"), endpoint.port)
        self._http = httpcore.AsyncHTTPConnection(origin, tls, network_backend=httpcore.AnyIOBackend())
        self.sent = False
        self._used = False

    def usable(self) -> bool:
        """Whether the server has not closed it meanwhile."""
        return self._http.is_available() and not self._http.has_expired()

    async def post(self, path: str, body: bytes, token: str | None, deadline_ns: int) -> tuple[int, bytes]:
        """Send one request and read the whole answer: its status and its body."""
        collected = bytearray()

        def collect(chunk: bytes) -> bool:
            collected.extend(chunk)
            return len(collected) > ANSWER_MAX

        if ARMED:
            await areach("store.etcd.asyncio.send")
        status = await self.exchange(path, body, token, deadline_ns, collect)
        if ARMED:
            await areach("store.etcd.asyncio.replied")
        if len(collected) > ANSWER_MAX:
            raise garbled(self._endpoint)
        return status, bytes(collected)

    async def exchange(
        self, path: str, body: bytes, token: str | None, deadline_ns: int, heard: Callable[[bytes], bool]
    ) -> int:
        """Send one request, and pass on the answer as it arrives, until it ends or `heard` returns True."""
        self.sent = False
        message = request(self._endpoint, self._scheme, path, body, token, self._trace)
        try:
            async with asyncio.timeout_at(deadline_ns / NS):
                response = await self._http.handle_async_request(message)
                async for chunk in response.aiter_stream():
                    if heard(chunk):
                        await self.close()
                        return response.status
                await response.aclose()
        except (TimeoutError, httpcore.TimeoutException) as error:
            if isinstance(error, Timeout):  # of a fault that is tested
                raise
            raise late(self._endpoint) if self.sent else unreachable(self._endpoint, error) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol, UnicodeError) as error:
            if not self.sent:
                raise unreachable(self._endpoint, error, tls=self._scheme == "https") from error
            raise broken(self._endpoint, error, plain_and_new=self._scheme == "http" and not self._used) from error
        self._used = True
        return response.status

    async def _trace(self, event: str, _info: Any) -> None:
        if event == SENDING:
            self.sent = True
        if event != ANSWERING:
            return
        if ARMED:
            await areach("store.etcd.asyncio.sent")

    async def close(self) -> None:
        """Close the socket."""
        await self._http.aclose()


class AsyncioHttp:
    """The connections of one store on one loop."""

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._idle: dict[Endpoint, deque[AsyncioConnection]] = {each: deque() for each in address.endpoints}
        self._running: set[asyncio.Task[tuple[int, bytes]]] = set()
        self._left: set[asyncio.Task[tuple[int, bytes]]] = set()  # those whose callers were cancelled

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return int(asyncio.get_running_loop().time() * NS) + timeout_ns

    async def post(
        self, endpoint: Endpoint, path: str, body: bytes, token: str | None, deadline_ns: int
    ) -> tuple[int, bytes]:
        """Send one request and return the status and the body of its answer."""
        connection = await self._take(endpoint)
        work = self._post(connection, endpoint, path, body, token, deadline_ns)
        task = asyncio.get_running_loop().create_task(work, name="etcd request")
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # the store was closed, and the caller was not cancelled
                raise broken(endpoint, CLOSED) if connection.sent else unreachable(endpoint, CLOSED) from None
            if connection.sent and not task.done():
                self._left.add(task)
            else:
                task.cancel()
            raise

    def _ended(self, task: asyncio.Task[tuple[int, bytes]]) -> None:
        self._running.discard(task)
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also if its caller was cancelled

    async def _post(
        self,
        connection: AsyncioConnection,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        token: str | None,
        deadline_ns: int,
    ) -> tuple[int, bytes]:
        try:
            answer = await connection.post(path, body, token, deadline_ns)
        except BaseException:
            await connection.close()
            raise
        if len(self._idle[endpoint]) < IDLE_MAX:
            self._idle[endpoint].append(connection)
        else:
            await connection.close()
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
        connection = await self._take(endpoint)
        try:
            await connection.exchange(path, body, token, deadline_ns, lines(heard))
        except Timeout:
            if self.deadline(0) < deadline_ns:
                raise
        finally:
            await connection.close()

    async def settle(self, deadline_ns: int) -> None:
        """Wait until the requests have ended whose callers were cancelled after they were sent."""
        if self._left:
            await asyncio.wait(self._left, timeout=max(0, deadline_ns - self.deadline(0)) / NS)

    async def sleep(self, ns: int) -> None:
        """Suspend for a while."""
        await asyncio.sleep(ns / NS)

    async def close(self) -> None:
        """Close idle connections. Requests under way end without an answer."""
        self._check_home()
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await self.discard()

    async def discard(self) -> None:
        """Close idle connections. Requests under way go on."""
        for idle in self._idle.values():
            while idle:
                await idle.pop().close()

    async def _take(self, endpoint: Endpoint) -> AsyncioConnection:
        self._check_home()
        idle = self._idle[endpoint]
        while idle:
            connection = idle.pop()
            if connection.usable():
                return connection
            await connection.close()
        return AsyncioConnection(endpoint, self._address.tls)

    def _check_home(self) -> None:
        """Make sure that process and loop are still those the connections belong to; else start again."""
        loop = asyncio.get_running_loop()
        if self._pid == os.getpid() and self._loop is loop:
            return
        if self._pid == os.getpid() and self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this store belongs to another event loop: make one for each loop")
        if self._loop is not None:
            _inherited.append(self._idle)
        self._idle = {each: deque() for each in self._address.endpoints}
        self._running, self._left = set(), set()
        self._loop, self._pid = loop, os.getpid()
