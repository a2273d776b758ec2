"""Decisions about jobs: dispatch, retry and its delay, end, time limits; and whether a report of a worker counts. Pure.

Promises: a job that is with a worker or finished does not change. Every other job is dispatched, postponed, or ended
with a reason for people and a code for programs. No job is retried forever: attempts and the deadline bound it.

A worker reports under the fence of its own lease. A report counts if it is about the current attempt and no worker with
a newer fence has reported on it. A worker that was paused and resumes after another has started is refused. So is one
that resumes after its job was deleted, even if another job has the same id now.

Times are nanoseconds of the wall clock, for time limits only.
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
ELSEWHERE_WRITES = 2  # writes of a job between two workers that reject it
POSTPONED_MAX = 1_000
"""How often a job may postpone itself (`RetryLater`) without consuming an attempt."""
POSTPONED = "postponed: "
"""Prefix of the reason of such an attempt, in the history of its job."""


class JobCode(StrEnum):
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
class JobFacts:
    """The fields of a job that a decision needs."""

    state: JobState
    attempt: int
    max_attempts: int
    not_before_ns: int
    deadline_ns: int | None
    taken_back: bool = False  # it was dispatched and not started, and waits again
    queue: JobQueue = JobQueue.POOL


@dataclass(frozen=True, slots=True)
class Nothing:
    """The job does not change."""

    why: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the job to the workers of its pool."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Decide again after this time, or when its condition is met (a worker, a slot). 0: no time is known."""

    delay_ns: int
    code: JobCode
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """The job ends. `dead`: with a dead letter."""

    state: JobState
    code: JobCode | None
    reason: str
    dead: bool


Decision: TypeAlias = Nothing | Dispatch | Wait | End


def decide(job: JobFacts, *, now_ns: int, known_topic: bool, live_workers: int) -> Decision:
    """Decide about a job that waits for dispatch.

    `known_topic`: a worker has announced its topic, or the job may wait for one that does. `live_workers`: those that
    serve the topic.
    """
    if job.state.terminal:
        return Nothing("it is finished")
    if job.state in (JobState.DISPATCHED, JobState.RUNNING):
        return Nothing("it is with a worker")
    if job.state is JobState.APPROVAL_REQUIRED:
        return Nothing("it waits for an approval")
    if job.deadline_ns is not None and now_ns >= job.deadline_ns:
        return End(JobState.TIMEOUT, JobCode.DEADLINE, "timeout: deadline expired", dead=False)
    if not known_topic:
        return End(JobState.FAILED, JobCode.UNKNOWN_TOPIC, "no worker has ever announced this topic", dead=True)
    # RETRYING: the end of the last attempt has allowed another, and knows how many of them were postponed.
    if job.attempt >= job.max_attempts and job.state is not JobState.RETRYING:
        return End(JobState.FAILED, JobCode.MAX_ATTEMPTS, f"{job.attempt} attempts were made", dead=True)
    if job.not_before_ns > now_ns:
        return Wait(job.not_before_ns - now_ns, JobCode.NOT_YET, "it is not due yet")
    if live_workers <= 0:
        return Wait(0, JobCode.NO_WORKER, "no live worker serves its topic")
    return Dispatch()


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt, as reported by its worker."""

    ok: bool
    error: str | None = None
    retryable: bool = True
    retry_after_ns: int | None = None  # the function has postponed itself by this much
    begun: bool = True  # if not, the worker has rejected it, and another may accept it
    lost: bool = False  # too many workers died while they ran it, so it was not started again
    quarantined: bool = False  # the work was done, and its output must not be used


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt is due after this time."""

    delay_ns: int
    reason: str
    taken_back: bool = False  # the job was not started, so this is no attempt
    postponed: bool = False  # this one asked for the delay, and does not count


def after_attempt(job: JobFacts, ended: AttemptEnd, *, now_ns: int, backoff_ns: int, postponed: int = 0) -> End | Retry:
    """Decide whether a job ends with this attempt or is retried. `backoff_ns`: the retry delay, drawn by the caller.

    A rejected assignment does not consume an attempt, unless another worker had started it before. Nor does an attempt
    that postpones the job, up to `POSTPONED_MAX` times; `postponed` is the number of earlier ones.
    """
    if ended.ok:
        return End(JobState.SUCCEEDED, None, "", dead=False)
    reason = ended.error or "the worker gave no reason"
    if not ended.begun and job.state is not JobState.RUNNING:
        return Retry(backoff_ns, reason, taken_back=True)
    if ended.quarantined:
        return End(JobState.OUTPUT_QUARANTINED, JobCode.OUTPUT_QUARANTINED, reason, dead=True)
    if ended.lost:
        return End(JobState.FAILED, JobCode.LOST, reason, dead=True)
    if not ended.retryable:
        return End(JobState.FAILED, JobCode.FATAL, reason, dead=True)
    free = ended.retry_after_ns is not None and postponed < POSTPONED_MAX
    counted = job.attempt - postponed
    if counted >= job.max_attempts and not free:
        which = f"attempt {counted} of {job.max_attempts}: " if job.max_attempts > 1 else ""
        return End(JobState.FAILED, JobCode.MAX_ATTEMPTS, f"{which}{reason}", dead=True)
    delay_ns = backoff_ns if ended.retry_after_ns is None else max(0, ended.retry_after_ns)
    if job.deadline_ns is not None and now_ns + delay_ns >= job.deadline_ns:
        return End(JobState.TIMEOUT, JobCode.DEADLINE, f"no attempt fits before the deadline: {reason}", dead=False)
    return Retry(delay_ns, f"{POSTPONED}{reason}" if free else reason, postponed=free)


def elsewhere_ns(writes: int, jitter: int) -> int:
    """The delay before a rejected assignment is sent again: short at first, then exponentially longer.

    `writes` is the number of writes of the job; `jitter` is drawn from 0 to NO_WORKER_SPREAD_NS.
    """
    return min(ELSEWHERE_BASE_NS << min(writes // ELSEWHERE_WRITES, 16), ELSEWHERE_MAX_NS) + jitter


@dataclass(frozen=True, slots=True)
class StateLimits:
    """How long a job may stay in a state, and when it is replayed before that. Nanoseconds."""

    replay_ns: int = 30 * NS  # PENDING, SCHEDULED and RETRYING (past its due time) are replayed after this
    scheduled_ns: int = 120 * NS
    dispatched_ns: int = 300 * NS
    running_ns: int = 900 * NS  # unless the job has a time limit of its own
    retrying_ns: int = 3600 * NS
    pending_ns: int | None = None  # unlimited, except by a deadline

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
        """What is wrong with them. A replay after the time limit would never happen."""
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


def overdue(job: JobFacts, *, updated_ns: int, timeout_ns: int | None, now_ns: int, limits: StateLimits) -> End | None:
    """The end of a job that has been in its state for too long, or whose deadline has passed; None: it may continue.

    A job that was taken back has the limit of a new one. So has a job in the queue of its topic, which may wait for the
    first worker that serves it.
    """
    if job.state.terminal:
        return None
    if job.deadline_ns is not None and now_ns >= job.deadline_ns:
        return End(JobState.TIMEOUT, JobCode.DEADLINE, "timeout: deadline expired", dead=False)
    in_topic_queue = job.state is JobState.RETRYING and job.queue is JobQueue.TOPIC
    limit = limits.limit_ns(JobState.PENDING if job.taken_back or in_topic_queue else job.state)
    if job.state is JobState.RUNNING and timeout_ns is not None:
        limit = timeout_ns
    since_ns = max(updated_ns, job.not_before_ns if job.state is JobState.RETRYING else 0)
    if limit is None or now_ns - since_ns <= limit:
        return None
    return End(JobState.TIMEOUT, JobCode.STATE_TIMEOUT, f"timeout: {job.state} >{limit / NS:g}s", dead=True)


class ReportStanding(StrEnum):
    """Whether a report of a worker counts."""

    CURRENT = "current"  # it counts
    REPEATED = "repeated"  # the same was reported before, and is stored
    STALE = "stale"  # of an earlier attempt, or another job, or under a fence that has been overtaken
    OVER = "over"  # the job has ended


@dataclass(slots=True, unsafe_hash=True)
class CurrentAttempt:
    """The current attempt of a job."""

    state: JobState
    attempt: int
    run_fence: int | None
    made_ns: int = 0  # creation time of the job


@dataclass(slots=True, unsafe_hash=True)
class ReportedAttempt:
    """The attempt that a report is about, and its fence."""

    attempt: int
    run_fence: int
    made_ns: int = 0  # creation time of the job, as the worker knows it; 0: unknown


_UNDER_WAY = frozenset({JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING})


def standing_of_end(job: CurrentAttempt, report: ReportedAttempt) -> ReportStanding:
    """Whether the report of an ended attempt counts."""
    if report.made_ns not in (0, job.made_ns):
        return ReportStanding.STALE
    if job.state.terminal:
        return ReportStanding.OVER
    if report.attempt != job.attempt or not accepts(job.run_fence, report.run_fence):
        return ReportStanding.STALE
    # The attempt is the latest, and no longer under way: its end is stored.
    return ReportStanding.CURRENT if job.state in _UNDER_WAY else ReportStanding.REPEATED


def standing_of_start(job: CurrentAttempt, report: ReportedAttempt) -> ReportStanding:
    """Whether the report of a started attempt counts. After the end of the attempt it does not."""
    found = standing_of_end(job, report)
    if found is ReportStanding.CURRENT and job.state is JobState.RUNNING and report.run_fence == job.run_fence:
        return ReportStanding.REPEATED
    return found
