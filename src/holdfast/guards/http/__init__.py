"""An ASGI middleware that lets no stale holder's request through to the application.

    app = FenceMiddleware(app, SqliteRecord("fences.db"), key=lambda scope: "document:" + scope["path"].split("/")[2])

Promises: a request that carries `Holdfast-Key` and `Holdfast-Fence` registers its fence durably before the handler
runs, whatever its method, so a GET is the `enter` of a read-modify-write; one whose fence is below the highest that was
registered does not reach the handler (412), nor does one without headers where they are required (428), with nonsense
in them (400), with a lease of another lock (403), or while the record does not answer (503). Inside one process the
handlers of one lock run in the order of their fences (`request_order`).

Does not promise anything about what a handler writes in *another* process: a request that was admitted there can be
slow. Such a handler takes `fence_of(request)` and hands it on to the guard of the storage it writes to.

Handlers of safe methods (GET, HEAD, OPTIONS, TRACE) wait for their turn, and no handler waits for them: they are not
supposed to write, and a paused client must not hold up the next one by not reading. A handler that still waits for a
request body, or for a message of a WebSocket, when a newer holder registers, is told that its client is gone; the
client then gets 412, whatever the handler responds.

Clock: the event loop's, for `drain_timeout` only. For asyncio; one middleware object serves one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from holdfast.core.failpoints import reach
from holdfast.core.lease.fencing import Accepted, Rule, Stale
from holdfast.core.ports import Observer
from holdfast.errors import BackendError, BadInput, FencedOut, Unfenced
from holdfast.flows.log import log_event
from holdfast.guards.admission import Admission, GuardStatistics, Presented
from holdfast.guards.bearer import CarriedFence
from holdfast.guards.http import headers as wire
from holdfast.guards.http.cutoff import POLICY_VIOLATION, CutOff, Message, Receive, Scope, Send
from holdfast.guards.http.request_order import Lanes, LockLane
from holdfast.guards.records import FenceRecord, ThreadedRecord, check_record, off_the_loop
from holdfast.types import NS, Duration, check_label, duration_ns

__all__ = ["FenceMiddleware", "HttpStatistics", "fence_of", "problem_of", "writes"]

App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

SCOPE_KEY: Final = "holdfast.fence"
RETRY_AFTER_S: Final = 1
DRAIN_TIMEOUT_S: Final = 4.0  # below the five seconds after which common clients give up: they are to see the 503
_PATH_CHARS_MAX: Final = 200

log = logging.getLogger("holdfast.guards")


@dataclass(frozen=True, slots=True)
class HttpStatistics(GuardStatistics):
    """What one middleware has decided since it was made. `refused` (412) is the number to alert on."""

    passed: int = 0  # without a fence, where none is required
    required: int = 0  # 428: without a fence, where one is
    malformed: int = 0  # 400
    other_lock: int = 0  # 403
    unavailable: int = 0  # 503: the record did not answer
    overdue: int = 0  # 503: an older holder's handler did not end in time
    requests: int = 0  # fenced requests that are here now, waiting ones included
    in_flight: int = 0  # … and those of them whose handler others wait for


def writes(scope: Mapping[str, Any]) -> bool:
    """For `required=writes`: a client that changes something needs a fence, a client that only reads may have one."""
    return scope["type"] != "http" or scope["method"] not in wire.SAFE_METHODS


def fence_of(request: object) -> CarriedFence:
    """The fence under which a request was admitted, for the guard of the storage that the handler writes to.

    Takes an ASGI scope, or a request that has one (`request.scope`). `Unfenced` if the request brought none.
    """
    found = _scope_of(request).get(SCOPE_KEY)
    if not isinstance(found, CarriedFence):
        raise Unfenced("the request was admitted without a fence, so there is none to pass on; require one here")
    return found


def problem_of(error: FencedOut, request: object) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body with which a handler answers when the guard of its *storage* has refused.

    It is the answer that the middleware gives, so the client gets the same error wherever it was found. Call it from
    the framework's exception handler for `FencedOut`; `request` is the ASGI scope, or has one.
    """
    problem = wire.fenced_out(CarriedFence(error.key, error.fence), error.seen)
    body = problem.body(_path(_scope_of(request)))
    headers = {name.decode(): value.decode() for name, value in problem.response_headers(body)}
    return problem.status, headers, body


def _scope_of(request: object) -> Mapping[str, Any]:
    scope = request if isinstance(request, Mapping) else getattr(request, "scope", None)
    if not isinstance(scope, Mapping):
        raise BadInput("request", f"{type(request).__name__} is not a request", "give the ASGI scope or the request")
    return scope


class _Refused(Exception):
    """Not an error: the answer to a request."""

    def __init__(self, problem: wire.HeaderProblem) -> None:
        super().__init__(problem.title)
        self.problem = problem


class FenceMiddleware:
    """The guard before an ASGI application."""

    def __init__(
        self,
        app: App,
        record: FenceRecord,
        *,
        place: str = "http",
        required: bool | Callable[[Scope], bool] = True,
        key: Callable[[Scope], str | None] | None = None,
        observer: Observer | None = None,
        drain_timeout: Duration = DRAIN_TIMEOUT_S,
    ) -> None:
        """Guard `app`; what was seen is kept in `record`.

        `place` is the name space in the record: applications that share a lock share it, or else have their own.
        `required` says whether a request without a fence is refused, for all or for a scope (`writes`).
        `key` names the lock that a resource belongs to (None: any), and leases of other locks are refused. Give it: a
        fence proves nothing about a resource of another lock.
        `drain_timeout` is how long a request waits for the handlers of older holders before it is sent away (503).
        """
        self._app = _check_callable("app", app)
        self._record = off_the_loop(check_record(record))
        self._owns_record = self._record is not record
        self._place = check_label("place", place)
        self._admission = Admission(place, observer=observer)
        self._required = required if isinstance(required, bool) else _check_callable("required", required)
        self._key = None if key is None else _check_callable("key", key)
        self._drain_ns = duration_ns("drain_timeout", drain_timeout)
        self._lanes = Lanes()
        self._counts: Counter[str] = Counter()

    def statistics(self) -> HttpStatistics:
        """What this middleware has decided since it was made."""
        guard = asdict(self._admission.statistics())
        return HttpStatistics(**guard, **self._counts, requests=self._lanes.requests, in_flight=self._lanes.in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI has it."""
        if scope["type"] not in ("http", "websocket"):
            await self._pass_on(scope, receive, send)
            return
        try:
            carried = self._presented(scope)
        except _Refused as refused:
            await _answer(scope, receive, send, refused.problem)
            return
        if carried is None:
            self._counts["passed"] += 1
            await self._app(scope, receive, _varied(send, None))
            return
        with self._lanes.join(carried.key) as lane:
            try:
                await self._admitted(scope, lane, carried)
            except _Refused as refused:
                await _answer(scope, receive, send, refused.problem)
                return
            # Nothing is awaited between the last check of the lane and this.
            quiet = scope["type"] == "http" and scope["method"] in wire.SAFE_METHODS
            with nullcontext() if quiet else lane.running(carried.fence):
                reach("guard.noted")
                await self._handled(scope, receive, send, lane, carried)

    async def _handled(self, scope: Scope, receive: Receive, send: Send, lane: LockLane, carried: CarriedFence) -> None:
        """Run the handler. One that was cut off before it had its whole request is answered for, as at the door."""
        line = CutOff(scope, receive, _varied(send, carried), lane, carried.fence)
        try:
            await self._app({**scope, SCOPE_KEY: carried}, line.receive, line.send)
        except Exception:
            if not line.unanswered:
                raise
            log.debug(
                "%s: the handler of %s ended because it was cut off", self._place, _resource(scope), exc_info=True
            )
        if line.unanswered:
            presented = await self._admission.admit(carried, _resource(scope), Rule.AT_LEAST, _nothing)
            try:
                self._conclude(scope, presented, Stale(lane.met))
            except FencedOut as error:
                await _answer(scope, receive, send, wire.fenced_out(carried, error.seen))

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            # The lifespan ends with the server; the thread that we made for a blocking record ends with it.
            if scope["type"] == "lifespan" and self._owns_record and isinstance(self._record, ThreadedRecord):
                await asyncio.to_thread(self._record.close)

    def _presented(self, scope: Scope) -> CarriedFence | None:
        """The fence that the request brings, if it may come with that."""
        try:
            carried = wire.presented(scope["headers"])
        except BadInput as error:
            raise self._refusal("malformed", wire.bad_header(error)) from error
        if carried is None:
            if self._required if isinstance(self._required, bool) else self._required(scope):
                raise self._refusal("required", wire.fence_required())
            return None
        wanted = None if self._key is None else self._key(scope)
        if wanted is not None and wanted != carried.key:
            raise self._refusal("other_lock", wire.other_lock(carried, wanted))
        return carried

    async def _admitted(self, scope: Scope, lane: LockLane, carried: CarriedFence) -> None:
        """Register the fence and wait for its turn, or raise the refusal."""
        presented = await self._admission.admit(carried, _resource(scope), Rule.AT_LEAST, _nothing)
        try:
            stale = await self._registered(lane, carried) or await self._drained(lane, carried)
        except BackendError as error:
            told = {"guard": self._place, "resource": presented.resource, "key": carried.key, "fence": carried.fence}
            log_event(log, logging.WARNING, "a request is refused, for its fence cannot be checked", error, **told)
            raise self._refusal("unavailable", wire.record_unavailable(RETRY_AFTER_S)) from error
        try:
            self._conclude(scope, presented, stale)
        except FencedOut as error:
            raise _Refused(wire.fenced_out(carried, error.seen)) from error

    def _conclude(self, scope: Scope, presented: Presented, stale: Stale | None) -> None:
        outcome = stale or Accepted(None)
        if writes(scope):
            self._admission.written(presented, outcome)
        else:
            self._admission.entered(presented, outcome)

    async def _registered(self, lane: LockLane, carried: CarriedFence) -> Stale | None:
        highest = await self._record.note(self._place, carried.key, carried.fence)
        return Stale(highest) if highest > carried.fence else lane.meet(carried.fence)

    async def _drained(self, lane: LockLane, carried: CarriedFence) -> Stale | None:
        """Wait until the handlers of older holders have ended."""
        if lane.clear_for(carried.fence):
            return None
        try:
            async with asyncio.timeout(self._drain_ns / NS):
                await lane.turn(carried.fence)
        except TimeoutError as error:
            told = {"guard": self._place, "key": carried.key, "fence": carried.fence}
            text = "a fence waits in vain: the handler of an older holder is still running"
            log_event(log, logging.WARNING, text, **told)
            raise self._refusal("overdue", wire.still_draining(carried, RETRY_AFTER_S)) from error
        # A newer holder may have registered meanwhile, here or in another process. No older handler can have started.
        return await self._registered(lane, carried)

    def _refusal(self, count: str, problem: wire.HeaderProblem) -> _Refused:
        self._counts[count] += 1
        return _Refused(problem)


async def _nothing() -> int | None:
    """A carried fence has no lease that could be lost here, so there is no check."""
    return None


async def _answer(scope: Scope, receive: Receive, send: Send, problem: wire.HeaderProblem) -> None:
    prefix = "http.response"
    if scope["type"] == "websocket":
        await receive()  # the connect event; the answer comes instead of an acceptance
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": problem.title})
            return
        prefix = "websocket.http.response"
    body = problem.body(_path(scope))
    vary = [(b"vary", _VARY)]
    await send({"type": f"{prefix}.start", "status": problem.status, "headers": problem.response_headers(body) + vary})
    await send({"type": f"{prefix}.body", "body": b"" if scope.get("method") == "HEAD" else body})


_VARY: Final = f"{wire.KEY_HEADER}, {wire.FENCE_HEADER}".encode()


def _varied(send: Send, carried: CarriedFence | None) -> Send:
    """Say that the answer depends on the fence, and under which one it was given.

    A cache that did not know would answer the first GET of a new holder, and its fence would never be registered.
    """
    added = [(b"vary", _VARY)]
    if carried is not None:
        added.append((wire.FENCE_HEADER.lower().encode(), str(carried.fence).encode()))

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return sending


def _path(scope: Mapping[str, Any]) -> str:
    return quote(scope.get("path") or "/", safe="/:@!$&'()*+,;=~")


def _resource(scope: Scope) -> str:
    """How a request is called in messages: encoded, so that no path can break a line of the log."""
    path = _path(scope)
    shown = path if len(path) <= _PATH_CHARS_MAX else path[:_PATH_CHARS_MAX] + "…"
    return f"{scope.get('method', 'WEBSOCKET')} {shown}"


def _check_callable(field: str, value: Callable[..., Any]) -> Any:
    if not callable(value):
        raise BadInput(field, f"{type(value).__name__} cannot be called", "give a function that takes the ASGI scope")
    return value
