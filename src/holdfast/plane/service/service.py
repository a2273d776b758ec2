"""All commands and queries of the plane as plain methods: no HTTP, no output.

The command line and the HTTP API call these methods, so both have the same permissions and effects.

Promises:

- A caller with a tenant sees and changes only that tenant's objects. Other objects do not exist for it (`RowMissing`),
  even if it knows their ids.
- An acknowledged command is committed.
- Commands can be repeated: one idempotency key makes one job, a second retry returns the job of the first, a second
  cancel changes nothing.

Does not promise that a job is cancelled when `cancel` returns: the request is stored, and the scheduler carries it out
under the job's lock. Does not authenticate: the identity of a `Caller` was proven before.

Clock: the wall clock, for people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from holdfast.aio.client import Locks
from holdfast.core.name_prefixes import NamePrefixes
from holdfast.errors import BadInput, RowMissing
from holdfast.leases.inspection import Inspection
from holdfast.plane.approvals.service import Approvals
from holdfast.plane.db.ports import Audit, Bus, Database, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.db.write_probe import Writability
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.jobs.children import ChildLink, JobParent, children_of
from holdfast.plane.jobs.dead_letters import DeadLetters
from holdfast.plane.jobs.progress import Progress, ProgressStore
from holdfast.plane.jobs.queries import JobQueries
from holdfast.plane.jobs.quotas import Tenant, Tenants
from holdfast.plane.jobs.rows import job_of
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.jobs.summaries import JobOutline, LetterOutline
from holdfast.plane.jobs.timeline import TimelinePlace
from holdfast.plane.jobs.waiting_reason import UNSERVED, WaitReason
from holdfast.plane.locks.registry import FAMILIES, SCHEDULER_JOB, LockFamily
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.caller import PAGE_MAX, REASON_CHARS_MAX, Caller, NotAllowed, Page
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.paging import AFTER_ALL, Place
from holdfast.plane.model.records import (
    DeadLetter,
    Heartbeat,
    Job,
    JobEvent,
    Submission,
    check_id,
    check_text,
    check_whole,
)
from holdfast.plane.policy.runtime import PolicyRuntime
from holdfast.plane.resources.forced_release import ResourceBreaks
from holdfast.plane.resources.locks import ResourceLocks
from holdfast.plane.scheduler.fast_path import FastPath
from holdfast.plane.scheduler.placement import Placement
from holdfast.plane.service.change_watcher import ChangeWatcher
from holdfast.plane.service.policy import PolicyService
from holdfast.plane.service.schedules import ScheduleService
from holdfast.plane.service.status import JobCounts, StatusEntry, StatusQueries
from holdfast.plane.service.submission import Answer, SubmissionService
from holdfast.plane.service.submission import Work as InsertJob
from holdfast.plane.service.timelines import TimelinePage, timeline_page
from holdfast.plane.service.waiting_facts import WaitingFacts
from holdfast.plane.service.workflows import RunService
from holdfast.plane.settings.settings import Settings
from holdfast.plane.workflows.core.run import RunStatus

__all__ = [
    "CHECKED",
    "DATABASE",
    "Caller",
    "NotAllowed",
    "Page",
    "Service",
    "ServiceParts",
    "StoredDocument",
    "WorkerStatus",
]

SNAPSHOT: Final = "sys:workers:snapshot"

_JOB: Final = sql("job_get")
_DOCUMENT: Final = sql("document_get")
_FORGET: Final = sql("deadletter_forget")


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker, and whether it sent a heartbeat recently."""

    heartbeat: Heartbeat
    alive: bool


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A small document with one writer at a time."""

    body: Any
    writer: str
    at_ns: int
    fence: int | None


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """The dependencies of the service. Their creator closes them."""

    database: Database
    bus: Bus
    locks: Locks
    store: JobStore
    workers: Workers
    pools: Mapping[str, str] = field(default_factory=dict)  # by topic, where it is configured
    approvals: Approvals | None = None  # None: no job needs approval
    flows: RunService | None = None  # None: no workflows
    schedules: ScheduleService | None = None  # None: no schedules
    policing: PolicyRuntime | None = None  # in a process of the plane
    audit: Audit | None = None  # None: no audit ledger
    families: Mapping[str, LockFamily] = field(default_factory=lambda: FAMILIES)  # with the keys and times in effect
    settings: Settings = field(default_factory=Settings)
    names: NamePrefixes = field(default_factory=NamePrefixes)  # prefixes of keys and metrics


class Service:
    """The commands and queries of one plane."""

    def __init__(self, parts: ServiceParts) -> None:
        self.parts = parts
        self._store = parts.store
        family = parts.families[SCHEDULER_JOB.name]
        placement = Placement(parts.store, parts.locks, parts.workers, actor="submission", family=family)
        self.fast_path = FastPath(placement, enabled=parts.settings.scheduler.fast_path)
        self._submitting = SubmissionService(parts.store, parts.workers, parts.pools, parts.approvals, self.fast_path)
        self._waiting = WaitingFacts(parts.store, parts.workers)
        self._queries = JobQueries(parts.database)
        self._letters = DeadLetters(parts.store, None if parts.approvals is None else parts.approvals.submission)
        self._tenants = Tenants(parts.database, parts.store.slots)
        self._status = StatusQueries(parts.database)
        self._progress = ProgressStore(parts.database)
        self.job_changes = ChangeWatcher(
            parts.database, "job_watch", subjects.ENDED_JOBS, lambda state: JobState(state).terminal
        )
        self.run_changes = ChangeWatcher(
            parts.database, "run_watch", subjects.ENDED_RUNS, lambda status: RunStatus(status).terminal
        )
        self.policy = PolicyService.on(parts.database, parts.store.clock, parts.settings)
        self.resources = ResourceLocks(parts.database, parts.store.clock, parts.store.entropy)
        self.writability = Writability(parts.database, parts.store.clock)
        self.breaks = ResourceBreaks(parts.database, self.resources)

    @property
    def flows(self) -> RunService:
        """Workflows, runs and approvals."""
        if self.parts.flows is None:
            raise BadInput(
                "flows",
                "there are none here",
                "open the plane with `open_components`",
            )
        return self.parts.flows

    @property
    def schedules(self) -> ScheduleService:
        """The schedules."""
        if self.parts.schedules is None:
            raise BadInput("schedules", "there are none here", "open the plane as a whole")
        return self.parts.schedules

    # Jobs.

    async def submit(
        self,
        caller: Caller,
        wanted: Submission,
        *,
        pool: str | None = None,
        own_labels: Mapping[str, str] | None = None,
    ) -> tuple[Job, bool]:
        """Submit a job. Also returns whether it was inserted: the same idempotency key, or id, returns the first job.

        `own_labels`: labels that only the plane may set. `RowExists`: the key, or the id, was used for another job.
        """
        return await self._submitting.one(caller, wanted, pool, own_labels)

    async def prepared(self, caller: Caller, wanted: Submission, *, pool: str | None = None) -> InsertJob:
        """What inserts a job in a transaction of the caller's own."""
        return await self._submitting.prepared(caller, wanted, pool)

    async def submit_many(
        self, caller: Caller, wanted: Sequence[Submission], *, pool: str | None = None
    ) -> list[Answer]:
        """Submit jobs, many in one transaction. Returns the result or the error of each, in order; see `submit`."""
        return await self._submitting.all(caller, wanted, pool)

    async def job(self, caller: Caller, job_id: str) -> Job:
        """One job, or `RowMissing`, also for an invalid id."""
        try:
            job = await self._store.get(job_id)
        except BadInput:
            job = None
        return _visible(caller, job, _no_job(job_id))

    async def waiting(self, caller: Caller, job: Job) -> WaitReason | None:
        """Why a job waits; None: it runs, or is finished."""
        return await self._waiting.reason(_visible(caller, job, _no_job(job.id)))

    async def warning(self, caller: Caller, job: Job) -> WaitReason | None:
        """What the submitter of a job should know: that it waits because no live worker takes its topic."""
        view = await self.parts.workers.view()
        if job.state is not JobState.PENDING or view.pool(job.pool).workers_for(job.topic):
            return None
        reason = await self.waiting(caller, job)
        return reason if reason is not None and reason.code in UNSERVED else None

    async def jobs(
        self,
        caller: Caller,
        *,
        tenant: str | None = None,
        state: JobState | str | None = None,
        topic: str | None = None,
        after: Place = AFTER_ALL,
        limit: int = 100,
    ) -> Page[JobOutline]:
        """Job outlines, newest first."""
        most = check_whole("limit", limit, 1, PAGE_MAX)
        found = await self._queries.page(
            tenant=caller.scope(tenant), state=state, topic=topic, after=after, limit=most + 1
        )
        items = found[:most]
        return Page(items, Place(items[-1].created_ns, items[-1].id) if len(found) > most else None)

    async def children(self, job: Job) -> list[ChildLink]:
        """The jobs that the function of a job submitted. The caller may see the job."""
        parent = JobParent.of(job.id, job.created_ns, job.labels)
        return await self.parts.database.read(lambda tx: children_of(tx, parent))

    async def progress(self, job: Job) -> Progress | None:
        """The progress that a job's function last reported. The caller may see the job."""
        return await self._progress.get(job.id, job.created_ns)

    async def events(self, caller: Caller, job_id: str) -> list[JobEvent]:
        """The history of a job, oldest first."""
        await self.job(caller, job_id)
        return await self._store.events(job_id)

    async def timeline(self, caller: Caller, job_id: str, after: str = "") -> TimelinePage:
        """The events of a job after a place, with the values that it emitted. `after`: the place of the last entry."""
        place = TimelinePlace.parsed("after", after)
        try:
            page = await timeline_page(self.parts.database, check_id("id", job_id), place)
        except BadInput:
            page = None
        _visible(caller, None if page is None else page.job, _no_job(job_id))
        assert page is not None  # noqa: S101 - or it would not be visible
        return page

    async def counts(self, caller: Caller, *, tenant: str | None = None, finished: bool = True) -> dict[JobState, int]:
        """The number of jobs in each state. Counting finished jobs reads every stored job."""
        return await self._queries.counts(tenant=caller.scope(tenant), finished=finished)

    async def cancel(self, caller: Caller, job_id: str, *, reason: str = "cancelled on request") -> tuple[Job, bool]:
        """Request the cancellation of a job. Returns the current job, and whether the request changed anything.

        The request is committed when this returns; a scheduler carries it out. A finished job does not change.
        """
        made_ns = (await self.job(caller, job_id)).created_ns
        check_text("reason", reason, REASON_CHARS_MAX)
        message = subjects.cancel(job_id, caller.name, reason, token=self._store.entropy.token(), made_ns=made_ns)

        async def work(tx: Tx) -> tuple[Job | None, bool]:
            rows = await tx.query(_JOB, {"id": job_id})
            job = job_of(rows[0]) if rows else None
            asks = job is not None and caller.sees(job.tenant) and not job.state.terminal
            if asks:
                await self.parts.bus.stage(tx, [message])
            return job, asks

        job, asked = await self.parts.database.write(work)
        return _visible(caller, job, _no_job(job_id)), asked

    async def retry(self, caller: Caller, job_id: str) -> tuple[Job, bool]:
        """Retry a dead-lettered job as a new job. Also returns whether it was inserted; otherwise it existed.

        `InvalidTransition`: it has no dead letter, because it has not ended or has succeeded.
        """
        return await self._letters.retry_job(await self.job(caller, job_id), actor=caller.name)

    # Dead letters.

    async def dead_letters(
        self, caller: Caller, *, tenant: str | None = None, after: Place = AFTER_ALL, limit: int = 100
    ) -> Page[LetterOutline]:
        """Outlines of dead letters, newest first."""
        most = check_whole("limit", limit, 1, PAGE_MAX)
        found = await self._letters.page(tenant=caller.scope(tenant), after=after, limit=most + 1)
        items = found[:most]
        return Page(items, Place(items[-1].at_ns, items[-1].id) if len(found) > most else None)

    async def dead_letter(self, caller: Caller, letter_id: str) -> DeadLetter:
        """One dead letter, or `RowMissing`."""
        try:
            letter = await self._letters.get(letter_id, tenant=caller.tenant)
        except BadInput:
            letter = None
        return _visible(caller, letter, _no_letter(letter_id))

    async def retry_dead_letter(self, caller: Caller, letter_id: str) -> tuple[Job, bool]:
        """Retry a dead letter as a new job. Also returns whether it was inserted; otherwise it existed."""
        letter = await self.dead_letter(caller, letter_id)
        return await self._letters.retry(letter_id, tenant=letter.tenant, actor=caller.name)

    async def forget_dead_letter(self, caller: Caller, letter_id: str) -> None:
        """Delete one dead letter, or `RowMissing`. Its job stays."""
        letter = await self.dead_letter(caller, letter_id)
        where = {"id": letter.id, "tenant": letter.tenant}
        if not await self.parts.database.write(lambda tx: tx.query(_FORGET, where)):
            raise RowMissing(_no_letter(letter_id))

    # The plane.

    async def briefs(self, caller: Caller) -> list[StatusEntry]:
        """The newest jobs, the unfinished ones and the latest dead letters, as list entries, newest first."""
        return await self._status.briefs(tenant=caller.tenant)

    async def tally(self) -> JobCounts:
        """Jobs per tenant and state, and recent ends. Reads every job; covers all tenants."""
        return await self._status.tally(self._store.clock.now().wall)

    async def workers(self) -> list[WorkerStatus]:
        """Every known worker, by name."""
        alive = {each.worker for each in await self.parts.workers.live()}
        return [WorkerStatus(each, each.worker in alive) for each in await self.parts.workers.all()]

    async def snapshot(self) -> StoredDocument:
        """The last worker snapshot, or `RowMissing`."""
        rows = await self.parts.database.read(lambda tx: tx.query(_DOCUMENT, {"name": SNAPSHOT}))
        if not rows:
            raise RowMissing("no snapshot was written yet")
        row = rows[0]
        return StoredDocument(json.loads(row["body"]), row["writer"], row["at_ns"], row["holdfast_fence"])

    async def locks(
        self, *, prefix: str = "", after: str = "", limit: int = 100
    ) -> tuple[list[Inspection], str | None]:
        """A page of the leases that are held now, by key, and the cursor of the next page.

        Their keys name objects of all tenants.
        """
        most = check_whole("limit", limit, 1, PAGE_MAX)
        found = await self.parts.locks.list(prefix, most + 1, after=after)
        items = found[:most]
        return items, items[-1].key if len(found) > most else None

    def inventory(self) -> list[dict[str, Any]]:
        """Every kind of lock that the plane uses."""
        return [family.as_dict() for family in self.parts.families.values()]

    async def tenant(self, caller: Caller, tenant: str) -> Tenant:
        """The number of a tenant's jobs on workers, and its limit."""
        if not caller.sees(tenant):
            raise RowMissing(f"there is no tenant {tenant!r}")
        return await self._tenants.get(tenant)

    async def tenants(self, caller: Caller, *, after: str = "", limit: int = 100) -> tuple[list[Tenant], str | None]:
        """Tenants that have had a job or a limit, by name, and the cursor of the next page."""
        most = check_whole("limit", limit, 1, PAGE_MAX - 1)
        found = [each for each in await self._tenants.page(after=after, limit=most + 1) if caller.sees(each.name)]
        return found[:most], found[most - 1].name if len(found) > most else None

    async def limit_tenant(self, tenant: str, slots: int | None) -> Tenant:
        """Limit the number of a tenant's jobs on workers at the same time; None: the default limit."""
        return await self._tenants.limit(tenant, slots)

    # Readiness.

    async def check(self, part: str) -> None:
        """Return if the component answers (`database`, `bus` or `leases`), else raise its error."""
        if part == DATABASE:
            await self.parts.database.read(lambda tx: tx.query("SELECT 1 AS one"))
        elif part == "bus":
            await self.parts.bus.pending(subjects.SUBMIT, subjects.SCHEDULER)
        elif part == "leases":
            await self.parts.locks.ping()
        else:
            raise BadInput("part", f"{part!r:.60} is not a component", f"use one of {', '.join(CHECKED)}")


DATABASE: Final = "database"
CHECKED: Final = (DATABASE, "bus", "leases")
"""The components that the plane needs."""

V = TypeVar("V", Job, DeadLetter)


def _visible(caller: Caller, thing: V | None, missing: str) -> V:
    if thing is None or not caller.sees(thing.tenant):
        raise RowMissing(missing)
    return thing


def _no_job(job_id: str) -> str:
    return f"there is no job {job_id!r:.220}"


def _no_letter(letter_id: str) -> str:
    return f"there is no dead letter {letter_id!r:.420}"
