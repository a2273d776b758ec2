"""What a client that presents its fence over HTTP does before and after each request, whatever library sends it.

Promises: nothing is sent under a lease that is known to be lost, nor a request or a retry under one that has less time
left than was requested; both headers are those of the lease at that moment, and one that was set by hand and differs is
refused; they go to the origins that were named, or to the first one that was used, and a request to any other is
refused: sent without them it would be unprotected, and with them it would name locks to strangers. An answer that says
that the fence is stale becomes `FencedOut`.

Does not promise that a server checks anything. One that does says so in its answer; that one does not is logged once
and counted (`unguarded`).

A degraded lease, where it is allowed, sends neither header: a server that requires a fence has the last word (428).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from threading import RLock as Mutex  # a signal handler may enter it again
from typing import Final, TypedDict
from urllib.parse import urlsplit

from holdfast.core.lease.fencing import Accepted, Outcome, Rule, Stale, parse_fence
from holdfast.core.ports import Observer
from holdfast.errors import BadInput, FencedOut, LeaseLost
from holdfast.flows.log import log_event
from holdfast.guards.admission import Admission, GuardStatistics, Presented
from holdfast.guards.bearer import Bearer, CarriedFence
from holdfast.guards.http import headers as wire
from holdfast.leases.lease_base import Degraded, Granted, HeldLease
from holdfast.runtime.run_sync import run_now
from holdfast.types import NS, Duration, duration_ns

log = logging.getLogger("holdfast.guards")

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ClientStatistics(GuardStatistics):
    """The outcome of the requests of one client."""

    unguarded: int = 0  # successful answers of servers that do not check fences


class ClientSettings(TypedDict, total=False):
    """Settings of a fenced client; all have a default."""

    origins: Iterable[str] | None
    """Where the lease is presented: `["https://api.example.com"]`. None: at the first origin that is used. A request to
    any other, also by a redirect, is refused with `BadInput`, and not sent."""

    min_remaining: Duration
    """How much time the lease must have left for a request to be sent (0)."""

    raise_for_fence: bool
    """Whether a refusal by the server is raised as `FencedOut` (True), or passed on as a response (412)."""

    observer: Observer | None
    """Receives an event for every request that was accepted or refused."""


class Presenter:
    """Presents one lease to servers. Safe from any thread."""

    def __init__(self, guard: str, lease: Bearer, allow_degraded: bool, settings: ClientSettings) -> None:
        if unknown := sorted(set(settings) - set(ClientSettings.__annotations__)):
            known = ", ".join(ClientSettings.__annotations__)
            raise BadInput(unknown[0], "is not a setting of a fenced client", f"there is {known}, allow_degraded")
        origins = settings.get("origins")
        self._lease = _check_lease(lease)
        self._admission = Admission(guard, allow_degraded=allow_degraded, observer=settings.get("observer"))
        self._origins = None if origins is None else _check_origins(origins)
        self._min_remaining_ns = duration_ns("min_remaining", settings.get("min_remaining", 0))
        self._raise_for_fence = bool(settings.get("raise_for_fence", True))
        self._mutex = Mutex()
        self._unguarded: dict[str, int] = {}

    def statistics(self) -> ClientStatistics:
        """The outcome of the requests so far."""
        counts = asdict(self._admission.statistics())
        with self._mutex:
            return ClientStatistics(**counts, unguarded=sum(self._unguarded.values()))

    def attempt(self, method: str, url: str, headers: Iterable[tuple[str, str]]) -> FencedRequest:
        """Let one request go, or raise. `url` and `headers` are what it would be sent with."""
        origin = origin_of("url", url)
        self._check_origin(origin)
        resource = f"{method} {origin}{urlsplit(url).path}"
        if isinstance(self._lease, HeldLease) and self._lease.held:
            self.recheck()
        presented = run_now(self._admission.admit(self._lease, resource, Rule.AT_LEAST, _unknown_outcome))
        fenced = {} if presented.fence is None else wire.request_headers(presented.key, presented.fence)
        _check_by_hand(headers, fenced)
        return FencedRequest(self, method, origin, presented, fenced)

    def recheck(self) -> None:
        """Say whether the lease is still good for a request: before each, and before each retry of one."""
        if not isinstance(self._lease, HeldLease):
            return
        try:
            self._lease.ensure_held(self._min_remaining_ns / NS)
        except LeaseLost:
            self._admission.lost()
            raise

    def conclude(self, attempt: FencedRequest, status: int, headers: Mapping[str, str]) -> FencedOut | None:
        """Count what came of it; return the refusal if there is one and the caller is to raise it."""
        presented = attempt.presented
        if presented.fence is None:
            self._count(attempt, Accepted(None))
            return None
        if status == 412 and (seen := _fence_in(headers, wire.SEEN_HEADER)) is not None and seen > presented.fence:
            try:
                self._count(attempt, Stale(seen))
            except FencedOut as refusal:
                return refusal if self._raise_for_fence else None
        if _fence_in(headers, wire.FENCE_HEADER) == presented.fence:
            self._count(attempt, Accepted(None))
        elif 200 <= status < 300:
            self._note_unguarded(attempt)
        return None

    def _count(self, attempt: FencedRequest, outcome: Outcome[None]) -> None:
        if attempt.method in wire.SAFE_METHODS:
            self._admission.entered(attempt.presented, outcome)
        else:
            self._admission.written(attempt.presented, outcome)

    def _note_unguarded(self, attempt: FencedRequest) -> None:
        with self._mutex:
            first = attempt.origin not in self._unguarded
            self._unguarded[attempt.origin] = self._unguarded.get(attempt.origin, 0) + 1
        if first:
            told = {"guard": self._admission.guard, "resource": attempt.presented.resource}
            text = "a server answered without a word about the fence: nothing there refuses a stale holder"
            log_event(log, logging.WARNING, text, **told)

    def _check_origin(self, origin: str) -> None:
        with self._mutex:
            if self._origins is None:
                self._origins = frozenset({origin})
        if origin not in self._origins:
            known = ", ".join(sorted(self._origins))
            raise BadInput(
                "url",
                f"{origin} is not where this lease is presented ({known})",
                "name it in `origins`, or use a client without a fence; nothing was sent",
            )


class FencedRequest:
    """One request that was let go. It may be tried several times by what lies below."""

    def __init__(
        self, presenter: Presenter, method: str, origin: str, presented: Presented, headers: dict[str, str]
    ) -> None:
        self._presenter = presenter
        self._sent = False
        self.method = method
        self.origin = origin
        self.presented = presented
        self.headers = headers

    def trying_again(self) -> None:
        """What lies below is about to try once more, after a failure: the lease is checked again."""
        self._presenter.recheck()

    def sending(self) -> None:
        """What lies below is about to put the request on the wire."""
        if self._sent:
            self._presenter.recheck()
        self._sent = True

    def answered(self, status: int, headers: Mapping[str, str]) -> FencedOut | None:
        """An answer arrived. Returns what is to be raised instead of handing it on. Names of headers in any case."""
        return self._presenter.conclude(self, status, headers)


async def _unknown_outcome() -> int | None:
    """What the server has seen is not asked for: that would be a request under a lost lease."""
    return None


def origin_of(field: str, url: object) -> str:
    """Scheme, host and port of a URL, with the port left out where it is the scheme's own; or `BadInput`."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        port = parts.port if parts else None
    except ValueError:
        parts, port = None, None
    if parts is None or parts.scheme not in _PORTS or not parts.hostname:
        raise BadInput(field, f"{_shown(url)} has no origin", "give a URL such as https://api.example.com")
    host = parts.hostname
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            raise BadInput(field, f"{_shown(url)} has no valid host", "give a name that can be resolved") from None
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, _PORTS[parts.scheme]) else f":{port}")


def _check_origins(origins: Iterable[str]) -> frozenset[str]:
    if isinstance(origins, str):
        raise BadInput("origins", "is one text", f"give a list: [{origins!r}]")
    found = frozenset(origin_of("origins", each) for each in origins)
    if not found:
        raise BadInput("origins", "is empty", "name at least one, or leave it out")
    return found


def _check_lease(lease: object) -> Bearer:
    if not isinstance(lease, Granted | Degraded | CarriedFence):
        raise BadInput(
            "lease",
            f"{type(lease).__name__} is not a lease",
            "pass what acquire() returned; a fence that travelled here is a CarriedFence(key, fence)",
        )
    bearer: Bearer = lease  # type: ignore[assignment]  # every granted or degraded lease is one of sync or asyncio
    return bearer


def _check_by_hand(headers: Iterable[tuple[str, str]], fenced: Mapping[str, str]) -> None:
    """Refuse a header of ours that was set by hand and says something else."""
    for name, value in headers:
        for ours in (wire.KEY_HEADER, wire.FENCE_HEADER):
            if name.lower() == ours.lower() and value != fenced.get(ours):
                raise BadInput(ours, "was set by hand, and is not that of the lease", "leave it out; nothing was sent")


def _fence_in(headers: Mapping[str, str], name: str) -> int | None:
    try:
        return parse_fence(name, headers.get(name))
    except BadInput:
        return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
