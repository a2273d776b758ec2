"""What a client sees of jobs and runs, and the errors about those that did not succeed. Values only.

They are the same for a client of a database and for one of the HTTP API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.plane.jobs.progress import Progress
from holdfast.plane.jobs.timeline import EmittedValue, Entry
from holdfast.plane.jobs.waiting_reason import WaitReason
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import PARENT_LABEL
from holdfast.plane.model.records import Job
from holdfast.plane.workflows.core.run import RunStatus, StoredRun
from holdfast.types import NS

_LAST_NS: Final = 253_402_300_799 * NS  # the last second that a calendar has


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress that a job's function last reported."""

    at: datetime
    fraction: float | None  # of the work, 0 to 1
    note: str | None
    attempt: int = 0  # that reported it

    @classmethod
    def of(cls, progress: Progress) -> JobProgress:
        """From the database."""
        return cls(moment(progress.at_ns), progress.fraction, progress.note, progress.attempt)

    @classmethod
    def parsed(cls, document: Mapping[str, Any]) -> JobProgress:
        """From the API."""
        return cls(parsed_time(document["at"]), document["fraction"], document["note"], document["attempt"])


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as it was when it was read."""

    id: str
    tenant: str
    topic: str
    pool: str
    state: JobState
    attempt: int  # how many have started
    max_attempts: int
    payload: Any
    result: Any
    reason: str | None  # why it is in this state, for people
    code: str | None  # the same for programs
    waiting: str | None  # why it waits, for people; None: it runs or has ended
    progress: JobProgress | None
    labels: Mapping[str, str]
    created_at: datetime
    updated_at: datetime

    @property
    def parent(self) -> str | None:
        """The job, or the step RUN:STEP, whose function submitted it; None: it is no child."""
        return self.labels.get(PARENT_LABEL)

    @classmethod
    def of(cls, job: Job, progress: Progress | None = None, waiting: WaitReason | None = None) -> JobView:
        """From the database."""
        return cls(
            *(job.id, job.tenant, job.topic, job.pool, job.state, job.attempt, job.max_attempts),
            *(job.payload, job.result, job.reason, job.code, None if waiting is None else waiting.text),
            None if progress is None else JobProgress.of(progress),
            dict(job.labels),
            *(moment(job.created_ns), moment(job.updated_ns)),
        )

    @classmethod
    def parsed(cls, document: Mapping[str, Any]) -> JobView:
        """From the API."""
        told, waiting = document["progress"], document["waiting"]
        return cls(
            *(document["id"], document["tenant"], document["topic"], document["pool"], JobState(document["state"])),
            *(document["attempt"], document["max_attempts"], document["payload"], document["result"]),
            *(document["reason"], document["code"], None if waiting is None else waiting["text"]),
            None if told is None else JobProgress.parsed(told),
            document["labels"],
            *(parsed_time(document["created_at"]), parsed_time(document["updated_at"])),
        )


class UpdateKind(StrEnum):
    """Kinds of updates."""

    STATE = "state"  # a new state
    VALUE = "value"  # a partial result
    PROGRESS = "progress"  # a progress report


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """An update about a job: a new state, a value that its function emitted, or a progress report."""

    job: str
    at: datetime
    state: JobState  # RUNNING for values and progress
    attempt: int
    reason: str | None
    progress: JobProgress | None = None  # None: of another kind
    traceback: str | None = None  # of an attempt that failed with this change: the end of it
    kind: UpdateKind = UpdateKind.STATE
    value: Any = None  # that was emitted
    number: int | None = None  # of the value within its attempt, from 1

    @classmethod
    def of(cls, job: str, entry: Entry) -> JobUpdate:
        """From the database."""
        if isinstance(entry, EmittedValue):
            return cls(
                *(job, moment(entry.at_ns), JobState.RUNNING, entry.attempt, None),
                kind=UpdateKind.VALUE,
                value=entry.value,
                number=entry.number,
            )
        return cls(job, moment(entry.at_ns), entry.after, entry.attempt, entry.reason, traceback=entry.traceback)

    @classmethod
    def about(cls, job: str, progress: JobProgress) -> JobUpdate:
        """A progress report."""
        attempt = progress.attempt
        return cls(job, progress.at, JobState.RUNNING, attempt, None, progress, kind=UpdateKind.PROGRESS)

    @classmethod
    def parsed(cls, job: str, document: Mapping[str, Any]) -> JobUpdate:
        """From the API."""
        return cls(
            *(job, parsed_time(document["at"]), JobState(document["state"]), document["attempt"], document["reason"]),
            traceback=document["traceback"],
            kind=UpdateKind(document["kind"]),
            value=document["value"],
            number=document["number"],
        )


@dataclass(frozen=True, slots=True)
class UpdatePage:
    """States and values of a job after a place, and its newest progress."""

    updates: list[JobUpdate]
    progress: JobProgress | None
    place: str  # where the next page begins
    more: bool
    ended: bool  # nothing follows


class UpdateReader:
    """Reads the pages of one job: each state and value once, and progress when it has changed. Pure."""

    def __init__(self, job: str, place: str = "") -> None:
        self._job = job
        self._told: tuple[object, ...] = (None, None)
        self.place = place
        self.ended = False

    def read(self, page: UpdatePage) -> list[JobUpdate]:
        """The updates of the next page, in order."""
        self.place, self.ended = page.place, page.ended
        progress, updates = page.progress, page.updates
        if progress is None or (told := (progress.fraction, progress.note, progress.attempt)) == self._told:
            return updates
        self._told = told
        if told[:2] == (None, None):
            return updates
        at = len(updates) - bool(updates and updates[-1].state.terminal)  # the end comes last
        return [*updates[:at], JobUpdate.about(self._job, progress), *updates[at:]]


@dataclass(frozen=True, slots=True)
class RunView:
    """A workflow run as it was when it was read."""

    id: str
    tenant: str
    workflow: str
    status: RunStatus
    input: Any
    output: Any
    error: str | None
    steps: Mapping[str, str]  # the status of each step

    @classmethod
    def of(cls, stored: StoredRun) -> RunView:
        """From the database."""
        run = stored.run
        steps = {name: str(step.status) for name, step in run.steps.items()}
        return cls(run.id, run.tenant, run.workflow.name, run.status, run.input, run.output, run.error, steps)

    @classmethod
    def parsed(cls, document: Mapping[str, Any]) -> RunView:
        """From the API."""
        return cls(
            *(document["id"], document["tenant"], document["workflow"], RunStatus(document["status"])),
            *(document["input"], document["output"], document["error"]),
            {name: step["status"] for name, step in document["steps"].items()},
        )


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """An approval that waits for the decision of a person."""

    job: str
    tenant: str
    about: str
    run: str | None
    step: str | None
    requested_by: str


class NotSucceeded(HoldfastError):
    """A job has ended without a result. `job` is the job as it ended."""

    def __init__(self, job: JobView) -> None:
        reason = job.reason or "no reason was given"
        super().__init__(f"job {job.id} ({job.topic}) ended {job.state} at attempt {job.attempt}: {reason}")
        self.job = job


class JobFailed(NotSucceeded):
    """A job has failed, was denied or quarantined, or has exceeded its time limit.

    `traceback` is the end of the traceback of its last attempt that raised an error, and a note of this error.
    """

    def __init__(self, job: JobView, traceback: str | None = None) -> None:
        super().__init__(job)
        self.traceback = traceback
        if traceback is not None:
            self.add_note(f"In the worker:\n{traceback}")


class JobCancelled(NotSucceeded):
    """A job was cancelled."""


class RunNotSucceeded(HoldfastError):
    """A workflow run has ended without success. `run` is the run as it ended."""

    def __init__(self, run: RunView) -> None:
        super().__init__(f"run {run.id} ({run.workflow}) has {run.status}: {run.error or 'no reason was given'}")
        self.run = run


class SubmitRefused(HoldfastError):
    """Some of the jobs of one call were refused; the others are stored.

    `answers` has a `JobHandle` or an error for each request, in their order.
    """

    def __init__(self, answers: list[Any]) -> None:
        refused = [each for each in answers if isinstance(each, HoldfastError)]
        super().__init__(f"{len(refused)} of {len(answers)} jobs were refused; the first: {refused[0]}")
        self.answers = answers


def moment(wall_ns: int) -> datetime:
    """A time of the database."""
    return datetime.fromtimestamp(min(wall_ns, _LAST_NS) / NS, UTC)


def parsed_time(text: str) -> datetime:
    """A time of the API."""
    return datetime.fromisoformat(text)
