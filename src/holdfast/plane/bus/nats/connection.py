"""One connection to NATS, the stream of the plane on it, and what its errors mean.

Promises: connects when first used, reconnects forever, and raises `Unavailable` immediately while it is not connected,
so that no caller waits for a server that is known to be gone. A missing stream is created, even by many processes at
the same time; one that is there under our name and is something else is refused (`Misconfigured`).

Clock: the event loop's, for time limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext, api

from holdfast.core.failpoints import ARMED, areach
from holdfast.errors import Closed, HoldfastError, Misconfigured, Timeout, Unavailable
from holdfast.flows.log import OutageLog
from holdfast.plane.bus.nats.naming import NatsNames
from holdfast.stores.nats.acks import NatsAcks, Outgoing
from holdfast.stores.nats.answers import check_stored, translated
from holdfast.stores.nats.secure_client import SecureClient
from holdfast.types import NS

REQUEST_TIMEOUT_NS: Final = 5 * NS
CONNECT_TIMEOUT_NS: Final = 5 * NS
DUPLICATE_WINDOW_NS: Final = 120 * NS

_RECONNECT_S: Final = 0.25
_PING_S: Final = 5
_PINGS: Final = 2
_CLOSE_LIMIT_S: Final = 5.0
_NAME_IN_USE: Final = 10058
_CLOSED: Final = "this bus is closed; open another"

_log = logging.getLogger("holdfast")


class NatsConnection:
    """See the module. Belongs to one event loop."""

    def __init__(
        self,
        servers: Sequence[str],
        shown: str,
        names: NatsNames,
        *,
        replicas: int = 1,
        duplicate_window_ns: int = DUPLICATE_WINDOW_NS,
        timeout_ns: int = REQUEST_TIMEOUT_NS,
        connect_timeout_ns: int = CONNECT_TIMEOUT_NS,
    ) -> None:
        self.shown = shown
        self.names = names
        self._servers = list(servers)
        self._secure = any(each.startswith("tls:") for each in servers)
        self._replicas = replicas
        self._window_ns = duplicate_window_ns
        self._timeout_s = timeout_ns / NS
        self._connect_s = connect_timeout_ns / NS
        self._client: Client | None = None
        self._turn = asyncio.Lock()
        self._acks = NatsAcks()
        self._stream_there = False
        self._closed = False
        self._reconnected: set[Callable[[], None]] = set()
        self._last_error: Exception | None = None  # what the client last said; what it raises is often less
        self._troubled = OutageLog(_log, "the bus is in trouble", "the bus is connected again", bus=shown)

    async def client(self) -> Client:
        """The client, connected; or `Unavailable`."""
        if self._client is None or self._client.is_closed:
            async with self._turn:
                if self._closed:
                    raise Closed(_CLOSED)
                if self._client is None or self._client.is_closed:
                    self._client = await self._connected()
        if not self._client.is_connected:
            raise Unavailable(f"{self.shown} is not connected")
        return self._client

    async def stream(self) -> JetStreamContext:
        """JetStream, with our stream in it."""
        client = await self.client()
        context = client.jetstream(timeout=self._timeout_s)
        if not self._stream_there:
            async with self._turn:
                if not self._stream_there:
                    with self.errors():
                        await self._make_stream(context)
                    self._stream_there = True
        return context

    async def publish(self, going: Sequence[Outgoing]) -> list[HoldfastError | None]:
        """Store messages in the stream. Those without an error are durable when it returns."""
        if not self._stream_there:
            await self.stream()
        client = await self.client()
        if ARMED:
            await areach("plane.nats.publish")
        with self.errors():
            answers = await self._acks.publish(client, going, self._timeout_s)
        if ARMED:
            await areach("plane.nats.published")
        return [self._stored(answer) for answer in answers]

    def _stored(self, answer: bytes | Exception) -> HoldfastError | None:
        """What the answer to one message says: None, it is stored."""
        if isinstance(answer, nats.errors.NoRespondersError):
            self.forget_stream()
        try:
            if isinstance(answer, Exception):
                raise answer
            check_stored(answer)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            return translated(error, self.shown)
        return None

    def forget_stream(self) -> None:
        """Note that the stream is missing: the next use creates it again."""
        self._stream_there = False

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call whenever the connection was lost and is back. Returns how to end that."""
        self._reconnected.add(call)
        return lambda: self._reconnected.discard(call)

    async def close(self) -> None:
        """Close it. Idempotent."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None and not client.is_closed:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_LIMIT_S):
                    if client.is_connected:
                        await client.flush()
            # A server that has just gone has closed it from its side; CPython 3.12 and 3.13 then raise a TypeError.
            with contextlib.suppress(OSError, TypeError):
                await client.close()

    @contextlib.contextmanager
    def errors(self) -> Any:
        """What the client raises inside becomes an error of the port."""
        try:
            yield
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise translated(error, self.shown) from error

    async def _connected(self) -> Client:
        client = SecureClient() if self._secure else Client()
        self._last_error = None
        try:
            async with asyncio.timeout(self._connect_s):
                await client.connect(
                    self._servers,
                    name="holdfast",
                    max_reconnect_attempts=1,  # for now: the client has no limit of its own for the first connection
                    reconnect_time_wait=_RECONNECT_S,  # type: ignore[arg-type]  # it is slept for; the type is too narrow
                    connect_timeout=max(1, round(self._connect_s)),
                    ping_interval=_PING_S,
                    max_outstanding_pings=_PINGS,
                    error_cb=self._trouble,
                    reconnected_cb=self._is_back,
                )
        except BaseException as error:
            # nats-py before 2.15 raises here where there was no connection; the reason of the caller is `error`.
            with contextlib.suppress(Exception):
                await client.close()
            if isinstance(error, nats.errors.Error | OSError | TimeoutError):
                found = translated(self._reason(error), self.shown)
                if isinstance(found, Timeout):  # nothing was asked for yet
                    found = Unavailable(str(found))
                raise found from error
            raise
        client.options["max_reconnect_attempts"] = -1
        return client

    def _reason(self, error: BaseException) -> BaseException:
        """To the client, a server that does not let us in is one less; it says why, and raises that none is left."""
        less = isinstance(error, nats.errors.NoServersError | TimeoutError)
        return self._last_error if less and self._last_error is not None else error

    async def _make_stream(self, context: JetStreamContext) -> None:
        config = api.StreamConfig(
            name=self.names.stream,
            subjects=[self.names.everything],
            retention=api.RetentionPolicy.WORK_QUEUE,
            storage=api.StorageType.FILE,
            num_replicas=self._replicas,
            duplicate_window=self._window_ns / NS,
            allow_msg_ttl=True,
        )
        try:
            await context.add_stream(config)
        except nats.js.errors.BadRequestError as error:
            if error.err_code != _NAME_IN_USE:
                raise
            there = (await context.stream_info(self.names.stream)).config
            if there.retention != api.RetentionPolicy.WORK_QUEUE or self.names.everything not in (there.subjects or ()):
                raise Misconfigured(
                    f"{self.shown} has a stream {self.names.stream} that is not the plane's; name another"
                ) from error

    async def _trouble(self, error: Exception) -> None:
        self._last_error = error
        self._troubled.met(translated(error, self.shown))

    async def _is_back(self) -> None:
        self._troubled.ended()
        for call in [*self._reconnected]:
            call()
