"""Ends a job with one write: the terminal state, the messages about it, and a dead letter where one is due.

Results, cancellations and time limits all end jobs this way, so that no end is without its message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.guards.bearer import CarriedFence
from holdfast.plane.jobs.rules import Code, End, Look
from holdfast.plane.jobs.store import Writing
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import WITH_WORKERS, JobState
from holdfast.plane.model.records import Change, Job, Message


def look_of(job: Job) -> Look:
    """The fields of a job that a decision needs."""
    taken_back = job.state is JobState.RETRYING and job.code == Code.TAKEN_BACK
    return Look(job.state, job.attempt, job.max_attempts, job.not_before_ns, job.deadline_ns, taken_back, job.queue)


def ending(
    job: Job,
    end: End,
    fence: CarriedFence,
    *,
    actor: str,
    result: Any = None,
    worker: str | None = None,
    run_fence: int | None = None,
) -> Writing:
    """End a job. A worker that has it is told to stop, unless it reported the end itself (`worker`)."""
    change = Change(
        end.state,
        reason=end.reason or None,
        code=None if end.code is None else str(end.code),
        result=result,
        worker=worker,
        run_fence=run_fence,
        actor=actor,
    )

    def tell(after: Job) -> Sequence[Message]:
        told = over(after, fence)
        if worker is None and job.worker is not None and job.state in WITH_WORKERS:
            told.append(stop_for(after, job.worker, job.attempt, job.run_fence, end.reason))
        return told

    # What a failed step means is decided, retried and shown by its run: it needs no dead letter of its own.
    return Writing([change], tell, dead=end.dead and subjects.RUN_LABEL not in job.labels)


def over(job: Job, fence: CarriedFence) -> list[Message]:
    """The messages about a finished job: to all subscribers, and to the run whose step it is."""
    told = [subjects.done(job, fence)]
    if subjects.RUN_LABEL in job.labels:
        told.append(subjects.step_over(job, fence))
    return told


def stop_for(job: Job, worker: str, attempt: int, run_fence: int | None, reason: str) -> Message:
    """Tell one worker to stop one attempt. Told again for another run of it, the message is another one."""
    message = subjects.stop(job, worker, reason)
    body = {**message.body, "attempt": attempt, "run_fence": run_fence}
    return replace(message, id=f"{subjects.STOP}:{job.id}:{attempt}:{worker}:{run_fence or 0}", body=body)
