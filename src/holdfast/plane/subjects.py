"""Every message of the plane: its subject, who consumes it, what it says, and the id under which it is one message.

An id names the cause: submitting job 42 is one cause however often it is published; dispatching its second attempt is
another than dispatching its first. So a bus may drop what it has seen under an id, and never drops what is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.guards.bearer import CarriedFence
from holdfast.plane.model import Job, Message

SUBMIT: Final = "job.submit"  # a job was accepted, or is to be looked at again
STARTED: Final = "job.started"  # a worker has begun an attempt, under its lease
RESULT: Final = "job.result"  # a worker has finished an attempt
CANCEL: Final = "job.cancel"  # somebody wants a job to end
DONE: Final = "job.done"  # the scheduler has written a terminal state: the only truth about results
WORK: Final = "work"  # work.<pool>: attempts for the workers of a pool
STOP: Final = "stop"  # stop.<worker>: a worker should stop an attempt; lost ones do no harm, the lease ends it too

SCHEDULER: Final = "scheduler"
WORKERS: Final = "workers"

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    SUBMIT: (SCHEDULER,),
    STARTED: (SCHEDULER,),
    RESULT: (SCHEDULER,),
    CANCEL: (SCHEDULER,),
    DONE: (),  # consumers of results name themselves here; without any, nothing is kept
    WORK: (WORKERS,),
    STOP: (WORKERS,),
}


def groups_of(subject: str) -> tuple[str, ...]:
    """Who consumes a subject, by its first part for those that have a name behind it. Unknown: `KeyError`."""
    return GROUPS[subject] if subject in GROUPS else GROUPS[subject.partition(".")[0]]


def work_subject(pool: str) -> str:
    """Where the workers of a pool listen."""
    return f"{WORK}.{pool}"


def stop_subject(worker: str) -> str:
    """Where one worker listens for attempts that it should stop."""
    return f"{STOP}.{worker}"


def submitted(job: str = "{job}", *, again: str = "") -> Message:
    """A job is to be looked at. `again` names the occasion of a second look, so that it is not taken for the first."""
    identity = f"{SUBMIT}:{job}:{again}" if again else f"{SUBMIT}:{job}"
    return Message(identity, SUBMIT, {"job": job}, key="" if job == "{job}" else job)


def dispatched(job: Job, fence: CarriedFence) -> Message:
    """An attempt, for whichever worker of the pool is free."""
    body = {
        "job": job.id,
        "attempt": job.attempt,
        "topic": job.topic,
        "tenant": job.tenant,
        "payload": job.payload,
        "timeout_ns": job.timeout_ns,
        "deadline_ns": job.deadline_ns,
        "labels": dict(job.labels),
        "trace": job.trace,
    }
    identity = f"{WORK}:{job.id}:{job.attempt}:{fence.fence}"
    return Message(identity, work_subject(job.pool), body, job.id, fence, job.priority)


def started(job: str, attempt: int, worker: str, run: CarriedFence) -> Message:
    """An attempt has begun."""
    body = {"job": job, "attempt": attempt, "worker": worker}
    return Message(f"{STARTED}:{job}:{attempt}:{run.fence}", STARTED, body, job, run)


def finished(job: str, attempt: int, worker: str, run: CarriedFence, outcome: Mapping[str, Any]) -> Message:
    """An attempt has ended: `outcome` says how (`status`, `result`, `error`, `retryable`, `retry_after_ns`)."""
    body = {"job": job, "attempt": attempt, "worker": worker, **outcome}
    return Message(f"{RESULT}:{job}:{attempt}:{run.fence}", RESULT, body, job, run)


def cancel(job: str, actor: str, reason: str, *, token: str) -> Message:
    """Somebody wants a job to end. `token` tells two requests apart."""
    return Message(f"{CANCEL}:{job}:{token}", CANCEL, {"job": job, "actor": actor, "reason": reason}, job)


def done(job: Job, fence: CarriedFence) -> Message:
    """A job has reached a terminal state."""
    body = {"job": job.id, "state": str(job.state), "attempt": job.attempt, "result": job.result, "reason": job.reason}
    return Message(f"{DONE}:{job.id}:{job.version}", DONE, body, job.id, fence)


def stop(job: Job, worker: str, reason: str) -> Message:
    """The worker that runs an attempt should stop it."""
    body = {"job": job.id, "attempt": job.attempt, "reason": reason}
    return Message(f"{STOP}:{job.id}:{job.attempt}:{job.version}", stop_subject(worker), body, job.id)
