"""What the scheduler does with a job that it looks at, and with the result of an attempt. Pure: no clock, no chance.

Promises: a job that is with a worker or over is left alone; every other job is dispatched, sent away for a definite
time, or ended with a reason that people and programs can read. Nothing is retried for ever: attempts and the deadline
bound it. Times are nanoseconds of the wall clock, for time limits only.

Whether what a worker says about an attempt still counts. Pure.

A worker reports under the fence of its own lease. A report counts if it is about the current attempt and no worker with
a newer fence has reported on it. A worker that was paused and resumes after another has started is refused. So is one
that resumes after its job was deleted, even if another job has the same id now.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from holdfast.core.lease.fencing import accepts
from holdfast.plane.model.job_states import JobQueue, JobState
from holdfast.types import MS, NS

NO_WORKER_SPREAD_NS = 500 * MS
ELSEWHERE_BASE_NS = 250 * MS
ELSEWHERE_MAX_NS = 8 * NS
ELSEWHERE_WRITES = 2  # of a job, from one worker that cannot take it to the next
POSTPONED_MAX = 1_000
"""How often a job may postpone itself (`RetryLater`) without consuming an attempt."""
POSTPONED = "postponed: "
"""How the reason of such an attempt begins, in the history of its job."""


class Code(StrEnum):
    """Why a job ended or waits, for programs."""

    UNKNOWN_TOPIC = "unknown_topic"
    DEADLINE = "deadline"
    MAX_ATTEMPTS = "max_attempts"
    NO_WORKER = "no_worker"
    NOT_YET = "not_yet"
    WORKER_ERROR = "worker_error"
    POSTPONED = "postponed"
    FATAL = "fatal"
    STATE_TIMEOUT = "state_timeout"
    CANCELLED = "cancelled"
    TAKEN_BACK = "taken_back"
    LOST = "lost"
    OUTPUT_QUARANTINED = "output_quarantined"


@dataclass(slots=True, unsafe_hash=True)
class Look:
    """What a decision needs to know of a job."""

    state: JobState
    attempt: int
    max_attempts: int
    not_before_ns: int
    deadline_ns: int | None
    taken_back: bool = False  # it was with workers, none of whom has begun it, and waits again
    queue: JobQueue = JobQueue.POOL


@dataclass(frozen=True, slots=True)
class Nothing:
    """Leave it alone."""

    why: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Hand it to the workers of its pool."""


@dataclass(frozen=True, slots=True)
class Later:
    """Not now: look again after this time, or when what it waits for is there. 0: no time is known."""

    delay_ns: int
    code: Code
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """It is over. `dead`: a person should see it."""

    state: JobState
    code: Code | None
    reason: str
    dead: bool


Decision: TypeAlias = Nothing | Dispatch | Later | End


def decide(job: Look, *, now_ns: int, known_topic: bool, live_workers: int) -> Decision:
    """What to do with a job that is to be scheduled.

    `known_topic`: a worker has announced its topic, or the job may wait for one that does. `live_workers`: those that
    serve the topic.
    """
    if job.state.terminal:
        return Nothing("it is over")
    if job.state in (JobState.DISPATCHED, JobState.RUNNING):
        return Nothing("it is with a worker")
    if job.state is JobState.APPROVAL_REQUIRED:
        return Nothing("it waits for a person")
    if job.deadline_ns is not None and now_ns >= job.deadline_ns:
        return End(JobState.TIMEOUT, Code.DEADLINE, "timeout: deadline expired", dead=False)
    if not known_topic:
        return End(JobState.FAILED, Code.UNKNOWN_TOPIC, "no worker has ever announced this topic", dead=True)
    # RETRYING: the end of the last attempt has allowed another, and knows how many of them were postponed.
    if job.attempt >= job.max_attempts and job.state is not JobState.RETRYING:
        return End(JobState.FAILED, Code.MAX_ATTEMPTS, f"{job.attempt} attempts were made", dead=True)
    if job.not_before_ns > now_ns:
        return Later(job.not_before_ns - now_ns, Code.NOT_YET, "it is not due yet")
    if live_workers <= 0:
        return Later(0, Code.NO_WORKER, "no live worker serves its topic")
    return Dispatch()


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended, as its worker says."""

    ok: bool
    error: str | None = None
    retryable: bool = True
    retry_after_ns: int | None = None  # the function has postponed itself by this much
    begun: bool = True  # if not, the worker could not take it, and others may
    lost: bool = False  # too many workers have begun it and were not heard of again: it was not begun once more
    quarantined: bool = False  # the work was done, and its output must not be used


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt is due after this time."""

    delay_ns: int
    reason: str
    taken_back: bool = False  # this one was none
    postponed: bool = False  # this one asked for the delay, and does not count


def after_attempt(job: Look, ended: Ended, *, now_ns: int, backoff_ns: int, postponed: int = 0) -> End | Again:
    """What the end of an attempt means for its job. `backoff_ns`: the delay before another, drawn by the caller.

    An attempt that no worker has begun costs nothing, unless another worker had begun it before. One that postpones the
    job costs nothing either, up to `POSTPONED_MAX` times; `postponed` is how many of the earlier attempts did.
    """
    if ended.ok:
        return End(JobState.SUCCEEDED, None, "", dead=False)
    reason = ended.error or "the worker gave no reason"
    if not ended.begun and job.state is not JobState.RUNNING:
        return Again(backoff_ns, reason, taken_back=True)
    if ended.quarantined:
        return End(JobState.OUTPUT_QUARANTINED, Code.OUTPUT_QUARANTINED, reason, dead=True)
    if ended.lost:
        return End(JobState.FAILED, Code.LOST, reason, dead=True)
    if not ended.retryable:
        return End(JobState.FAILED, Code.FATAL, reason, dead=True)
    free = ended.retry_after_ns is not None and postponed < POSTPONED_MAX
    counted = job.attempt - postponed
    if counted >= job.max_attempts and not free:
        which = f"attempt {counted} of {job.max_attempts}: " if job.max_attempts > 1 else ""
        return End(JobState.FAILED, Code.MAX_ATTEMPTS, f"{which}{reason}", dead=True)
    delay_ns = backoff_ns if ended.retry_after_ns is None else max(0, ended.retry_after_ns)
    if job.deadline_ns is not None and now_ns + delay_ns >= job.deadline_ns:
        return End(JobState.TIMEOUT, Code.DEADLINE, f"no attempt fits before the deadline: {reason}", dead=False)
    return Again(delay_ns, f"{POSTPONED}{reason}" if free else reason, postponed=free)


def elsewhere_ns(looks: int, jitter: int) -> int:
    """When an attempt that a worker could not take is sent again: soon at first, then less and less often.

    `looks` is how often the job was written; `jitter` a draw from 0 to NO_WORKER_SPREAD_NS.
    """
    return min(ELSEWHERE_BASE_NS << min(looks // ELSEWHERE_WRITES, 16), ELSEWHERE_MAX_NS) + jitter


@dataclass(frozen=True, slots=True)
class StateLimits:
    """How long a job may stay in a state, and how long before it is looked at again. Nanoseconds."""

    replay_ns: int = 30 * NS  # PENDING, SCHEDULED and RETRYING (past its due time) are replayed after this
    scheduled_ns: int = 120 * NS
    dispatched_ns: int = 300 * NS
    running_ns: int = 900 * NS  # unless the job says otherwise
    retrying_ns: int = 3600 * NS
    pending_ns: int | None = None  # for ever, unless a deadline says otherwise

    def limit_ns(self, state: JobState) -> int | None:
        """The time limit of a state; None: it has none."""
        limits = {
            JobState.PENDING: self.pending_ns,
            JobState.SCHEDULED: self.scheduled_ns,
            JobState.DISPATCHED: self.dispatched_ns,
            JobState.RUNNING: self.running_ns,
            JobState.RETRYING: self.retrying_ns,
        }
        return limits.get(state)

    def problems(self) -> list[str]:
        """What is wrong with them: a replay that comes after the time limit would never happen."""
        found = [
            f"{state} is timed out after {limit / NS:g} s but replayed only after {self.replay_ns / NS:g} s"
            for state in (JobState.PENDING, JobState.SCHEDULED, JobState.RETRYING)
            if (limit := self.limit_ns(state)) is not None and limit <= self.replay_ns
        ]
        return found + [
            f"the limit of {state} is not above zero"
            for state in JobState
            if (limit := self.limit_ns(state)) is not None and limit <= 0
        ]


def overdue(job: Look, *, updated_ns: int, timeout_ns: int | None, now_ns: int, limits: StateLimits) -> End | None:
    """Whether a job has been in its state for too long, or its deadline has passed; and what that means.

    One that was taken back waits for its first chance, or for another, as a new one does. So does one that waits in
    the queue of its topic, perhaps for the first worker that serves it.
    """
    if job.state.terminal:
        return None
    if job.deadline_ns is not None and now_ns >= job.deadline_ns:
        return End(JobState.TIMEOUT, Code.DEADLINE, "timeout: deadline expired", dead=False)
    in_topic_queue = job.state is JobState.RETRYING and job.queue is JobQueue.TOPIC
    limit = limits.limit_ns(JobState.PENDING if job.taken_back or in_topic_queue else job.state)
    if job.state is JobState.RUNNING and timeout_ns is not None:
        limit = timeout_ns
    since_ns = max(updated_ns, job.not_before_ns if job.state is JobState.RETRYING else 0)
    if limit is None or now_ns - since_ns <= limit:
        return None
    return End(JobState.TIMEOUT, Code.STATE_TIMEOUT, f"timeout: {job.state} >{limit / NS:g}s", dead=True)


class Standing(StrEnum):
    """What a report is worth."""

    CURRENT = "current"  # it counts
    REPEATED = "repeated"  # it has been said, and has been heard
    STALE = "stale"  # of an earlier attempt, or another job, or under a fence that has been overtaken
    OVER = "over"  # the job has ended


@dataclass(slots=True, unsafe_hash=True)
class Attempt:
    """The attempt that a job is at."""

    state: JobState
    attempt: int
    run_fence: int | None
    made_ns: int = 0  # when the job was made


@dataclass(slots=True, unsafe_hash=True)
class Word:
    """What a worker speaks of, and under which fence."""

    attempt: int
    run_fence: int
    made_ns: int = 0  # as it was told when the job was made; 0: it was not


_UNDER_WAY = frozenset({JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING})


def standing(job: Attempt, said: Word) -> Standing:
    """What a worker's report that an attempt has ended is worth."""
    if said.made_ns not in (0, job.made_ns):
        return Standing.STALE
    if job.state.terminal:
        return Standing.OVER
    if said.attempt != job.attempt or not accepts(job.run_fence, said.run_fence):
        return Standing.STALE
    # The attempt is the latest, and no longer under way: its end has been heard.
    return Standing.CURRENT if job.state in _UNDER_WAY else Standing.REPEATED


def standing_of_start(job: Attempt, said: Word) -> Standing:
    """What a worker's report that it has begun is worth. After the end of its attempt it says nothing new."""
    worth = standing(job, said)
    if worth is Standing.CURRENT and job.state is JobState.RUNNING and said.run_fence == job.run_fence:
        return Standing.REPEATED
    return worth
