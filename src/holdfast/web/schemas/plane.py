"""Bodies of requests and responses about the plane and its locks. See `jobs`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from holdfast.leases.inspection import Inspection
from holdfast.plane.jobs.quotas import SLOTS_MAX, Tenant
from holdfast.plane.service.service import StoredDocument, WorkerStatus
from holdfast.web.schemas.jobs import AS_WHOLE, Cursor, Given, Limit, QueryFilter, RequestBody, ResponseBody, moment


class FieldProblem(ResponseBody):
    """One invalid field."""

    field: str
    problem: str
    fix: str


class ProblemShown(ResponseBody):
    """An error (RFC 9457). `code` is for programs, `detail` for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    errors: Given[list[FieldProblem]] = None
    retry_after: Given[float] = None
    holder: str | None = None
    fence: Given[int] = None
    seen: Given[int] = None
    parts: Given[dict[str, str]] = None
    reasons: Given[list[str]] = None
    reason: Given[str] = None
    retryable: Given[bool] = None


# Workers and the snapshot.


class WorkerShown(ResponseBody):
    """A worker, as it last described itself."""

    worker: str
    pool: str
    topics: list[str]
    capacity: int
    active: int
    draining: bool
    alive: bool
    heard_at: datetime
    host: str
    pid: int

    @classmethod
    def of(cls, worker: WorkerStatus) -> WorkerShown:
        """From the status."""
        heartbeat = worker.heartbeat
        return cls(
            worker=heartbeat.worker,
            pool=heartbeat.pool,
            topics=list(heartbeat.topics),
            capacity=heartbeat.capacity,
            active=heartbeat.active,
            draining=heartbeat.draining,
            alive=worker.alive,
            heard_at=moment(heartbeat.at_ns),
            host=heartbeat.host,
            pid=heartbeat.pid,
        )


class WorkerList(ResponseBody):
    """Every known worker, by name."""

    items: list[WorkerShown]


class SnapshotShown(ResponseBody):
    """The last worker snapshot."""

    body: Any
    writer: str
    at: datetime
    fence: int | None

    @classmethod
    def of(cls, document: StoredDocument) -> SnapshotShown:
        """From the document."""
        return cls(body=document.body, writer=document.writer, at=moment(document.at_ns), fence=document.fence)


# Locks of the plane.


class LockFilter(QueryFilter):
    """Which locks."""

    prefix: Annotated[str, StringConstraints(pattern=r"^[ -z|~]*$", max_length=400)] = ""
    cursor: Given[Cursor] = Field(None, description="The `next` of the page before.")
    limit: Limit = 100


class LockShown(ResponseBody):
    """A held lock, without its token."""

    key: str
    family: str | None
    holder: str | None
    fence: int | None
    since: datetime | None
    remaining: float | None
    waiters: int

    @classmethod
    def of(cls, seen: Inspection) -> LockShown:
        """From the inspection."""
        return cls(
            key=seen.key,
            family=seen.family,
            holder=seen.owner,
            fence=seen.fence,
            since=seen.since,
            remaining=seen.remaining,
            waiters=seen.waiters,
        )


class LockList(ResponseBody):
    """A page of the locks that are held now, by key."""

    items: list[LockShown]
    next: str | None = Field(description="The `cursor` of the next page; null: there is none.")


class FamilyShown(ResponseBody):
    """A kind of lock that the plane uses."""

    family: str
    key: str
    scope: str
    ttl: float
    renew_every: float
    failures: int
    release: str
    acquire_timeout: float | None
    on_busy: str
    on_error: str
    used_by: str


class Inventory(ResponseBody):
    """Every kind of lock that the plane uses."""

    items: list[FamilyShown]


# Tenants.


class LimitTenant(RequestBody):
    """The limit of a tenant's jobs on workers."""

    slots: Annotated[int, Field(ge=0, le=SLOTS_MAX), AS_WHOLE] | None = Field(
        description="null: the default limit; 0: no job runs."
    )


class TenantShown(ResponseBody):
    """A tenant."""

    tenant: str
    running: int = Field(description="Jobs on workers.")
    slots: int | None = Field(description="The limit; null: unlimited.")
    own: bool = Field(description="Whether the limit is its own, and not the default.")

    @classmethod
    def of(cls, tenant: Tenant) -> TenantShown:
        """From the tenant."""
        return cls(tenant=tenant.name, running=tenant.running, slots=tenant.slots, own=tenant.own)


# Health.


class Alive(ResponseBody):
    """The process works."""

    status: str


class Ready(ResponseBody):
    """Every needed component answers."""

    status: str
    parts: dict[str, str]
