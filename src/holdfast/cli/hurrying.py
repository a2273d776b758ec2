"""How long a caller may take to say what it wants, and how many may try at once: bounds on an HTTP connection.

Promises: a request has arrived whole, head and body, within `REQUEST_LIMIT_S` of the moment from which it could, or its
connection is closed; so callers who say one byte at a time, or nothing, cannot keep connections for ever. No more than
`connections_max()` are open at once: one too many is closed at once, and the rest of the process (its stores, its lease
renewals) never runs out of file descriptors because of callers. Does not limit how long an answer takes.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.web.problems import Problem

REQUEST_LIMIT_S: Final = 30.0
CONNECTIONS_MAX: Final = 1000


def connections_max() -> int:
    """How many connections callers may have: half of the files that the process may open, and no more than 1000."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(8, min(CONNECTIONS_MAX, soft // 2))


class HurriedProtocol(H11Protocol):
    """One connection. While an answer is being made it may take as long as it takes."""

    limit_s: float = REQUEST_LIMIT_S
    most: int = CONNECTIONS_MAX

    def __init__(self, *about: Any, **more: Any) -> None:
        super().__init__(*about, **more)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base has it
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.close()
        else:
            self._look()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        self._look()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read as HTTP never reaches the API, and is answered in its words all the same."""
        said = Problem(400, "unreadable", "this is not a request of HTTP").response("")
        head = h11.Response(
            status_code=400, headers=[*said.raw_headers, (b"connection", b"close")], reason=b"Bad Request"
        )
        for event in (head, h11.Data(data=bytes(said.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._rest()
        super().connection_lost(exc)

    def _look(self) -> None:
        """The clock runs while a request is on its way, from its first byte to its last."""
        if not self._on_its_way:
            self._rest()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.limit_s, self._late)

    @property
    def _on_its_way(self) -> bool:
        cycle: Any = self.cycle  # there is none before the first request
        return cycle is None or cycle.response_complete or cycle.more_body

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._on_its_way:
            self.transport.close()
