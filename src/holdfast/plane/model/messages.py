"""Every message of the plane: its subject, its consumers, its body and its id; and the assignment, which is read back.

The id of a message names its cause. Submitting job 42 is one cause, however often it is published; dispatching its
second attempt is another cause than dispatching its first. So a bus may drop a message whose id it has seen.

The id of a job can be used again when the job was deleted. So a message about a job contains the creation time of the
job (`made_ns`; 0: unknown), and the id of the message contains that time, or a fence, which is never used twice. The
same holds for runs. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.errors import BadInput
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.model.job_states import JobQueue, JobState
from holdfast.plane.model.records import Job, Message, check_id, check_whole
from holdfast.types import check_label

EVERY_POOL: Final = "pools"
"""The channel that notifies dispatchers to read every pool."""

SUBMIT: Final = "job.submit"  # a job was accepted, or has to be decided again
STARTED: Final = "job.started"  # a worker has begun an attempt, under its lease
RESULT: Final = "job.result"  # a worker has finished an attempt
CANCEL: Final = "job.cancel"  # a caller requests the end of a job
DONE: Final = "job.done"  # the scheduler has written a terminal state: the only truth about results
WORK: Final = "work"  # work.<pool>.<topic>: attempts for the workers of a pool that serve the topic (`work_subject`)
STOP: Final = "stop"  # stop.<worker>: a worker should stop an attempt; lost ones do no harm, the lease ends it too

RUN_LOOK: Final = "run.look"  # the engine should advance a run: it is new, or a time of it has come
RUN_RESULT: Final = "run.result"  # a job of a run has ended, as the scheduler has written it
RUN_CHILD: Final = "run.child"  # a run that another run's step had started is over
RUN_CANCEL: Final = "run.cancel"  # a caller requests the end of a run
RUN_DONE: Final = "run.done"  # a run has ended

SCHEDULER: Final = "scheduler"
ENGINE: Final = "engine"
WORKERS: Final = "workers"

# Labels that the plane sets: on jobs of a run, and on jobs submitted to a given pool. Callers must not use such names.
OWN_LABELS: Final = "holdfast."
EMPTIED_LABEL: Final = "holdfast.emptied"  # what the job was about was forgotten (`cleanup_content`)
POOL_LABEL: Final = "holdfast.pool"  # the pool that was requested, and that the job therefore never leaves
RUN_LABEL: Final = "holdfast.run"
STEP_LABEL: Final = "holdfast.step"
PARENT_LABEL: Final = "holdfast.parent"  # the job, or the step RUN:STEP, whose function submitted the job
PARENT_MADE_LABEL: Final = "holdfast.parent-made"  # when that job was created; nanoseconds
RISK_LABEL: Final = "holdfast.risk"
ATTEMPTS_LABEL: Final = "holdfast.attempts"  # how many attempts the step may have, each of which is another job
REQUESTERS_LABEL: Final = "holdfast.requesters"  # JSON: who asked for what the job repeats

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    SUBMIT: (SCHEDULER,),
    STARTED: (SCHEDULER,),
    RESULT: (SCHEDULER,),
    CANCEL: (SCHEDULER,),
    DONE: (),  # consumers of results name themselves here; without any, nothing is kept
    RUN_LOOK: (ENGINE,),
    RUN_RESULT: (ENGINE,),
    RUN_CHILD: (ENGINE,),
    RUN_CANCEL: (ENGINE,),
    RUN_DONE: (),  # as for DONE
    WORK: (WORKERS,),
    STOP: (WORKERS,),
}


def groups_of(subject: str) -> tuple[str, ...]:
    """Who consumes a subject, by its first part for those that have a name behind it. Unknown: `KeyError`."""
    return GROUPS[subject] if subject in GROUPS else GROUPS[subject.partition(".")[0]]


def work_subject(pool: str, topic: str | None = None) -> str:
    """The queue of one topic of a pool, from which only workers that serve the topic take attempts.

    Without a topic: the shared queue of a pool, as older versions of Holdfast use it. All workers of the pool take
    from it, and give back attempts of topics that they do not serve. The name of a pool has no dots, so no queue of a
    topic has the name of a shared one.
    """
    return f"{WORK}.{pool}" if topic is None else f"{WORK}.{pool}.{topic}"


def stop_subject(worker: str) -> str:
    """Where one worker listens for attempts that it should stop."""
    return f"{STOP}.{worker}"


def submitted(job: str = "{job}", *, again: str = "{made_ns}") -> Message:
    """The scheduler should decide about a job. `again` names a repetition, so that it is not dropped as a duplicate.

    The first has the time when the job was made, which is filled in with its id (`jobs.rows.about`).
    """
    identity = f"{SUBMIT}:{job}:{again}"
    return Message(identity, SUBMIT, {"job": job}, key="" if job == "{job}" else job)


def dispatched(job: Job, fence: CarriedFence, *, by_topic: bool = True) -> Message:
    """An attempt, for any worker of the pool that serves its topic and is free.

    Not `by_topic`: it goes to the shared queue of the pool, because some of these workers know no other.
    """
    body = {
        "job": job.id,
        "made_ns": job.created_ns,
        "attempt": job.attempt,
        "topic": job.topic,
        "tenant": job.tenant,
        "payload": job.payload,
        "timeout_ns": job.timeout_ns,
        "deadline_ns": job.deadline_ns,
        "labels": dict(job.labels),
        "trace": job.trace,
        "at_ns": job.updated_ns,  # a worker that receives it much later checks whether it is still wanted
    }
    if job.queue is JobQueue.TOPIC:  # one of the workers has a slot of its topic for it (`quotas`)
        body["counted"] = True
    identity = f"{WORK}:{job.id}:{job.attempt}:{fence.fence}"
    subject = work_subject(job.pool, job.topic if by_topic else None)
    return Message(identity, subject, body, job.id, fence, job.priority)


def started(job: str, attempt: int, worker: str, run: CarriedFence, *, made_ns: int = 0) -> Message:
    """An attempt has begun."""
    body = {"job": job, "made_ns": made_ns, "attempt": attempt, "worker": worker}
    return Message(f"{STARTED}:{job}:{attempt}:{run.fence}", STARTED, body, job, run)


def finished(
    job: str, attempt: int, worker: str, run: CarriedFence, outcome: Mapping[str, Any], *, made_ns: int = 0
) -> Message:
    """An attempt has ended; `outcome`: see `AttemptEnd`, with `took_ns` and `traceback`."""
    body = {"job": job, "made_ns": made_ns, "attempt": attempt, "worker": worker, **outcome}
    return Message(f"{RESULT}:{job}:{attempt}:{run.fence}", RESULT, body, job, run)


def cancel(job: str, actor: str, reason: str, *, token: str, made_ns: int = 0) -> Message:
    """A caller requests the end of a job. `token` tells two requests apart."""
    body = {"job": job, "made_ns": made_ns, "actor": actor, "reason": reason}
    return Message(f"{CANCEL}:{job}:{token}", CANCEL, body, job)


def stop_step(job: str, run: str, tenant: str, reason: str, *, token: str) -> Message:
    """A run has no use for its job any more. A job of another run or tenant under this id is not meant."""
    asked = cancel(job, f"run {run}", reason, token=token)
    return replace(asked, body={**asked.body, "run": run, "tenant": tenant})


def cancel_child(child: str, parent: str, reason: str, *, token: str) -> Message:
    """The parent of a job was cancelled. A job of another parent under this id is not meant."""
    asked = cancel(child, f"job {parent}", reason, token=token)
    return replace(asked, body={**asked.body, "parent": parent})


def stop_child(child: str, run: str, tenant: str, reason: str, *, token: str) -> Message:
    """A run has no use any more for a run that it started. Other runs of this id are not meant."""
    asked = cancel_run(child, "", f"run {run}", reason, token=token)
    return replace(asked, body={**asked.body, "parent": run, "tenant": tenant})


def done(job: Job, fence: CarriedFence) -> Message:
    """A job has reached a terminal state."""
    body = {"job": job.id, "state": str(job.state), "attempt": job.attempt, "result": job.result, "reason": job.reason}
    return Message(f"{DONE}:{job.id}:{job.created_ns}:{job.version}", DONE, body, job.id, fence)


def stop(job: Job, worker: str, reason: str) -> Message:
    """The worker that runs an attempt should stop it."""
    body = {"job": job.id, "attempt": job.attempt, "reason": reason}
    return Message(f"{STOP}:{job.id}:{job.created_ns}:{job.attempt}:{job.version}", stop_subject(worker), body, job.id)


def look_at_run(run: str, risk: str, *, again: str = "", not_before_ns: int = 0) -> Message:
    """The engine should advance a run. `again` names a repetition, so that it is not dropped as a duplicate."""
    identity = f"{RUN_LOOK}:{run}:{again}" if again else f"{RUN_LOOK}:{run}"
    return Message(identity, RUN_LOOK, {"run": run, "risk": risk}, run, not_before_ns=not_before_ns)


def step_over(job: Job, fence: CarriedFence | None) -> Message:
    """A job that is a step of a run has reached a terminal state."""
    run = job.labels[RUN_LABEL]
    body = {
        "run": run,
        "risk": job.labels.get(RISK_LABEL, ""),
        "tenant": job.tenant,
        "job": job.id,
        "state": str(job.state),
        "result": job.result,
        "reason": job.reason,
        "code": job.code,
    }
    return Message(f"{RUN_RESULT}:{job.id}:{job.created_ns}:{job.version}", RUN_RESULT, body, run, fence)


def step_refused(
    run: str, risk: str, thing: str, reason: str, state: JobState = JobState.FAILED, *, made_ns: int
) -> Message:
    """An effect of a step is impossible (`FAILED`) or not allowed (`DENIED`). `made_ns`: when its run was made."""
    body = {"run": run, "risk": risk, "job": thing, "state": str(state), "reason": reason, "code": "refused"}
    return Message(f"{RUN_RESULT}:{thing}:refused:{made_ns}", RUN_RESULT, body, run)


def cancel_run(run: str, risk: str, actor: str, reason: str, *, token: str) -> Message:
    """A caller requests the end of a run. `token` tells two requests apart."""
    body = {"run": run, "risk": risk, "actor": actor, "reason": reason}
    return Message(f"{RUN_CANCEL}:{run}:{token}", RUN_CANCEL, body, run)


def child_over(parent: str, risk: str, child: str, status: str, reason: str | None, *, made_ns: int) -> Message:
    """A run that a step of `parent` has started is over. Its output is with it, and may be too long for a message.

    `made_ns`: when it was made; of one that could not be, when its parent was.
    """
    body = {"run": parent, "risk": risk, "child": child, "status": status, "reason": reason}
    return Message(f"{RUN_CHILD}:{child}:{made_ns}", RUN_CHILD, body, parent)


def run_done(run: str, tenant: str, workflow: str, status: str, version: int, *, made_ns: int) -> Message:
    """A run has ended. `made_ns`: when it was made."""
    body = {"run": run, "tenant": tenant, "workflow": workflow, "status": status}
    return Message(f"{RUN_DONE}:{run}:{made_ns}:{version}", RUN_DONE, body, run)


def step_attempt(job: str, labels: Mapping[str, str]) -> int | None:
    """Which attempt of its step a job of a run is, from its id; None: it is a job of its own."""
    begins = f"{labels.get(RUN_LABEL)}:{labels.get(STEP_LABEL)}@"
    number = job.removeprefix(begins)
    return int(number) if job.startswith(begins) and number.isdecimal() else None


def attempt_text(job: str, labels: Mapping[str, str], attempt: int, most: int, between: str = " of ") -> str:
    """`2 of 3` for people: attempts of the step, if the job is of one. Postponed starts count, but have no limit."""
    number, allowed = step_attempt(job, labels), labels.get(ATTEMPTS_LABEL, "")
    if number is not None and allowed.isdecimal():
        attempt, most = number, int(allowed)
    return f"{attempt}{between}{most}" if attempt <= most else str(attempt)


def requesters_label(names: Sequence[str]) -> dict[str, str]:
    """The label of a job that repeats what these callers asked for; no label without them."""
    return {REQUESTERS_LABEL: json.dumps(list(names))} if names else {}


def requesters_in(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The callers who asked for what a job with these labels repeats."""
    return tuple(json.loads(labels.get(REQUESTERS_LABEL, "[]")))


def pool_channel(pool: str) -> str:
    """The channel that notifies dispatchers when a slot of a pool may be free, or a worker has joined."""
    return f"pool:{pool}"


ENDED_JOBS: Final = "ended:jobs"
ENDED_RUNS: Final = "ended:runs"
"""Channels that are notified when jobs or runs have ended: clients wait for that."""


def own_key(job: str) -> str:
    """The idempotency key of a job of a run."""
    return f"wf:{job}"


_FAR = 1 << 63


@dataclass(slots=True, unsafe_hash=True)
class Assignment:
    """One attempt of one job, as a scheduler dispatches it to a worker. Receivers do not change it."""

    job: str
    attempt: int
    topic: str
    tenant: str
    payload: Any
    timeout_ns: int | None = None  # how long it may run
    deadline_ns: int | None = None  # wall clock
    labels: Mapping[str, str] = field(default_factory=dict)
    trace: str = ""
    at_ns: int = 0  # when it was dispatched; wall clock
    made_ns: int = 0  # creation time of its job: a later job may have the same id
    counted: bool = False  # a worker of the pool has a slot of its topic, as far as the scheduler knows
    fence: int | None = None  # of the job's lock when it was dispatched; dispatched again, it has a higher one

    @property
    def name(self) -> tuple[str, int, int]:
        """Identifies it among all attempts, also among those of an earlier job with the same id."""
        return self.job, self.made_ns, self.attempt


def assignment_of(message: Message) -> Assignment:
    """The assignment in a message, or `BadInput`: then no worker can read it."""
    body = message.body
    try:
        return Assignment(
            check_id("job", body["job"]),
            check_whole("attempt", body["attempt"], 0, _FAR),
            check_label("topic", body["topic"]),
            check_label("tenant", body["tenant"]),
            body["payload"],
            _time("timeout_ns", body.get("timeout_ns")),
            _time("deadline_ns", body.get("deadline_ns")),
            dict(body.get("labels") or {}),
            str(body.get("trace") or ""),
            check_whole("at_ns", body.get("at_ns", 0), 0, _FAR),
            check_whole("made_ns", body.get("made_ns", 0), 0, _FAR),
            bool(body.get("counted")),
            None if message.fence is None else message.fence.fence,
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            "message", f"{message.id} is not an attempt ({error!r})", "send what dispatched() makes"
        ) from None


def _time(name: str, value: object) -> int | None:
    return None if value is None else check_whole(name, value, -_FAR, _FAR)
