"""Jobs, dead letters, workflows and approvals in outline, as lists have them: all but what their users put into them.

Promises: an outline is small whatever its job was given and has made, so that a page of them is: labels, the largest
thing in it, have 20,000 bytes at most, and most have none. What is left out is not even read from the database. Of the
description of a workflow, and of the message of an approval, an outline has the beginning, by which people know it.
What a list has of the body of a workflow is kept beside it, so that nobody looks into that either. Outlines of runs are
in `runrows`.
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
