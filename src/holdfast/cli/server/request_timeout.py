"""Time limits on an HTTP connection, and its place among the open connections of the server.

Promises: a request has arrived completely, head and body, within `REQUEST_LIMIT_S` of the moment from which it could,
or its connection is closed. A caller that does not read its answer is cut off: in each `WRITE_LIMIT_S`,
`WRITE_BYTES_MIN` of the unsent bytes have to leave the process, or all of them. The number of connections is bounded by
`connection_limit`, so callers never take all file descriptors of the process. Does not limit how long a request with a
valid token may take to be answered.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.cli.server.connection_limit import CONNECTIONS_MAX, ConnectionLimit, EvictionGroup
from holdfast.web.middleware.intake import HEALTH_ONLY, ON_ADMITTED
from holdfast.web.problems import Problem

REQUEST_LIMIT_S: Final = 30.0
WRITE_LIMIT_S: Final = 20.0
WRITE_BYTES_MIN: Final = 64 * 1024


class TimedProtocol(H11Protocol):
    """One connection. There is no time limit while the application makes an answer."""

    limit_s: float = REQUEST_LIMIT_S
    write_limit_s: float = WRITE_LIMIT_S
    crowd: ConnectionLimit = ConnectionLimit(CONNECTIONS_MAX)  # each server has a subclass with its own

    def __init__(self, *about: Any, **more: Any) -> None:
        super().__init__(*about, **more)
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._known = False  # a request with a valid token came on this connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base has it
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        # The transport calls pause_writing as soon as bytes are left unsent, and resume_writing when none are.
        transport.set_write_buffer_limits(high=0)
        admitted = self.crowd.enter(self)
        if admitted is None:
            transport.abort()
            return
        # Each request gets a copy of this as the state of its scope.
        self.app_state = {**self.app_state, ON_ADMITTED: self._on_admitted, HEALTH_ONLY: not admitted}
        self._look()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """See `H11Protocol`."""
        super().on_response_complete()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Answer an unreadable request in the format of the API, which it never reaches."""
        said = Problem(400, "unreadable", "this is not an HTTP request").response("")
        head = h11.Response(
            status_code=400, headers=[*said.raw_headers, (b"connection", b"close")], reason=b"Bad Request"
        )
        for event in (head, h11.Data(data=bytes(said.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._rest()
        self._stop_write_timer()
        self.crowd.leave(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: bytes are left unsent."""
        super().pause_writing()
        self._unsent = self._bytes_unsent()
        if self._writing is None:
            self._writing = self.loop.call_later(self.write_limit_s, self._check_writing)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`: all is sent."""
        self._stop_write_timer()
        super().resume_writing()

    def evict(self) -> None:
        """See `connection_limit.Closable`."""
        self.transport.abort()

    def _on_admitted(self) -> None:
        self._known = True
        self._look()

    def _look(self) -> None:
        """Run the timer while a request arrives, from its first byte to its last."""
        if self.transport.is_closing():
            return  # waits for unsent bytes at most, which have the write timer
        self.crowd.move(self, self._group())
        if not self._on_its_way:
            self._rest()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.limit_s, self._late)

    @property
    def _on_its_way(self) -> bool:
        cycle: Any = self.cycle  # there is none before the first request
        return cycle is None or cycle.response_complete or cycle.more_body

    def _group(self) -> EvictionGroup:
        cycle: Any = self.cycle
        if not self._on_its_way:
            return EvictionGroup.KEPT if self._known else EvictionGroup.ANSWERING
        if not self._known:
            return EvictionGroup.ANONYMOUS
        return EvictionGroup.IDLE if cycle is None or cycle.response_complete else EvictionGroup.ARRIVING

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._on_its_way:
            self.crowd.closed["request_timeout"] += 1
            self.transport.close()

    def _stop_write_timer(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _check_writing(self) -> None:
        unsent = self._bytes_unsent()
        if self._unsent - unsent < WRITE_BYTES_MIN:
            self._writing = None
            self.crowd.closed["write_timeout"] += 1
            self.transport.abort()
            return
        self._unsent = unsent
        self._writing = self.loop.call_later(self.write_limit_s, self._check_writing)

    def _bytes_unsent(self) -> int:
        """Bytes of answers that the peer has not received, including the kernel's buffer if known."""
        in_kernel = bytearray(4)
        with contextlib.suppress(OSError):  # some systems do not report this for a socket
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, in_kernel)
        return self.transport.get_write_buffer_size() + int.from_bytes(in_kernel, sys.byteorder)
