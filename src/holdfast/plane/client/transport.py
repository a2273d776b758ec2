"""How a client reaches a plane: the port, and its implementation on the plane's own database.

Errors are those of `plane.service`, whatever the transport.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from holdfast.errors import HoldfastError
from holdfast.plane.approvals.rules import ApprovalVerdict
from holdfast.plane.client.request import JobRequest
from holdfast.plane.client.resource_locks import ResourceClaim
from holdfast.plane.client.schedules import ScheduleTransport, ServiceSchedules
from holdfast.plane.client.views import ApprovalView, JobProgress, JobUpdate, JobView, RunView, UpdatePage
from holdfast.plane.db.caller_transaction import identity_of
from holdfast.plane.db.ports import Tx
from holdfast.plane.model.records import Job
from holdfast.plane.process.components import Components, open_components
from holdfast.plane.service.change_watcher import Sighting
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Settings
from holdfast.types import NS

DEFAULT_TENANT: Final = "default"

Kind: TypeAlias = Literal["jobs", "runs"]
Submitted: TypeAlias = "tuple[JobView, bool] | HoldfastError"


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run to start."""

    workflow: str
    input: Mapping[str, Any]
    id: str | None
    idempotency_key: str | None
    deadline_ns: int | None
    labels: Mapping[str, str]


class Prepared(NamedTuple):
    """A submission that was checked, to be inserted by a transaction of the caller's own."""

    insert: Callable[[Tx], Awaitable[tuple[Job, bool]]]
    database: tuple[str, ...]  # that of the plane, see `identity_of`


class Transport(Protocol):
    """The operations that a client needs. Each can be repeated after an unknown outcome."""

    @property
    def schedules(self) -> ScheduleTransport:
        """Those for schedules."""
        ...

    async def open(self) -> None:
        """Connect."""
        ...

    async def close(self) -> None:
        """Give back connections. Idempotent."""
        ...

    async def submit(self, requests: Sequence[JobRequest[Any]]) -> list[Submitted]:
        """Submit jobs. The job of each, and whether it was inserted, or the error that refused it."""
        ...

    async def prepared(self, request: JobRequest[Any]) -> Prepared:
        """What inserts a job in a transaction of the caller's own on the database of the plane. Writes nothing."""
        ...

    async def job(self, job: str) -> JobView:
        """One job, or `RowMissing`."""
        ...

    async def updates(self, job: str, after: str) -> UpdatePage:
        """Changes and emitted values of a job after a place, in order; "": from the first on."""
        ...

    async def cancel(self, job: str, reason: str) -> bool:
        """Request a cancellation. False: the job has ended before."""
        ...

    async def retry(self, job: str) -> JobView:
        """Make a new job of a dead-lettered one."""
        ...

    async def watch(
        self, kind: Kind, known: Mapping[str, str], timeout_ns: int, *, ended: bool
    ) -> Mapping[str, Sighting | None]:
        """Wait for changes, see `plane.service.change_watcher`."""
        ...

    async def start(self, wanted: RunStart) -> RunView:
        """Start a run."""
        ...

    async def run(self, run: str) -> RunView:
        """One run, or `RowMissing`."""
        ...

    async def cancel_run(self, run: str, reason: str) -> bool:
        """Request a cancellation. False: the run has ended before."""
        ...

    async def approvals(self) -> list[ApprovalView]:
        """Approvals that wait, oldest first."""
        ...

    async def decide(self, job: str, verdict: ApprovalVerdict, note: str) -> None:
        """Approve or reject."""
        ...

    async def acquire_resource(self, claim: ResourceClaim, wait_ns: int) -> int:
        """Acquire a resource, or `LockBusy` after the wait. Returns its fence. Repeating it returns the same grant."""
        ...

    async def renew_resource(self, claim: ResourceClaim) -> None:
        """Renew a held resource, or `NotOwner`."""
        ...

    async def release_resource(self, claim: ResourceClaim) -> None:
        """Release a held resource, or `NotOwner`."""
        ...


class DatabaseTransport:
    """Calls the service of a plane in this process, on the plane's database."""

    def __init__(self, where: Settings | Components, name: str, tenant: str | None) -> None:
        """`where`: the plane to open, or the components of one that is open."""
        self._where = where
        self._caller = Caller(name)
        self._tenant = tenant
        self._stack = AsyncExitStack()
        self._components: Components | None = None
        self._identity: tuple[str, ...] | None = None

    async def open(self) -> None:
        """See `Transport`."""
        if isinstance(self._where, Components):
            self._components = self._where
        else:
            self._components = await self._stack.enter_async_context(
                open_components(self._where, service_name="client")
            )

    async def close(self) -> None:
        """See `Transport`."""
        await self._stack.aclose()

    @property
    def _open(self) -> Components:
        assert self._components is not None  # noqa: S101 - the client opens its transport first
        return self._components

    @property
    def schedules(self) -> ScheduleTransport:
        """See `Transport`."""
        return ServiceSchedules(self._open.service.schedules, self._caller, self._tenant)

    async def submit(self, requests: Sequence[JobRequest[Any]]) -> list[Submitted]:
        """See `Transport`."""
        now_ns = self._open.clock.now().wall
        answers: list[Submitted | None] = [None] * len(requests)
        for pool in dict.fromkeys(each.pool for each in requests):  # one transaction for each pool that was chosen
            places = [at for at, each in enumerate(requests) if each.pool == pool]
            wanted = [requests[at].submission(now_ns, self._tenant) for at in places]
            found = await self._open.service.submit_many(self._caller, wanted, pool=pool)
            for at, answer in zip(places, found, strict=True):
                answers[at] = answer if isinstance(answer, HoldfastError) else (JobView.of(answer[0]), answer[1])
        return [each for each in answers if each is not None]

    async def prepared(self, request: JobRequest[Any]) -> Prepared:
        """See `Transport`."""
        wanted = request.submission(self._open.clock.now().wall, self._tenant)
        insert = await self._open.service.prepared(self._caller, wanted, pool=request.pool)
        if self._identity is None:
            self._identity = await self._open.database.read(identity_of)
        return Prepared(insert, self._identity)

    async def job(self, job: str) -> JobView:
        """See `Transport`."""
        service = self._open.service
        found = await service.job(self._caller, job)
        if found.state.terminal:
            return JobView.of(found, await service.progress(found))
        return JobView.of(found, await service.progress(found), await service.waiting(self._caller, found))

    async def updates(self, job: str, after: str) -> UpdatePage:
        """See `Transport`."""
        page = await self._open.service.timeline(self._caller, job, after)
        progress = None if page.progress is None else JobProgress.of(page.progress)
        updates = [JobUpdate.of(job, each.entry) for each in page.entries]
        return UpdatePage(updates, progress, page.place.text, page.more, page.ended)

    async def cancel(self, job: str, reason: str) -> bool:
        """See `Transport`."""
        _, asked = await self._open.service.cancel(self._caller, job, reason=reason)
        return asked

    async def retry(self, job: str) -> JobView:
        """See `Transport`."""
        made, _ = await self._open.service.retry(self._caller, job)
        return JobView.of(made)

    async def watch(
        self, kind: Kind, known: Mapping[str, str], timeout_ns: int, *, ended: bool
    ) -> Mapping[str, Sighting | None]:
        """See `Transport`."""
        service = self._open.service
        changes = service.job_changes if kind == "jobs" else service.run_changes
        return await changes.wait(self._caller, known, timeout_ns, ended=ended)

    async def start(self, wanted: RunStart) -> RunView:
        """See `Transport`."""
        now_ns = self._open.clock.now().wall
        stored, _ = await self._open.flows.start(
            self._caller,
            wanted.workflow,
            dict(wanted.input),
            tenant=self._tenant,
            run_id=wanted.id,
            idempotency_key=wanted.idempotency_key,
            deadline_ns=None if wanted.deadline_ns is None else now_ns + wanted.deadline_ns,
            labels=wanted.labels,
        )
        return RunView.of(stored)

    async def run(self, run: str) -> RunView:
        """See `Transport`."""
        return RunView.of(await self._open.flows.run(self._caller, run))

    async def cancel_run(self, run: str, reason: str) -> bool:
        """See `Transport`."""
        _, asked = await self._open.flows.cancel(self._caller, run, reason=reason)
        return asked

    async def approvals(self) -> list[ApprovalView]:
        """See `Transport`."""
        page = await self._open.flows.approvals(self._caller, tenant=self._tenant)
        return [
            ApprovalView(each.job, each.tenant, each.about, each.run, each.step, each.requested_by)
            for each in page.items
        ]

    async def decide(self, job: str, verdict: ApprovalVerdict, note: str) -> None:
        """See `Transport`."""
        await self._open.flows.decide(self._caller, job, verdict, note=note)

    async def acquire_resource(self, claim: ResourceClaim, wait_ns: int) -> int:
        """See `Transport`."""
        grant = await self._open.service.resources.acquire(
            self._tenant or DEFAULT_TENANT,
            claim.resource,
            owner=claim.owner,
            mode=claim.mode,
            ttl=claim.ttl_ns / NS,
            timeout=wait_ns / NS,
            token=claim.token,
        )
        return grant.holder.fence

    async def renew_resource(self, claim: ResourceClaim) -> None:
        """See `Transport`."""
        tenant = self._tenant or DEFAULT_TENANT
        await self._open.service.resources.renew(tenant, claim.resource, claim.token, ttl=claim.ttl_ns / NS)

    async def release_resource(self, claim: ResourceClaim) -> None:
        """See `Transport`."""
        await self._open.service.resources.release(self._tenant or DEFAULT_TENANT, claim.resource, claim.token)
