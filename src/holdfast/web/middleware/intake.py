"""The first layer for every request: a request id, authentication, and limits on the body.

Promises: bodies are read and routes are looked up only for known callers, except for health and the page. No body is
read beyond the limit. Whatever fails behind this layer, the response is a problem with the request id and no internals.
An encoded slash in an address stays part of its segment, so every id can be addressed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.core.ports import Entropy
from holdfast.plane.process.health import ProcessHealth
from holdfast.types import NS
from holdfast.web import static_files
from holdfast.web.middleware.auth import Access, Expired, Principal
from holdfast.web.problems import CLOSING, FIELD_CHARS_MAX, INVALID, NOT_READY, UNEXPECTED, Problem, logged
from holdfast.web.routes.metrics import Answers

BODY_BYTES_MAX: Final = 4_000_000  # the largest payload, with every character of it escaped
REQUEST_ID_HEADER: Final = "x-request-id"
METRICS_PATH: Final = "/metrics"
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/openapi.json"}) | static_files.PATHS

ON_ADMITTED: Final = "holdfast.on_admitted"
"""Member of a scope's state, from the server: a function to call when the token of the request was valid."""

HEAD: Final = "holdfast.head"
"""Member of a scope's state: true if only the head of the response is wanted; the routes see GET."""

HEALTH_ONLY: Final = "holdfast.health_only"
"""Member of a scope's state, from the server: true if it has capacity only for health probes."""

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_JSON: Final = "application/json"
_BODILESS: Final = frozenset({"GET", "HEAD"})  # a body has no meaning there (RFC 9110, 9.3.1), and is not read
_ONCE: Final = ("Content-Type", "Idempotency-Key")
"""Headers that may be given only once, besides the one for authentication."""

_CLOSING_PARTS: Final = ({"retry_after": 1.0}, {"retry-after": "1", "connection": "close"})
_CLOSING: Final = Problem(503, CLOSING, "the plane is shutting down", *_CLOSING_PARTS)
_FULL: Final = Problem(
    503, "too-many-connections", "every connection of the server is in use; try again later", *_CLOSING_PARTS
)
_REALM: Final = 'Bearer realm="holdfast"'
_TOO_LARGE: Final = f"the body may have {BODY_BYTES_MAX} bytes"


class Intake:
    """The outermost application. Pure ASGI."""

    def __init__(
        self, app: ASGIApp, *, access: Access, entropy: Entropy, answers: Answers, process_health: ProcessHealth
    ) -> None:
        """`answers` keeps statistics and the rates of callers; `process_health` reports a shutdown."""
        self._app = app
        self._access = access
        self._entropy = entropy
        self._answers = answers
        self._process_health = process_health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = origin_form(scope)
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID_HEADER, "")
        request_id = given if _REQUEST_ID.match(given) else self._entropy.token()[:16]
        answer = _Answer(send, request_id, scope["method"], self._answers.counts)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state[HEAD] = scope["method"] == "HEAD"
        try:
            refused = self._refusal(scope, headers)
            if refused is None:
                body = _Body(receive, BODY_BYTES_MAX)
                method = "GET" if scope["method"] == "HEAD" else scope["method"]
                await self._app({**scope, "path": segments(scope), "method": method}, body.receive, answer.send)
                return
        except ClientDisconnect:
            return  # the client disconnected before the whole body had arrived: no response, and no server error
        except Exception as error:  # noqa: BLE001 - internals must not be sent, and the server continues
            refused = logged(UNEXPECTED, error, request_id)
        if not answer.begun:
            await refused.response(request_id)(scope, receive, answer.send)

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        """Why a request is refused; None: it is admitted, and `state` has its caller."""
        strange = self._access.stranger(headers.get("host"), ", ".join(headers.getlist("origin")) or None)
        if strange is not None:
            return Problem(403, "not-allowed", strange)
        if scope["path"] in OPEN_PATHS:
            return None
        shown = headers.getlist("authorization")
        principal, unknown = None, "the token is not known"
        try:
            principal = self._access.principal(shown[0] if len(shown) == 1 else None)
        except Expired:
            unknown = "the token has expired; get a new one"
        hurried = self._too_often(scope, principal)
        if hurried is not None:
            return hurried
        if len(shown) > 1:
            return _repeated("a header is", "Authorization", len(shown))
        if principal is None:
            detail = unknown if shown else "a bearer token is needed"
            extra = ', error="invalid_token"' if shown else ""
            return Problem(401, "unauthorized", detail, headers={"www-authenticate": _REALM + extra})
        scope["state"]["principal"] = principal
        if scope["state"].get(HEALTH_ONLY):
            return _FULL
        if ON_ADMITTED in scope["state"]:
            scope["state"][ON_ADMITTED]()
        if self._process_health.draining and scope["path"] != METRICS_PATH:
            return _CLOSING
        if self._process_health.barred is not None and scope["path"] != METRICS_PATH:
            members, again = {"retry_after": 1.0}, {"retry-after": "1"}
            return Problem(503, NOT_READY, f"not ready: {self._process_health.barred}", members, again)
        unreadable = None if scope["method"] in _BODILESS else _unreadable(headers)
        return unreadable or _ambiguous(scope, headers)

    def _too_often(self, scope: Scope, principal: Principal | None) -> Problem | None:
        """Callers with a token are counted by it, others by their address."""
        if self._answers.rates is None:
            return None
        known = principal is not None and not self._access.open_to_all
        caller = principal if known else (scope.get("client") or ("",))[0]
        wait_ns = self._answers.rates.wait_ns(caller)
        if not wait_ns:
            return None
        wait = wait_ns / NS
        headers = {"retry-after": str(max(1, math.ceil(wait)))}
        return Problem(429, "too-many-requests", "too many requests; retry later", {"retry_after": wait}, headers)


def _unreadable(headers: Headers) -> Problem | None:
    """Why a body is not read at all."""
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdecimal():
        return Problem(400, "unreadable", "Content-Length is not a number")
    # Python itself refuses to parse thousands of digits.
    if len(length) > len(str(BODY_BYTES_MAX)) or int(length) > BODY_BYTES_MAX:
        return _too_large()
    if int(length) == 0 and "transfer-encoding" not in headers:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:
        return Problem(415, "unsupported-media-type", f"send {_JSON}", headers={"accept": _JSON})
    return None


def _ambiguous(scope: Scope, headers: Headers) -> Problem | None:
    """A duplicate is refused: only one of the two would be used, and the intended one is unknown."""
    for header in _ONCE:
        if (times := len(headers.getlist(header))) > 1:
            return _repeated("a header is", header, times)
    given = Counter(name for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    name, times = max(given.items(), key=lambda each: each[1], default=("", 0))
    return None if times < 2 else _repeated("a parameter of the address is", name, times)


def _repeated(what: str, name: str, times: int) -> Problem:
    wrong = {"field": name[:FIELD_CHARS_MAX], "problem": f"it is given {times} times", "fix": "give it once"}
    return Problem(INVALID, "invalid", f"{what} given more than once", {"errors": [wrong]})


def _too_large() -> Problem:
    return Problem(413, "too-large", _TOO_LARGE, headers={"connection": "close"})


def origin_form(scope: Scope) -> Scope:
    """A target with scheme and host (RFC 9112, 3.2.2) means that path; its host replaces the one of the header."""
    raw = scope.get("raw_path") or b"/"
    if raw.startswith(b"/") or b"://" not in raw:
        return scope
    host, slash, path = raw.partition(b"://")[2].partition(b"/")
    raw = (slash + path) or b"/"
    headers = [(b"host", host), *((name, value) for name, value in scope["headers"] if name != b"host")]
    return {**scope, "raw_path": raw, "path": unquote(raw.decode("ascii", "replace")), "headers": headers}


def segments(scope: Scope) -> str:
    """The path, with a slash or percent sign inside a segment still encoded. `unquote` decodes a segment."""
    raw = scope.get("raw_path")
    if not raw:
        return str(scope["path"])
    whole = raw.decode("ascii", "replace").partition("?")[0].split("/")
    return "/".join(unquote(part).replace("%", "%25").replace("/", quote("/", safe="")) for part in whole)


class _Body:
    """A body that is not read beyond its limit, whatever its headers say."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit

    async def receive(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, _TOO_LARGE, {"connection": "close"})
        return message


class _Answer:
    """A response on its way out: gets the request id, is not cacheable by default, and is counted.

    A route gets HEAD as GET, and the body is removed here (RFC 9110, 9.3.2).
    """

    def __init__(self, send: Send, request_id: str, method: str, answers: Counter[tuple[str, int]]) -> None:
        self._send = send
        self._request_id = request_id
        self._method = method if method in _METHODS else "other"
        self._answers = answers
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID_HEADER] = self._request_id
            headers["x-content-type-options"] = "nosniff"
            headers.setdefault("cache-control", "no-store")  # some contain a secret, and all become stale
            self._answers[self._method, message["status"]] += 1
        elif self._method == "HEAD":
            message = {**message, "body": b""}
        await self._send(message)
