"""Inserts new jobs: one by one, or many in one transaction.

Promises: the same idempotency key of a tenant returns the first job, also to concurrent callers. A job and its messages
are one transaction. Concurrent submissions are inserted together; if one of these jobs exists already, each submission
is inserted on its own. A new job without a message is queued by its insert, and the dispatchers of its pool are
notified.

Clock: the wall clock, for people and for time limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.plane.db.ports import Bus, Tx
from holdfast.plane.db.statements import put_many, sql
from holdfast.plane.jobs.rows import about, event_values, job_of, values_of
from holdfast.plane.model.job_states import InvalidTransition, JobQueue, JobState, Move
from holdfast.plane.model.messages import pool_channel
from holdfast.plane.model.records import Change, Job, Message, Submission

_INSERT: Final = sql("job_insert")
_BY_KEY: Final = sql("job_by_key")
_GET: Final = sql("job_get")
_EVENT: Final = sql("event_insert")

# What a new row has that is not said when it is made.
_BLANK: Final = dict.fromkeys(("run_fence", "worker", "result", "reason", "code"))


class CheckedSubmission(NamedTuple):
    """A checked submission, the pool and queue of its job, and the messages about it."""

    wanted: Submission
    pool: str
    messages: Sequence[Message] = ()
    queue: JobQueue = JobQueue.POOL  # that it waits in when it is due


class New(NamedTuple):
    """A job to insert."""

    wanted: Submission
    identity: str
    values: Mapping[str, Any]
    messages: Sequence[Message]

    @property
    def in_line(self) -> bool:
        """Whether the insert queues the job, without a message about it."""
        return not self.messages and self.values["state"] == JobState.PENDING

    def job(self) -> Job:
        """The job as its row will be."""
        return job_of({**_BLANK, **self.values})

    def notify(self, tx: Tx) -> None:
        """Notify the dispatchers of its pool if the insert queued it."""
        if self.in_line:
            tx.notify(pool_channel(self.values["pool"]))


def new_job(entry: CheckedSubmission, identity: str, now_ns: int, state: JobState) -> New:
    """The rows of a submission that was checked."""
    values = {**values_of(entry.wanted, identity, entry.pool, now_ns), "state": str(state)}
    if not values["not_before_ns"]:
        values["queue"] = str(entry.queue)
    return New(entry.wanted, identity, values, entry.messages)


async def submit_one(tx: Tx, bus: Bus, new: New) -> tuple[Job, bool]:
    """Insert a job, or find the one that exists; also returns whether it was inserted."""
    wanted = new.wanted
    if wanted.idempotency_key is not None:
        known = await tx.query(_BY_KEY, {"tenant": wanted.tenant, "idempotency_key": wanted.idempotency_key})
        if known:
            return job_of(known[0]), False
    made = await tx.query(_INSERT, new.values)
    if not made:
        return await _known(tx, wanted, new.identity), False
    job = job_of(made[0])
    await tx.query(_EVENT, first_event(job))
    await bus.stage(tx, [about(message, new.identity, job.created_ns) for message in new.messages])
    new.notify(tx)
    return job, True


async def submit_many(tx: Tx, bus: Bus, news: Sequence[New]) -> list[tuple[Job, bool]]:
    """Insert jobs that are all new. `RowExists`: one is not, and nothing was inserted."""
    await put_many(tx, "job_make", [new.values for new in news])
    jobs = [new.job() for new in news]
    await put_many(tx, "event_insert", [first_event(job) for job in jobs])
    told = [about(each, job.id, job.created_ns) for job, new in zip(jobs, news, strict=True) for each in new.messages]
    await bus.stage(tx, told)
    for new in news:
        new.notify(tx)
    return [(job, True) for job in jobs]


async def _known(tx: Tx, wanted: Submission, identity: str) -> Job:
    """The job that conflicts with an insert: it has the same idempotency key, or the same id."""
    if wanted.idempotency_key is not None:
        known = await tx.query(_BY_KEY, {"tenant": wanted.tenant, "idempotency_key": wanted.idempotency_key})
        if known:
            return job_of(known[0])
    there = await tx.query(_GET, {"id": identity})
    if there and there[0]["tenant"] == wanted.tenant:
        return job_of(there[0])
    raise InvalidTransition(JobState(there[0]["state"]) if there else None, JobState.PENDING)


def first_event(job: Job) -> Mapping[str, Any]:
    """The first line of the history of a new job."""
    change = Change(job.state, actor=job.submitted_by or "api")
    return event_values(job, 0, Move(None, job.state, 0, ends=False), None, change)
