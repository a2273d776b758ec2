"""`Client`: jobs and workflow runs of a plane, for applications.

    async with Client("sqlite:///plane.db") as client:      # or postgresql://…, or http(s)://… with token=…
        job = await client.submit(charge, invoice=7, amount=100, idempotency_key="order-7")
        receipt = await job.result(timeout=30)

Promises:

- A submission makes one job, however often the network or the database fails meanwhile: it is repeated with the same id
  or idempotency key for up to `timeout` seconds. Then `Unavailable` means that it was not accepted as far as is known,
  and `Timeout` that it may have been.
- A wait survives outages of the plane until its own timeout. All waits of a client share one query or request.
- The operations, views and errors are the same for a database and for the HTTP API.

Does not promise that a job whose `result` timed out has stopped; `cancel` requests that.

Clock: the event loop's, for timeouts. Times in views are the plane's.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar, overload
from urllib.parse import urlsplit

from holdfast.core import backoff
from holdfast.core.ports import Entropy
from holdfast.errors import BackendError, BadInput, Closed, HoldfastError, Misconfigured, RowMissing
from holdfast.plane.app import JobFunction
from holdfast.plane.approvals.rules import ApprovalVerdict
from holdfast.plane.client.request import UNSET, JobRequest
from holdfast.plane.client.resource_locks import ResourceLease, ResourceLock
from holdfast.plane.client.schedules import ScheduleMethods, ScheduleTransport
from holdfast.plane.client.transport import DatabaseTransport, Kind, Prepared, RunStart, Transport
from holdfast.plane.client.views import (
    ApprovalView,
    JobCancelled,
    JobFailed,
    JobUpdate,
    JobView,
    RunNotSucceeded,
    RunView,
    SubmitRefused,
    UpdateReader,
)
from holdfast.plane.db.caller_transaction import write_within
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job
from holdfast.plane.process.plane import Plane
from holdfast.plane.resources.model import TTL_S, ResourceMode
from holdfast.plane.service.change_watcher import Sighting
from holdfast.plane.settings.sources import load
from holdfast.plane.workflows.core.run import RunStatus
from holdfast.runtime.system import SystemEntropy
from holdfast.types import MS, NS, Duration, check_label, duration_ns

if TYPE_CHECKING:
    from holdfast.plane.client.blocking import BlockingClient

T = TypeVar("T")
R = TypeVar("R")

TIMEOUT_S: Final = 30.0
TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"  # noqa: S105 - the name of a variable
WATCH_NS: Final = 20 * NS

_AGAIN: Final = backoff.exponential(0.05, 2.0)


class JobHandle(Generic[T]):
    """One submitted job."""

    def __init__(self, client: Client, job: str, function: JobFunction | None = None, *, new: bool = True) -> None:
        self._client = client
        self._function = function
        self.id = job
        self.new = new  # False: the submission found an existing job

    async def status(self) -> JobView:
        """The job as it is now."""
        return await self._client.tried(lambda transport: transport.job(self.id))

    async def result(self, timeout: Duration | None = None) -> T:
        """Wait for the result. `JobFailed`, `JobCancelled`: it has ended without one. `TimeoutError`: not in time."""
        await self._client.ended("jobs", self.id, timeout)
        job = await self.status()
        if job.state is JobState.SUCCEEDED:
            value: T = job.result if self._function is None else self._function.parameters.result(job.result)
            return value
        if job.state is JobState.CANCELLED:
            raise JobCancelled(job)
        traces = [update.traceback async for update in self.events() if update.traceback is not None]
        raise JobFailed(job, traces[-1] if traces else None)

    async def events(self) -> AsyncIterator[JobUpdate]:
        """States, emitted values and progress of the job, from the first on, as they happen. Ends with the job.

        A reader that is late gets every state and value, in order, and the newest progress.
        """
        mark, reader = "", UpdateReader(self.id)
        while not reader.ended:
            seen = (await self._client.changed("jobs", {self.id: mark}))[self.id]
            more = True
            while more:
                page = await self._client.tried(lambda transport: transport.updates(self.id, reader.place))
                more = page.more
                for each in reader.read(page):
                    yield each
            mark = seen.mark

    async def cancel(self, reason: str = "cancelled on request") -> bool:
        """Request the cancellation of the job. False: it has ended already."""
        return await self._client.tried(lambda transport: transport.cancel(self.id, reason))

    async def retry(self) -> JobHandle[T]:
        """Submit a failed job again, as a new job. A second call returns the job of the first."""
        made = await self._client.tried(lambda transport: transport.retry(self.id))
        return JobHandle(self._client, made.id, self._function)

    def __repr__(self) -> str:
        return f"<JobHandle {self.id!r}>"


class RunHandle:
    """One run of a workflow."""

    def __init__(self, client: Client, run: str) -> None:
        self._client = client
        self.id = run

    async def status(self) -> RunView:
        """The run as it is now."""
        return await self._client.tried(lambda transport: transport.run(self.id))

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the output. `RunNotSucceeded`: it has ended without one. `TimeoutError`: not in time."""
        await self._client.ended("runs", self.id, timeout)
        run = await self.status()
        if run.status is RunStatus.SUCCEEDED:
            return run.output
        raise RunNotSucceeded(run)

    async def cancel(self, reason: str = "cancelled on request") -> bool:
        """Request the cancellation of the run and of all that it has started. False: it has ended already."""
        return await self._client.tried(lambda transport: transport.cancel_run(self.id, reason))

    def __repr__(self) -> str:
        return f"<RunHandle {self.id!r}>"


class Client(ScheduleMethods):
    """The jobs, runs and schedules of one plane. Belongs to one event loop."""

    def __init__(
        self,
        plane: str | Plane | None = None,
        *,
        token: str | None = None,
        tenant: str | None = None,
        name: str | None = None,
        timeout: Duration = TIMEOUT_S,
        config: str | Path | None = None,
        leases: str | None = None,
        bus: str | None = None,
    ) -> None:
        """`plane`: the URL of its database or API, or a running `Plane` of this process.

        Without it, the settings decide as for all commands: `holdfast.toml` or `config`, and the environment. `token`
        (default: `$HOLDFAST_TOKEN`) is for an API. `tenant`: of what is submitted. `name`: who submits, for records; an
        API takes it from the token. `timeout`: how long an operation is repeated while the plane does not answer.
        `leases` and `bus`: see the settings of the same names.
        """
        self._timeout_ns = duration_ns("timeout", timeout, low_ns=MS)
        self._entropy: Entropy = SystemEntropy()
        self._opened = False
        self._closed = False
        owner = self._default_tenant = check_label("tenant", tenant) if tenant is not None else None
        self._name = name or _this_user()
        self._transport = _transport(plane, token, owner, self._name, config, leases, bus)
        self.resources: set[ResourceLease] = set()  # held; released when the client closes
        self._background: set[asyncio.Task[None]] = set()

    @staticmethod
    def blocking(
        plane: str | None = None,
        *,
        token: str | None = None,
        tenant: str | None = None,
        name: str | None = None,
        timeout: Duration = TIMEOUT_S,
        config: str | Path | None = None,
        leases: str | None = None,
        bus: str | None = None,
    ) -> BlockingClient:
        """A client with the same methods for programs without an event loop."""
        from holdfast.plane.client.blocking import BlockingClient

        return BlockingClient(
            lambda: Client(
                plane, token=token, tenant=tenant, name=name, timeout=timeout, config=config, leases=leases, bus=bus
            )
        )

    async def open(self) -> Self:
        """Connect. `async with` does it."""
        if self._opened:
            raise BadInput("client", "was opened before", "make another one")
        self._opened = True
        await self._transport.open()
        return self

    async def close(self) -> None:
        """Release resources and give back connections. Idempotent. `async with` does it."""
        if not self._closed:
            releasing = (*(each.release_at_close() for each in self.resources), *self._background)
            await asyncio.gather(*releasing, return_exceptions=True)
        self._closed = True
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Jobs.

    @overload
    async def submit(self, job: str, payload: Any = UNSET, /, **given: Any) -> JobHandle[Any]: ...
    @overload
    async def submit(
        self, job: Callable[..., Coroutine[Any, Any, R]], payload: Any = UNSET, /, **given: Any
    ) -> JobHandle[R]: ...
    @overload
    async def submit(self, job: Callable[..., R], payload: Any = UNSET, /, **given: Any) -> JobHandle[R]: ...
    async def submit(
        self, job: Callable[..., Any] | str, payload: Any = UNSET, /, *, connection: Any = None, **given: Any
    ) -> JobHandle[Any]:
        """Submit a job: a decorated function with its arguments, or a topic with a payload.

        The options are those of `JobRequest`: `idempotency_key`, `id`, `delay`, `deadline`, `timeout`, `max_attempts`,
        `priority`, `pool`, `tenant`, `labels`, `trace`. It is stored when this returns.

        With `connection`, the job is a part of the open transaction of this connection to the database of the plane: it
        exists if and only if the caller commits. See `plane.db.caller_transaction` for the drivers.
        """
        if connection is not None:
            request, prepared = await self.prepared(job, payload, given)
            return self.inserted(
                request, await write_within(connection, prepared.database, prepared.insert, awaited=True)
            )
        (handle,) = await self._submit([JobRequest(job, payload, **given)])
        if isinstance(handle, HoldfastError):
            raise handle
        return handle

    async def prepared(
        self, job: Callable[..., Any] | str, payload: Any, given: dict[str, Any]
    ) -> tuple[JobRequest[Any], Prepared]:
        """A checked submission for a transaction of the caller's own."""
        request: JobRequest[Any] = JobRequest(job, payload, **given)
        request.identify(self._entropy)
        return request, await self.tried(lambda transport: transport.prepared(request))

    def inserted(self, request: JobRequest[Any], found: tuple[Job, bool]) -> JobHandle[Any]:
        """The handle of a job that a transaction inserted."""
        return JobHandle(self, found[0].id, request.function, new=found[1])

    async def submit_many(self, requests: Sequence[JobRequest[Any]]) -> list[JobHandle[Any]]:
        """Submit jobs, on a database in one transaction. `SubmitRefused` if any was refused; the others are stored."""
        if not all(isinstance(each, JobRequest) for each in requests):
            raise BadInput("requests", "has something that is no request", "give JobRequest(function or topic, …)")
        answers = await self._submit(requests)
        handles = [each for each in answers if isinstance(each, JobHandle)]
        if len(handles) < len(answers):
            raise SubmitRefused(answers)
        return handles

    async def _submit(self, requests: Sequence[JobRequest[Any]]) -> list[JobHandle[Any] | HoldfastError]:
        if not requests:
            return []
        for each in requests:
            each.identify(self._entropy)
        answers = await self.tried(lambda transport: transport.submit(requests))
        return [
            answer if isinstance(answer, HoldfastError) else JobHandle(self, answer[0].id, each.function, new=answer[1])
            for each, answer in zip(requests, answers, strict=True)
        ]

    def job(self, job: str, function: Callable[..., Any] | None = None) -> JobHandle[Any]:
        """The handle of an existing job, by its id. With its function, the result has the declared type."""
        from holdfast.plane.app import job_of_function

        return JobHandle(self, job, None if function is None else job_of_function(function))

    # Runs and approvals.

    async def start(
        self,
        workflow: str,
        /,
        *,
        idempotency_key: str | None = None,
        id: str | None = None,
        deadline: Duration | None = None,
        labels: Mapping[str, str] | None = None,
        **inputs: Any,
    ) -> RunHandle:
        """Start a run of a workflow with its inputs."""
        wanted = RunStart(
            check_label("workflow", workflow),
            inputs,
            id if id is not None or idempotency_key is not None else self._entropy.token(),
            idempotency_key,
            None if deadline is None else duration_ns("deadline", deadline, low_ns=1),
            {} if labels is None else dict(labels),
        )
        run = await self.tried(lambda transport: transport.start(wanted))
        return RunHandle(self, run.id)

    def run(self, run: str) -> RunHandle:
        """The handle of an existing run, by its id."""
        return RunHandle(self, run)

    async def approvals(self) -> list[ApprovalView]:
        """What waits for the decision of a person, oldest first."""
        return await self.tried(lambda transport: transport.approvals())

    async def approve(self, job: str, note: str = "") -> None:
        """Approve a job or a step, by the `job` of its approval."""
        await self.tried(lambda transport: transport.decide(job, ApprovalVerdict.APPROVE, note))

    async def reject(self, job: str, note: str = "") -> None:
        """Reject a job or a step, by the `job` of its approval."""
        await self.tried(lambda transport: transport.decide(job, ApprovalVerdict.REJECT, note))

    # Resource locks.

    def resource(
        self,
        resource: str,
        *,
        mode: ResourceMode | Literal["exclusive", "shared"] = ResourceMode.EXCLUSIVE,
        ttl: Duration = TTL_S,
        timeout: Duration | None = None,
        owner: str | None = None,
    ) -> ResourceLock:
        """A lock on a resource of the tenant, renewed while it is held. Nothing is sent until it is acquired.

        `timeout`: how long `acquire` and `async with` wait for a busy resource; None: without a limit. `owner` is a
        label for people; by default the name of the client.
        """
        holder = self._name if owner is None else owner
        return ResourceLock(self, resource, mode=mode, ttl=ttl, timeout=timeout, owner=holder)

    def new_token(self) -> str:
        """A new secret that proves a grant."""
        return self._entropy.token()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it in a task. `close` waits for it."""
        task = asyncio.create_task(work, name="client")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def once(self, work: Callable[[Transport], Awaitable[T]]) -> T:
        """Do it, and do not repeat it."""
        self._check_open()
        return await work(self._transport)

    # Schedules: see also `ScheduleMethods`.

    async def run_schedule(self, name: str) -> JobHandle[Any]:
        """Submit a job of a schedule now, besides its due times, also if it is paused."""
        identity = self._entropy.token()
        job = await self.tried_on_schedules(lambda transport: transport.run_schedule(name, identity))
        return JobHandle(self, job.id)

    # For handles.

    async def tried(self, work: Callable[[Transport], Awaitable[T]]) -> T:
        """Do it, again and again while the plane does not answer. Each operation can be repeated."""
        self._check_open()
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._timeout_ns / NS
        attempt = 0
        while True:
            try:
                return await work(self._transport)
            except BackendError as error:
                pause = _AGAIN.delay_ns(attempt, 0, self._entropy.below) / NS
                if isinstance(error, Misconfigured) or loop.time() + pause >= ends:
                    raise
            attempt += 1
            await asyncio.sleep(pause)

    async def tried_on_schedules(self, work: Callable[[ScheduleTransport], Awaitable[T]]) -> T:
        """See `tried`."""
        return await self.tried(lambda transport: work(transport.schedules))

    async def ended(self, kind: Kind, item: str, timeout: Duration | None) -> None:
        """Return when a job or run has ended."""
        limit_s = None if timeout is None else duration_ns("timeout", timeout) / NS
        try:
            async with asyncio.timeout(limit_s):
                await self.changed(kind, {item: ""}, ended=True)
        except TimeoutError as error:
            if isinstance(error, BackendError):
                raise
            raise TimeoutError(f"{item} has not ended within {limit_s:g} s") from None

    async def changed(self, kind: Kind, known: Mapping[str, str], *, ended: bool = False) -> dict[str, Sighting]:
        """Wait until something has changed, through outages."""
        self._check_open()
        attempt = 0
        while True:
            try:
                found = await self._transport.watch(kind, known, WATCH_NS, ended=ended)
            except BackendError as error:
                if isinstance(error, Misconfigured):
                    raise
                await asyncio.sleep(_AGAIN.delay_ns(attempt, 0, self._entropy.below) / NS)
                attempt += 1
                continue
            attempt = 0
            if gone := [item for item, sighting in found.items() if sighting is None]:
                raise RowMissing(f"there is no {kind[:-1]} {gone[0]!r:.220}")
            if found:
                return {item: sighting for item, sighting in found.items() if sighting is not None}

    def _check_open(self) -> None:
        if self._closed or not self._opened:
            state = "closed" if self._closed else "not open"
            raise Closed(f"the client is {state}; use it inside of `async with Client(…) as client`")


def _transport(
    plane: str | Plane | None,
    token: str | None,
    tenant: str | None,
    name: str,
    config: str | Path | None,
    leases: str | None,
    bus: str | None,
) -> Transport:
    if isinstance(plane, Plane):
        return DatabaseTransport(plane.components, name, tenant)
    given: object = plane
    if given is not None and not isinstance(given, str):
        fix = "give a URL such as sqlite:///plane.db or https://HOST, a Plane, or nothing"
        raise BadInput("plane", f"{type(given).__name__} is no plane", fix)
    if plane is not None and urlsplit(plane).scheme in ("http", "https"):
        try:
            from holdfast.plane.client.http_transport import HttpTransport
        except ModuleNotFoundError as error:
            if error.name != "httpx":
                raise
            raise Misconfigured('http:// needs httpx, which is not installed: pip install "holdfast[http]"') from error
        return HttpTransport(plane, token or os.environ.get(TOKEN_VARIABLE) or None, name, tenant)
    if token is not None:
        raise BadInput("token", "is for an API, and a database takes none", "leave it out, or give http://…")
    flags = {"database": plane, "leases": leases, "bus": bus}
    return DatabaseTransport(load(config, flags=flags), name, tenant)


def _this_user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:120]
