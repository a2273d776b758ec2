"""Why a job waits: one reason, with a code for programs and a sentence for people. Pure.

Promises: a job that is not running and not finished has exactly one reason; every other job has none. The reason is the
first condition that has to change before the job can start. It says nothing about how long that takes.

Times are nanoseconds of the wall clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from holdfast.plane.model.job_states import JobState
from holdfast.types import NS


class WaitCode(StrEnum):
    """What a job waits for."""

    APPROVAL = "approval"
    NOT_DUE = "not_due"  # it was submitted for later
    RETRY = "retry"  # another attempt has its time
    NO_WORKER = "no_worker"  # no worker has ever announced its topic
    WORKERS_GONE = "workers_gone"  # workers have served its topic, and none of them is alive
    WORKERS_DRAINING = "workers_draining"  # those that serve its topic take no more jobs
    WORKERS_BLOCKED = "workers_blocked"  # their slots are taken by functions that do not stop
    OTHER_POOL = "other_pool"  # its pool was chosen at submission, and only other pools serve its topic
    TENANT_FULL = "tenant_full"
    TOPIC_FULL = "topic_full"
    POOL_FULL = "pool_full"
    QUEUED = "queued"  # nothing is in its way: it is dispatched next, or jobs before it are
    ASSIGNED = "assigned"  # it was sent to workers, and none of them has reported its start


UNSERVED = frozenset(
    {
        WaitCode.NO_WORKER,
        WaitCode.WORKERS_GONE,
        WaitCode.WORKERS_DRAINING,
        WaitCode.WORKERS_BLOCKED,
        WaitCode.OTHER_POOL,
    }
)
"""No live worker takes the job."""


class WaitReason(NamedTuple):
    """Why a job waits."""

    code: WaitCode
    text: str


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """What is known of a job and of those who could run it."""

    state: JobState
    topic: str
    pool: str
    tenant: str
    now_ns: int
    not_before_ns: int = 0
    attempt: int = 0
    takers: int = 0  # live workers of the pool that take its topic
    draining: int = 0  # live workers of the pool that serve it, and take no more jobs
    blocked: int = 0  # live workers of the pool that serve it, and have no slot that works
    last_served_ns: int | None = None  # when a worker that serves the topic was last heard of
    served_by: Sequence[str] = ()  # other pools in which live workers take the topic
    pool_used: int = 0
    pool_slots: int = 0
    topic_used: int = 0
    topic_slots: int | None = None  # None: as many as the pool
    tenant_used: int = 0
    tenant_slots: int | None = None  # None: any number


def waiting_reason(facts: WaitFacts) -> WaitReason | None:
    """Why the job waits; None: it runs, or is finished."""
    state = facts.state
    if state.terminal or state is JobState.RUNNING:
        return None
    if state is JobState.APPROVAL_REQUIRED:
        return WaitReason(WaitCode.APPROVAL, "it waits for the decision of a person")
    if state in (JobState.PENDING, JobState.RETRYING) and facts.not_before_ns > facts.now_ns:
        moment = _moment(facts.not_before_ns)
        if state is JobState.RETRYING:
            return WaitReason(WaitCode.RETRY, f"it is tried again at {moment}")
        return WaitReason(WaitCode.NOT_DUE, f"it was submitted to start at {moment} or later")
    if not facts.takers:
        return _unserved(facts)
    if state in (JobState.SCHEDULED, JobState.DISPATCHED):
        return WaitReason(WaitCode.ASSIGNED, "it was sent to the workers; none has reported its start")
    return _queued(facts)


def _unserved(facts: WaitFacts) -> WaitReason:
    topic, pool = facts.topic, facts.pool
    if facts.draining:
        text = f"all workers of pool {pool} that serve topic {topic} are ending and take no more jobs"
        return WaitReason(WaitCode.WORKERS_DRAINING, text)
    if facts.blocked:
        text = f"functions that do not stop block all slots of the workers of pool {pool} that serve topic {topic}"
        return WaitReason(WaitCode.WORKERS_BLOCKED, text)
    if facts.served_by:
        where = ", ".join(sorted(facts.served_by))
        return WaitReason(WaitCode.OTHER_POOL, f"no worker of pool {pool} serves topic {topic}; pool {where} does")
    if facts.last_served_ns is None:
        return WaitReason(WaitCode.NO_WORKER, f"no worker serves topic {topic}, and none has announced it so far")
    since = _moment(facts.last_served_ns)
    return WaitReason(WaitCode.WORKERS_GONE, f"no worker serves topic {topic}; the last one was heard of at {since}")


def _queued(facts: WaitFacts) -> WaitReason:
    if facts.tenant_slots is not None and facts.tenant_used >= facts.tenant_slots:
        used = f"{facts.tenant_used} of {facts.tenant_slots}"
        text = f"tenant {facts.tenant} has {used} jobs with workers"
        return WaitReason(WaitCode.TENANT_FULL, text)
    if facts.topic_slots is not None and facts.topic_used >= facts.topic_slots:
        used = f"{facts.topic_used} of {facts.topic_slots}"
        return WaitReason(WaitCode.TOPIC_FULL, f"{used} slots for topic {facts.topic} in pool {facts.pool} are used")
    if facts.pool_used >= facts.pool_slots:
        used = f"{facts.pool_used} of {facts.pool_slots}"
        return WaitReason(WaitCode.POOL_FULL, f"{used} slots of pool {facts.pool} are used")
    return WaitReason(WaitCode.QUEUED, f"it is in the queue of pool {facts.pool}, and is dispatched in its turn")


def _moment(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / NS, UTC).isoformat(timespec="seconds")
