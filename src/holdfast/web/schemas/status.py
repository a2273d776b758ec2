"""Responses for observers of a plane. See `jobs`.

A status is complete, or contains the changes since the one before. Then an omitted section is unchanged, and a list
contains new and changed lines, and the names of removed ones. An omitted field of a line is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, Generic, TypeVar

from pydantic import Field, StringConstraints

from holdfast.leases.inspection import Inspection
from holdfast.plane.jobs.summaries import LetterOutline
from holdfast.plane.locks.registry import LockFamily, Scope
from holdfast.plane.service.service import StoredDocument, WorkerStatus
from holdfast.plane.service.status import SPAN_NS, EndedJobs, StatusEntry
from holdfast.types import NS
from holdfast.web.schemas.jobs import Given, QueryFilter, ResponseBody, StateName, moment

T = TypeVar("T", bound=ResponseBody)

REASON_CHARS: Final = 200
"""The part of a reason in a line. The job, or the dead letter, has all of it."""


class StatusFilter(QueryFilter):
    """The last status that the observer has."""

    after: Given[Annotated[str, StringConstraints(pattern=r"^[0-9a-z.]+$", max_length=64)]] = Field(
        default=None,
        description="The `mark` of the last status: the response waits for the next one, and contains the changes.",
    )


class JobLine(ResponseBody):
    """A job in a list."""

    id: str
    tenant: str
    topic: str
    pool: str
    state: StateName
    attempt: int
    max_attempts: int
    created_at: datetime
    updated_at: datetime
    version: int
    worker: Given[str] = None
    fence: Given[int] = Field(default=None, description="Of the scheduler's lease of the last write.")
    run_fence: Given[int] = Field(default=None, description="Of the worker's lease under which it runs or ran.")
    reason: Given[str] = Field(default=None, description="Why it is in this state; cut if it is long.")
    fraction: Given[float] = Field(default=None, description="The part of the work that its function reports as done.")
    note: Given[str] = Field(default=None, description="The current activity that its function reports.")

    @classmethod
    def of(cls, brief: StatusEntry) -> JobLine:
        """From the entry."""
        return cls(
            id=brief.id,
            tenant=brief.tenant,
            topic=brief.topic,
            pool=brief.pool,
            state=brief.state,
            attempt=brief.attempt,
            max_attempts=brief.max_attempts,
            created_at=moment(brief.created_ns),
            updated_at=moment(brief.updated_ns),
            version=brief.version,
            worker=brief.worker,
            fence=brief.fence,
            run_fence=brief.run_fence,
            reason=None if brief.reason is None else brief.reason[:REASON_CHARS],
            fraction=brief.fraction,
            note=brief.note,
        )


class LetterLine(ResponseBody):
    """A dead letter in a list."""

    id: str
    job: str
    tenant: str
    topic: str
    reason: str
    code: str
    attempts: int
    at: datetime
    retried_as: Given[str] = None

    @classmethod
    def of(cls, letter: LetterOutline) -> LetterLine:
        """From the outline."""
        return cls(
            id=letter.id,
            job=letter.job,
            tenant=letter.tenant,
            topic=letter.topic,
            reason=letter.reason[:REASON_CHARS],
            code=letter.code,
            attempts=letter.attempts,
            at=moment(letter.at_ns),
            retried_as=letter.retried_as,
        )


class WorkerLine(ResponseBody):
    """A worker in a list."""

    worker: str
    pool: str
    topics: list[str]
    capacity: int
    active: int
    draining: bool
    alive: bool
    heard_at: datetime

    @classmethod
    def of(cls, worker: WorkerStatus) -> WorkerLine:
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
        )


class LockLine(ResponseBody):
    """A lock in a list, without its token."""

    key: str
    family: Given[str] = None
    loop: bool = Field(description="Whether its holder leads a background loop.")
    job: Given[str] = Field(default=None, description="The locked job.")
    holder: Given[str] = None
    fence: Given[int] = None
    since: Given[datetime] = None
    expires_at: Given[datetime] = Field(default=None, description="Unless it is renewed.")
    waiters: int

    @classmethod
    def of(cls, seen: Inspection, now_ns: int, families: Mapping[str, LockFamily]) -> LockLine:
        """From the inspection."""
        family = families.get(seen.family or "")
        left_ns = None if seen.remaining is None else round(seen.remaining * NS)
        return cls(
            key=seen.key,
            family=seen.family,
            loop=family is not None and family.scope is Scope.LOOP,
            job=None if family is None or family.places != ("job",) else seen.key.removeprefix(family.key(job="")),
            holder=seen.owner,
            fence=seen.fence,
            since=seen.since,
            expires_at=None if left_ns is None else moment(now_ns + left_ns),
            waiters=seen.waiters,
        )


class SnapshotLine(ResponseBody):
    """The writer and the time of the worker snapshot."""

    writer: str
    at: datetime
    fence: Given[int] = None

    @classmethod
    def of(cls, document: StoredDocument) -> SnapshotLine:
        """From the document."""
        return cls(writer=document.writer, at=moment(document.at_ns), fence=document.fence)


class EndsShown(ResponseBody):
    """The number of jobs that ended in each span of the last minutes, oldest first; the last span is incomplete."""

    span: float = Field(description="Seconds.")
    succeeded: list[int]
    otherwise: list[int]
    per_second: float = Field(description="In the last minute.")

    @classmethod
    def of(cls, ends: EndedJobs) -> EndsShown:
        """From the counts."""
        return cls(
            span=SPAN_NS / NS,
            succeeded=list(ends.succeeded),
            otherwise=list(ends.otherwise),
            per_second=round(ends.per_second, 3),
        )


class Lines(ResponseBody, Generic[T]):
    """Lines of a list: all, or new and changed ones."""

    items: list[T]
    gone: list[str] = Field(description="The names of removed lines.")


class LoopShown(ResponseBody):
    """A background loop that one replica leads."""

    family: str
    key: str


class StatusShown(ResponseBody):
    """The status of the plane, or its changes."""

    mark: str = Field(description="For `after`.")
    whole: bool = Field(description="Whether it is complete, or contains only changes.")
    at: datetime
    every: float = Field(description="Seconds between two responses.")
    tenant: Given[str] = Field(default=None, description="The only tenant that is shown. Such callers see no locks.")
    parts: dict[str, str] = Field(description="For each needed component: `ok`, or its problem.")
    counts: Given[dict[StateName, int]] = Field(
        default=None, description="The number of jobs in each state; finished ones may not be counted yet."
    )
    retried: Given[int] = Field(
        default=None,
        description="How many failed and timed out jobs are attempts of workflow steps that allow more attempts.",
    )
    counted_at: Given[datetime] = Field(default=None, description="When finished jobs were counted.")
    ended: Given[EndsShown] = None
    dead: Given[int] = Field(default=None, description="The number of dead letters that were not retried.")
    jobs: Given[Lines[JobLine]] = Field(
        default=None, description="The newest, the unfinished ones, and the latest dead ones."
    )
    letters: Given[Lines[LetterLine]] = Field(default=None, description="The newest.")
    workers: Given[Lines[WorkerLine]] = None
    snapshot: Given[SnapshotLine] = None
    loops: Given[list[LoopShown]] = None
    locks: Given[Lines[LockLine]] = None
    locks_left_out: Given[bool] = Field(default=None, description="Whether more are held than listed.")
