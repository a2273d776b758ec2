"""One question over HTTP, with a limit on everything: how long it takes, how much is read, and where it leads.

Promises: what cannot be had raises one of this package's errors, in words that name the address and never a token. An
answer is read up to a limit and not beyond. A redirect is not followed: it would carry the token to another host. The
time limit is for the whole: a server that says one byte at a time, in the head of its answer or in the rest, gets no
more of it than one that is silent.

Does not promise to limit the time that the system takes to look a name up; and where a name has several addresses, each
that lets nobody in costs the limit once. Clock: the monotonic one.
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
_SAID_MAX: Final = 200


class _Stay(urllib.request.HTTPRedirectHandler):
    """Does not go where it is sent."""

    def redirect_request(self, *_: object) -> None:
        """Nowhere."""
        return


_CLOCK: Final = SystemClock()


class _Hurried(io.RawIOBase):
    """What comes over a connection, as long as the time for all of it is not over."""

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
    """A connection whose time limit is one for everything, and not for each thing that is said."""

    def __init__(self, *place: Any, **settings: Any) -> None:
        super().__init__(*place, **settings)
        self._deadline_ns = _CLOCK.now().mono + round((self.timeout or TIMEOUT_S) * NS)
        self.response_class = self._answer  # type: ignore[assignment]  # it is called, and may be anything that can be

    def connect(self) -> None:
        self.timeout = max(0.001, (self._deadline_ns - _CLOCK.now().mono) / NS)
        super().connect()

    def _answer(self, connection: socket.socket, *about: Any, **more: Any) -> http.client.HTTPResponse:
        answer = http.client.HTTPResponse(connection, *about, **more)
        answer.fp = io.BufferedReader(_Hurried(connection, answer.fp.detach(), self._deadline_ns))
        return answer


class _BoundedSecure(http.client.HTTPSConnection, _Bounded):
    """The same, encrypted. `HTTPSConnection` connects as the next class does, and goes on from there."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Bounded, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_BoundedSecure, request)


_OPENER: Final = urllib.request.build_opener(_Stay, _Http, _Https)


def metrics_url(field: str, url: str) -> str:
    """The metrics of a process: `http://host:9100` and `http://host:9100/metrics` mean the same. Or `BadInput`."""
    checked = check_url(field, url)
    parts = urllib.parse.urlsplit(checked)
    return checked if parts.path not in {"", "/"} else parts._replace(path="/metrics").geturl()


def check_url(field: str, url: str) -> str:
    """An address that can be asked, or `BadInput`."""
    problem = None
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            problem = "is not an address of a server"
        elif parts.username or parts.password:
            problem = "has a password in it"
        elif not url.isprintable() or " " in url or not 0 <= (parts.port or 0) <= 65_535:
            problem = "is not an address"
    except ValueError as error:
        problem = f"is not an address ({error})"
    if problem is not None:
        fix = "give one such as http://127.0.0.1:8420/metrics; a token goes into a file or $HOLDFAST_METRICS_TOKEN"
        raise BadInput(field, problem, fix)
    return url


def ask(
    url: str, *, token: str | None = None, headers: Mapping[str, str] | None = None, timeout: float = TIMEOUT_S
) -> bytes:
    """The answer to one GET. `Unavailable`, `Timeout` or `Misconfigured` when there is none that could be used.

    `timeout` is for all of it: to connect, to ask, and to hear the answer to its end.
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
            said = _heard(error)
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


def _heard(error: urllib.error.HTTPError) -> str:
    """What a refusal says. That it is one is known already, so one that never ends its sentence is none the less."""
    try:
        return error.read(_SAID_MAX).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        return "…"
