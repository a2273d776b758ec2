"""One request to the gateway, for both drivers, and the driver as the gateway sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import httpcore

from holdfast.stores.url_parts import Endpoint

SENDING: Final = "http11.send_request_headers.started"  # from here on a request may take effect
ANSWERING: Final = "http11.receive_response_headers.started"
ANSWER_MAX: Final = 64 * 1024 * 1024
_LINE_MAX: Final = 1024 * 1024


class HttpDriver(Protocol):
    """HTTP in one color. Errors are those of `ports.Store`; other statuses than 200 are answers."""

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over, on the driver's clock."""
        ...

    async def post(
        self, endpoint: Endpoint, path: str, body: bytes, token: str | None, deadline_ns: int
    ) -> tuple[int, bytes]:
        """Send one request and return the status and the body of its answer."""
        ...

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
        ...

    async def settle(self, deadline_ns: int) -> None:
        """Wait until the requests have ended whose callers were cancelled after they were sent."""
        ...

    async def sleep(self, ns: int) -> None:
        """Sleep."""
        ...

    async def discard(self) -> None:
        """Close idle connections. Requests under way go on."""
        ...

    async def close(self) -> None:
        """Close idle connections. Requests under way may end without an answer."""
        ...


def request(
    endpoint: Endpoint, scheme: str, path: str, body: bytes, token: str | None, trace: Callable[[str, Any], object]
) -> httpcore.Request:
    """A POST of JSON."""
    headers = [
        (b"Host", str(endpoint).encode("idna")),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(body)),
    ]
    if token:
        headers.append((b"Authorization", token.encode()))
    url = httpcore.URL(scheme=scheme, host=endpoint.host.encode("idna"), port=endpoint.port, target=path)
    return httpcore.Request("POST", url, headers=headers, content=body, extensions={"trace": trace})


def lines(heard: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
    """Put chunks together to lines, and pass those on. A line without an end is passed on too, and ends it."""
    rest = b""

    def feed(chunk: bytes) -> bool:
        nonlocal rest
        *whole, rest = (rest + chunk).split(b"\n")
        return any(heard(line) for line in whole if line) or (len(rest) > _LINE_MAX and heard(rest[:_LINE_MAX]))

    return feed
