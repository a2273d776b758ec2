"""Jobs, events and dead letters as rows, and back: which column says what. No decisions; no I/O but the SQL files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from holdfast.plane.db.ports import Row
from holdfast.plane.model.job_states import JobQueue, JobState, Move
from holdfast.plane.model.records import Change, DeadLetter, Job, JobEvent, Message, Submission, encoded


def job_of(row: Row) -> Job:
    """From a row to a job."""
    return Job(
        id=row["id"],
        tenant=row["tenant"],
        topic=row["topic"],
        pool=row["pool"],
        state=JobState(row["state"]),
        priority=row["priority"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        payload=value_of(row["payload"]),
        created_ns=row["created_ns"],
        updated_ns=row["updated_ns"],
        version=row["version"],
        fence=row["holdfast_fence"],
        run_fence=row["run_fence"],
        worker=row["worker"],
        result=value_of(row["result"]),
        reason=row["reason"],
        code=row["code"],
        idempotency_key=row["idempotency_key"],
        timeout_ns=row["timeout_ns"],
        deadline_ns=row["deadline_ns"],
        not_before_ns=row["not_before_ns"],
        submitted_by=row["submitted_by"],
        trace=row["trace"],
        labels=value_of(row["labels"]),
        queue=JobQueue(row["queue"]),
    )


def value_of(text: str | None) -> Any:
    """From JSON. What most rows have is known without reading."""
    if text is None or text == "null":
        return None
    return {} if text == "{}" else json.loads(text)


def event_of(row: Row) -> JobEvent:
    """From a row to a line of history."""
    return JobEvent(
        row["job"],
        row["version"],
        row["at_ns"],
        None if row["before"] is None else JobState(row["before"]),
        JobState(row["after"]),
        row["attempt"],
        row["fence"],
        row["actor"],
        row["reason"],
        row["traceback"],
    )


def letter_of(row: Row) -> DeadLetter:
    """From a row to a dead letter."""
    return DeadLetter(
        id=row["id"],
        job=row["job"],
        tenant=row["tenant"],
        topic=row["topic"],
        reason=row["reason"],
        code=row["code"],
        last_state=None if row["last_state"] is None else JobState(row["last_state"]),
        attempts=row["attempts"],
        at_ns=row["at_ns"],
        body=json.loads(row["body"]),
        retried_as=row["retried_as"],
        made_ns=row["made_ns"],
    )


def values_of(wanted: Submission, identity: str, pool: str, now_ns: int) -> dict[str, Any]:
    """The columns of a new job. A job that is due waits in the queue of its pool."""
    not_before_ns = wanted.not_before_ns if wanted.not_before_ns > now_ns else 0
    return {
        "id": identity,
        "tenant": wanted.tenant,
        "topic": wanted.topic,
        "pool": pool,
        "state": str(JobState.PENDING),
        "priority": wanted.priority,
        "attempt": 0,
        "max_attempts": wanted.max_attempts,
        "version": 1,
        "holdfast_fence": None,
        "payload": encoded("payload", wanted.payload),
        "now_ns": now_ns,
        "created_ns": now_ns,
        "updated_ns": now_ns,
        "idempotency_key": wanted.idempotency_key,
        "timeout_ns": wanted.timeout_ns,
        "deadline_ns": wanted.deadline_ns,
        "not_before_ns": not_before_ns,
        "queue": str(queue_at(not_before_ns)),
        "submitted_by": wanted.submitted_by,
        "trace": wanted.trace,
        "labels": encoded("labels", dict(wanted.labels)),
    }


def applied(job: Job, changes: Sequence[Change], last: Move, fence: int, now_ns: int) -> dict[str, Any]:
    """The columns after all changes: what the last one says of each, else what is there."""
    reason, code, result = None, None, None
    worker, run_fence, pool = job.worker, job.run_fence, job.pool
    not_before_ns, queue = job.not_before_ns, job.queue
    for change in changes:
        reason = reason if change.reason is None else change.reason
        code = code if change.code is None else change.code
        result = result if change.result is None else change.result
        worker = worker if change.worker is None else change.worker
        run_fence = run_fence if change.run_fence is None else change.run_fence
        not_before_ns, queue = requeued(not_before_ns, queue, change)
        pool = pool if change.pool is None else change.pool
    kept = job.result if result is None else result
    return {
        "id": job.id,
        "fence": fence,
        "version": job.version,
        "state": str(last.after),
        "after": last.after,
        "attempt": last.attempt,
        "now_ns": now_ns,
        "reason": reason,
        "code": code,
        "result": "null" if kept is None else encoded("result", kept),
        "result_kept": result is None,
        "worker": worker,
        "run_fence": run_fence,
        "not_before_ns": not_before_ns,
        "queue": str(JobQueue.POOL if last.after.terminal and queue is JobQueue.TOPIC else queue),
        "pool": pool,
        "deadline_ns": None if last.after.terminal else job.deadline_ns,
    }


class Requeue(Protocol):
    """A change that may move a job to another queue."""

    not_before_ns: int | None
    queue: JobQueue | None


def queue_at(not_before_ns: int) -> JobQueue:
    """The queue of a job with that due time; 0: it is due."""
    return JobQueue.DELAYED if not_before_ns else JobQueue.POOL


def requeued(not_before_ns: int, queue: JobQueue, change: Requeue) -> tuple[int, JobQueue]:
    """Due time and queue after a change."""
    if change.queue is not None:
        return 0, change.queue
    if change.not_before_ns is not None:
        return change.not_before_ns, queue_at(change.not_before_ns)
    return not_before_ns, queue


def event_values(job: Job, step: int, made: Move, fence: int | None, change: Change) -> Mapping[str, Any]:
    """The columns of one line of history, for a job as it is after the move."""
    return {
        "job": job.id,
        "version": job.version,
        "step": step,
        "at_ns": job.updated_ns,
        "before": None if made.before is None else str(made.before),
        "after": str(made.after),
        "attempt": made.attempt,
        "fence": fence,
        "actor": change.actor,
        "reason": change.reason,
        "traceback": change.traceback,
    }


def letter_values(before: Job, after: Job) -> dict[str, Any]:
    """The columns of the dead letter of a job that has ended. It has everything that another try needs."""
    body = {
        "payload": after.payload,
        "priority": after.priority,
        "max_attempts": after.max_attempts,
        "timeout_ns": after.timeout_ns,
        "pool": after.pool,
        "labels": dict(after.labels),
        "trace": after.trace,
        "submitted_by": after.submitted_by,
    }
    return {
        "id": after.id,
        "job": after.id,
        "tenant": after.tenant,
        "topic": after.topic,
        "reason": after.reason or "",
        "code": after.code or "",
        "last_state": str(before.state),
        "attempts": after.attempt,
        "at_ns": after.updated_ns,
        "made_ns": after.created_ns,
        # Not `encoded`: the payload was checked when it came in, and its wrapping must not make it too long.
        "body": json.dumps(body, separators=(",", ":"), ensure_ascii=False),
    }


def about(message: Message, job_id: str, made_ns: int) -> Message:
    """Fill in the id of a job that did not have one when its messages were written, and when it was made."""
    return Message(
        message.id.format(job=job_id, made_ns=made_ns),
        message.subject,
        {**message.body, "job": job_id},
        message.key or job_id,
        message.fence,
        message.priority,
        message.not_before_ns,
    )
