"""One HTTP GET with limits on everything: duration, response size and redirects.

Promises: a failed request raises one of this package's errors. The message names the address and never has a token.
A response is read up to a limit. Redirects are not followed: they would send the token to another host. The time limit
covers the whole request: a server that sends one byte at a time, in the head or in the body, gets no more time than a
silent one.
Does not promise to limit the DNS lookup. If a name has several addresses, each unreachable one costs the limit once.
Clock: the monotonic one.
"""

from __future__ import annotations

import http.client
import io
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import BadInput, Misconfigured, Timeout, Unavailable
from holdfast.runtime.system import SystemClock
from holdfast.types import NS

TIMEOUT_S: Final = 10.0
BYTES_MAX: Final = 64 * 1024 * 1024
_TEXT_MAX: Final = 200


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects."""

    def redirect_request(self, *_: object) -> None:
        """Nowhere."""
        return


_CLOCK: Final = SystemClock()


class _DeadlineStream(io.RawIOBase):
    """Data of a connection, until the deadline of the whole request."""

    def __init__(self, connection: socket.socket, stream: io.RawIOBase, deadline_ns: int) -> None:
        self._connection = connection
        self._stream = stream
        self._deadline_ns = deadline_ns

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        left_ns = self._deadline_ns - _CLOCK.now().mono
        if left_ns <= 0:
            raise TimeoutError
        self._connection.settimeout(left_ns / NS)
        return self._stream.readinto(into)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Bounded(http.client.HTTPConnection):
    """A connection with one deadline for the whole request, not one timeout per read."""

    def __init__(self, *place: Any, **settings: Any) -> None:
        super().__init__(*place, **settings)
        self._deadline_ns = _CLOCK.now().mono + round((self.timeout or TIMEOUT_S) * NS)
        self.response_class = self._answer  # type: ignore[assignment]  # it is called, and may be anything that can be

    def connect(self) -> None:
        self.timeout = max(0.001, (self._deadline_ns - _CLOCK.now().mono) / NS)
        super().connect()

    def _answer(self, connection: socket.socket, *about: Any, **more: Any) -> http.client.HTTPResponse:
        answer = http.client.HTTPResponse(connection, *about, **more)
        answer.fp = io.BufferedReader(_DeadlineStream(connection, answer.fp.detach(), self._deadline_ns))
        return answer


class _BoundedSecure(http.client.HTTPSConnection, _Bounded):
    """The same, encrypted. `HTTPSConnection` connects as the next class does, and adds TLS."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Bounded, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_BoundedSecure, request)


_OPENER: Final = urllib.request.build_opener(_NoRedirects, _Http, _Https)


def metrics_url(field: str, url: str) -> str:
    """The metrics URL of a process: `http://host:9100` and `http://host:9100/metrics` are the same. Or `BadInput`."""
    checked = check_url(field, url)
    parts = urllib.parse.urlsplit(checked)
    return checked if parts.path not in {"", "/"} else parts._replace(path="/metrics").geturl()


def check_url(field: str, url: str) -> str:
    """Return a valid server URL, or raise `BadInput`."""
    problem = None
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            problem = "is not an address of a server"
        elif parts.username or parts.password:
            problem = "contains a password"
        elif not url.isprintable() or " " in url or not 0 <= (parts.port or 0) <= 65_535:
            problem = "is not an address"
    except ValueError as error:
        problem = f"is not an address ({error})"
    if problem is not None:
        fix = "use a URL such as http://127.0.0.1:8420/metrics; put a token into a file or $HOLDFAST_METRICS_TOKEN"
        raise BadInput(field, problem, fix)
    return url


def ask(
    url: str, *, token: str | None = None, headers: Mapping[str, str] | None = None, timeout: float = TIMEOUT_S
) -> bytes:
    """Return the response to one GET. Raise `Unavailable`, `Timeout` or `Misconfigured` if there is none.

    `timeout` covers the whole request: to connect, to send, and to read the response to its end.
    """
    request = urllib.request.Request(check_url("url", url), headers=dict(headers or {}))  # noqa: S310 - it is http, as was checked
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    where = url.partition("?")[0]
    try:
        with _OPENER.open(request, timeout=timeout) as answer:
            read: bytes = answer.read(BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        with error:
            said = _error_text(error)
        raise Misconfigured(f"{where} answered {error.code} {error.reason}: {said}") from None
    except TimeoutError:
        raise Timeout(f"{where} did not answer within {timeout:g} s") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise Timeout(f"{where} did not answer within {timeout:g} s") from None
        raise Unavailable(f"{where} could not be reached: {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"{where} could not be read: {type(error).__name__} {error}") from None
    if len(read) > BYTES_MAX:
        raise Misconfigured(f"{where} answered with more than {BYTES_MAX // 2**20} MiB; that is no page of metrics")
    return read


def _error_text(error: urllib.error.HTTPError) -> str:
    """The text of an error response. An incomplete one still counts as an error response."""
    try:
        return error.read(_TEXT_MAX).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        return "…"
