"""Reaches a plane through its HTTP API.

Promises: redirects are not followed, so a token goes to the given host alone. A problem document becomes the error that
the service raised where this is known, else `ApiRefused`. All waits of a client share one request of each kind.

Clock: that of the HTTP library, for its timeouts.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx

from holdfast.errors import (
    BackendError,
    BadInput,
    HoldfastError,
    LockBusy,
    Misconfigured,
    NotOwner,
    RowExists,
    RowMissing,
    Timeout,
    Unavailable,
)
from holdfast.plane.approvals.rules import ApprovalVerdict
from holdfast.plane.client.http_schedules import HttpSchedules
from holdfast.plane.client.request import JobRequest
from holdfast.plane.client.resource_locks import ResourceClaim
from holdfast.plane.client.schedules import ScheduleTransport
from holdfast.plane.client.transport import Kind, Prepared, RunStart, Submitted
from holdfast.plane.client.views import ApprovalView, JobProgress, JobUpdate, JobView, RunView, UpdatePage
from holdfast.plane.model.caller import NotAllowed
from holdfast.plane.schedules.model import ScheduleConflict
from holdfast.plane.service.change_watcher import WATCHED_MAX, Sighting
from holdfast.types import NS

CONNECTIONS_MAX: Final = 20
REQUEST_S: Final = 10.0  # for one answer; longer for requests that wait
CONNECT_S: Final = 5.0
PAGE: Final = 500
WAIT_S: Final = 20.0  # of one request for changes
TURN_S: Final = 0.2  # the same, if the items need more than one request

_RESOURCES: Final = "/resource-locks"
_TOKEN: Final = re.compile(r"[!-~]+\Z")
_GATHER_S: Final = 0.005  # waits that begin together share the next request
_ALLOWED: Final = frozenset({"not-allowed", "self-approval-denied", "unauthorized"})
_NOTHING_DONE: Final = frozenset({"unavailable", "closing", "lease-lost", "retry-later", "too-many-connections"})
_NOTHING_DONE_EITHER: Final = frozenset({"policy-denied", "not-ready", "too-many-requests", "lock-busy"})


class ApiRefused(HoldfastError):
    """The API refused a request. `code` and `status` are those of the problem document."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{detail} ({status} {code})")
        self.status = status
        self.code = code


class HttpTransport:
    """One plane, by the address of its API."""

    def __init__(self, url: str, token: str | None, name: str, tenant: str | None) -> None:
        self._url = _checked_url(url)
        self._tenant = tenant
        headers = {"user-agent": "holdfast"}
        if token is not None:
            headers["authorization"] = f"Bearer {_checked_token(token)}"
        self._headers = headers
        self._http: httpx.AsyncClient | None = None
        self._waits: dict[tuple[Kind, bool], _SharedWait] = {}

    async def open(self) -> None:
        """See `Transport`."""
        self._http = httpx.AsyncClient(
            base_url=self._url,
            headers=self._headers,
            timeout=httpx.Timeout(REQUEST_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
            trust_env=False,
        )

    async def close(self) -> None:
        """See `Transport`."""
        for each in self._waits.values():
            each.close()
        if self._http is not None:
            await self._http.aclose()

    # Jobs.

    async def submit(self, requests: Sequence[JobRequest[Any]]) -> list[Submitted]:
        """See `Transport`."""
        limit = asyncio.Semaphore(CONNECTIONS_MAX // 2)

        async def one(wanted: JobRequest[Any]) -> Submitted:
            async with limit:
                try:
                    status, document = await self._ask("POST", "/jobs", wanted.document(self._tenant))
                except HoldfastError as error:
                    if isinstance(error, BackendError) and len(requests) == 1:
                        raise
                    return error
                return JobView.parsed(document), status == httpx.codes.CREATED

        return list(await asyncio.gather(*(one(each) for each in requests)))

    async def prepared(self, request: JobRequest[Any]) -> Prepared:
        """See `Transport`. Refused: a transaction cannot be sent through an API."""
        fix = "connect to the database of the plane, or submit after the commit"
        raise BadInput("connection", "cannot be used through the HTTP API", fix)

    async def job(self, job: str) -> JobView:
        """See `Transport`."""
        return JobView.parsed(await self._get(f"/jobs/{_segment(job)}"))

    async def updates(self, job: str, after: str) -> UpdatePage:
        """See `Transport`."""
        found = await self._get(f"/jobs/{_segment(job)}/updates{f'?after={_segment(after)}' if after else ''}")
        updates = [JobUpdate.parsed(job, each) for each in found["items"]]
        progress = None if found["progress"] is None else JobProgress.parsed(found["progress"])
        return UpdatePage(updates, progress, found["next"], found["more"], found["ended"])

    async def cancel(self, job: str, reason: str) -> bool:
        """See `Transport`."""
        status, _ = await self._ask("POST", f"/jobs/{_segment(job)}/cancel", {"reason": reason})
        return status == httpx.codes.ACCEPTED

    async def retry(self, job: str) -> JobView:
        """See `Transport`."""
        _, document = await self._ask("POST", f"/jobs/{_segment(job)}/retry")
        return JobView.parsed(document)

    async def watch(
        self, kind: Kind, known: Mapping[str, str], timeout_ns: int, *, ended: bool
    ) -> Mapping[str, Sighting | None]:
        """See `Transport`."""
        shared = self._waits.get((kind, ended))
        if shared is None:
            shared = self._waits[(kind, ended)] = _SharedWait(self, kind, ended=ended)
        return await shared.wait(known, timeout_ns)

    async def watch_once(
        self, kind: Kind, known: Mapping[str, str], timeout_s: float, *, ended: bool
    ) -> dict[str, Sighting | None]:
        """One request that waits."""
        items = [{"id": item, "mark": mark} for item, mark in known.items()]
        body = {"items": items, "ended": ended, "timeout": timeout_s}
        _, document = await self._ask("POST", f"/watch/{kind}", body, waits_s=timeout_s)
        return {
            each["id"]: None
            if each["state"] is None
            else Sighting(each["id"], "", each["state"], each["ended"], each["mark"])
            for each in document["items"]
        }

    # Runs and approvals.

    async def start(self, wanted: RunStart) -> RunView:
        """See `Transport`."""
        given = {
            "workflow": wanted.workflow,
            "input": dict(wanted.input),
            "tenant": self._tenant,
            "id": wanted.id,
            "idempotency_key": wanted.idempotency_key,
            "deadline_in": None if wanted.deadline_ns is None else wanted.deadline_ns / NS,
            "labels": dict(wanted.labels),
        }
        body = {name: value for name, value in given.items() if value is not None}
        _, document = await self._ask("POST", "/runs", body)
        return RunView.parsed(document)

    async def run(self, run: str) -> RunView:
        """See `Transport`."""
        return RunView.parsed(await self._get(f"/runs/{_segment(run)}"))

    async def cancel_run(self, run: str, reason: str) -> bool:
        """See `Transport`."""
        status, _ = await self._ask("POST", f"/runs/{_segment(run)}/cancel", {"reason": reason})
        return status == httpx.codes.ACCEPTED

    async def approvals(self) -> list[ApprovalView]:
        """See `Transport`."""
        which = f"&tenant={quote(self._tenant, safe='')}" if self._tenant else ""
        found = await self._get(f"/approvals?limit={PAGE}{which}")
        names = ("job", "tenant", "about", "run", "step", "requested_by")
        return [ApprovalView(*(each[name] for name in names)) for each in found["items"]]

    async def decide(self, job: str, verdict: ApprovalVerdict, note: str) -> None:
        """See `Transport`."""
        await self._ask("POST", f"/approvals/{_segment(job)}/{verdict}", {"note": note})

    # Resource locks.

    async def acquire_resource(self, claim: ResourceClaim, wait_ns: int) -> int:
        """See `Transport`."""
        body = self._about(claim) | {"owner": claim.owner, "mode": str(claim.mode), "timeout": wait_ns / NS}
        body |= {"ttl": claim.ttl_ns / NS}
        _, document = await self._ask("POST", f"{_RESOURCES}/acquire", body, waits_s=wait_ns / NS)
        return int(document["fence"])

    async def renew_resource(self, claim: ResourceClaim) -> None:
        """See `Transport`."""
        await self._ask("POST", f"{_RESOURCES}/renew", self._about(claim) | {"ttl": claim.ttl_ns / NS})

    async def release_resource(self, claim: ResourceClaim) -> None:
        """See `Transport`."""
        await self._ask("POST", f"{_RESOURCES}/release", self._about(claim))

    def _about(self, claim: ResourceClaim) -> dict[str, Any]:
        tenant = {} if self._tenant is None else {"tenant": self._tenant}
        return {"resource": claim.resource, "token": claim.token, **tenant}

    # Schedules.

    @property
    def schedules(self) -> ScheduleTransport:
        """See `Transport`."""
        return HttpSchedules(self.ask, self._tenant)

    # Requests.

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request. Returns the document of the answer."""
        return (await self._ask(method, path, body))[1]

    async def _get(self, path: str) -> Any:
        return (await self._ask("GET", path))[1]

    async def _ask(self, method: str, path: str, body: Any = None, *, waits_s: float = 0.0) -> tuple[int, Any]:
        assert self._http is not None  # noqa: S101 - the client opens its transport first
        timeout = httpx.Timeout(REQUEST_S + waits_s, connect=CONNECT_S)
        try:
            answer = await self._http.request(method, f"/api/v1{path}", json=body, timeout=timeout)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unavailable(f"{self._url} cannot be reached: {_named(error)}") from error
        except httpx.TransportError as error:
            raise Timeout(f"{self._url} did not answer: {_named(error)}") from error
        if answer.is_success:
            return answer.status_code, answer.json() if answer.content else None
        raise self._error(answer)

    def _error(self, answer: httpx.Response) -> HoldfastError:
        try:
            problem = answer.json()
            code, detail = str(problem["code"]), str(problem["detail"])
        except (ValueError, KeyError, TypeError):
            text = f"{self._url} is no API of a plane: it answered {answer.status_code}"
            return Unavailable(text) if answer.is_server_error else Misconfigured(text)
        if code == "invalid" and problem.get("errors"):
            first = problem["errors"][0]
            return BadInput(first["field"], first["problem"], first["fix"])
        if code == "not-found":
            return RowMissing(detail)
        if code == "exists":
            return RowExists(detail)
        if code == "lock-not-owned":
            return NotOwner()
        if code == "lock-busy" and f"{_RESOURCES}/" in answer.request.url.path:  # elsewhere it is a lock of the plane
            return LockBusy(detail)
        if code == "schedule-conflict":
            return ScheduleConflict(detail)
        if code in _ALLOWED:
            return NotAllowed(detail)
        if code == "outcome-unknown":
            return Timeout(detail)
        if code in _NOTHING_DONE or code in _NOTHING_DONE_EITHER:
            return Unavailable(detail)
        return ApiRefused(answer.status_code, code, detail)


class _SharedWait:
    """All waits of one kind in one request at a time. A new wait replaces the request by one that contains it."""

    def __init__(self, transport: HttpTransport, kind: Kind, *, ended: bool) -> None:
        self._transport = transport
        self._kind = kind
        self._ended = ended
        self._waits: dict[asyncio.Future[dict[str, Sighting | None]], Mapping[str, str]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._turn = 0

    async def wait(self, known: Mapping[str, str], timeout_ns: int) -> dict[str, Sighting | None]:
        answer: asyncio.Future[dict[str, Sighting | None]] = asyncio.get_running_loop().create_future()
        self._waits[answer] = known
        self._changed.set()
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_on(), name=f"watch {self._kind}")
        try:
            await asyncio.wait((answer,), timeout=timeout_ns / NS)
            return answer.result() if answer.done() else {}
        finally:
            del self._waits[answer]
            if not self._waits:
                self.close()

    def close(self) -> None:
        """End the request. Waits end by their own timeouts."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def _ask_on(self) -> None:
        while True:  # ends by cancellation, when the last wait has ended
            await asyncio.sleep(_GATHER_S)
            self._changed.clear()
            request = asyncio.create_task(self._ask())
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait((request, changed), return_when=asyncio.FIRST_COMPLETED)
                if request.done():
                    self._show(request)
            finally:
                for each in (request, changed):
                    each.cancel()
                await asyncio.gather(request, changed, return_exceptions=True)

    async def _ask(self) -> dict[str, Sighting | None]:
        known: dict[str, str] = {}
        for each in self._waits.values():
            for item, mark in each.items():
                # Two waits with different marks: one of them is behind, so an empty mark answers both immediately.
                known[item] = mark if known.get(item, mark) == mark else ""
        if len(known) <= WATCHED_MAX:
            return await self._transport.watch_once(self._kind, known, WAIT_S, ended=self._ended)
        items = list(known.items())  # too many for one request: parts of them take turns
        self._turn = (self._turn + WATCHED_MAX) % len(items)
        part = dict((items[self._turn :] + items[: self._turn])[:WATCHED_MAX])
        return await self._transport.watch_once(self._kind, part, TURN_S, ended=self._ended)

    def _show(self, request: asyncio.Task[dict[str, Sighting | None]]) -> None:
        for answer, known in self._waits.items():
            if answer.done():
                continue
            if (error := request.exception()) is not None:
                answer.set_exception(error)
                continue
            news = {
                item: found
                for item, found in request.result().items()
                if item in known and (found is None or found.ended or (not self._ended and found.mark != known[item]))
            }
            if news:
                answer.set_result(news)


def _segment(text: str) -> str:
    return quote(text, safe="")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise BadInput("url", "is not the address of an API", "give http://HOST:PORT or https://HOST")
    if parts.username is not None or parts.password is not None:
        raise BadInput("url", "contains a user or a password", "give the token with token=")
    return url.rstrip("/")


def _checked_token(token: str) -> str:
    if not _TOKEN.match(token):
        raise BadInput("token", "is not a token", "give the text that was issued, without spaces")
    return token
