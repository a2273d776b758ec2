"""Outlines of jobs and dead letters, as lists contain them: without payloads, results and bodies.

Promises: an outline is small whatever the payload and result of its job are, and so is a page of them. Labels, the
largest field, have at most 20,000 bytes, and most jobs have none. Lists do not read the omitted columns from the
database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.plane.db.ports import Row
from holdfast.plane.jobs.rows import value_of
from holdfast.plane.model.job_states import JobState


@dataclass(frozen=True, slots=True)
class JobOutline:
    """A job without its payload and result. See `model.Job`."""

    id: str
    tenant: str
    topic: str
    pool: str
    state: JobState
    priority: int
    attempt: int
    max_attempts: int
    created_ns: int
    updated_ns: int
    version: int
    fence: int | None
    run_fence: int | None
    worker: str | None
    reason: str | None
    code: str | None
    idempotency_key: str | None
    timeout_ns: int | None
    deadline_ns: int | None
    not_before_ns: int
    submitted_by: str
    trace: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LetterOutline:
    """A dead letter without its body. See `model.DeadLetter`."""

    id: str
    job: str
    tenant: str
    topic: str
    reason: str
    code: str
    last_state: JobState | None
    attempts: int
    at_ns: int
    retried_as: str | None


def outline_of(row: Row) -> JobOutline:
    """From a row to the outline of a job."""
    return JobOutline(
        id=row["id"],
        tenant=row["tenant"],
        topic=row["topic"],
        pool=row["pool"],
        state=JobState(row["state"]),
        priority=row["priority"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        created_ns=row["created_ns"],
        updated_ns=row["updated_ns"],
        version=row["version"],
        fence=row["holdfast_fence"],
        run_fence=row["run_fence"],
        worker=row["worker"],
        reason=row["reason"],
        code=row["code"],
        idempotency_key=row["idempotency_key"],
        timeout_ns=row["timeout_ns"],
        deadline_ns=row["deadline_ns"],
        not_before_ns=row["not_before_ns"],
        submitted_by=row["submitted_by"],
        trace=row["trace"],
        labels=value_of(row["labels"]),
    )


def letter_outline_of(row: Row) -> LetterOutline:
    """From a row to the outline of a dead letter."""
    return LetterOutline(
        id=row["id"],
        job=row["job"],
        tenant=row["tenant"],
        topic=row["topic"],
        reason=row["reason"],
        code=row["code"],
        last_state=None if row["last_state"] is None else JobState(row["last_state"]),
        attempts=row["attempts"],
        at_ns=row["at_ns"],
        retried_as=row["retried_as"],
    )
