"""A stored run: one value with all its steps, its events and effects, and the ids of attempts. Values only.

A run is written under its lock with a fence and a version, always as a whole. Times are the wall clock's, in
nanoseconds; they decide when a delay or deadline has passed, and order nothing else.

The id of an attempt names its position in the run: `run:step@attempt`, of a child `run:step[3]@attempt`.

Promises: an id is parsed to exactly the position that it was made for; a text that no run with this id can have made is
None. Ids of nested runs (`run:step@1:inner@2`) belong to the inner run alone. The form is reserved: callers cannot
submit jobs, nor start runs, with the id of an attempt (`is_attempt_id`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.definition import Workflow


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The properties of a start request besides workflow and input."""

    idempotency_key: str | None = None  # the same key of the same tenant is the same run
    submitted_by: str = ""
    trace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    rerun_of: str | None = None


class RunStatus(StrEnum):
    """The status of a run."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"  # a step waits for approval; steps of other branches continue
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DENIED = "denied"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def terminal(self) -> bool:
        """Whether the run has finished."""
        return self in RUN_OVER


class StepStatus(StrEnum):
    """The status of a step."""

    PENDING = "pending"
    RUNNING = "running"  # its job, its children or its workflow run; a delay counts down
    WAITING = "waiting"  # for approval
    SKIPPED = "skipped"  # its condition was false, or its dependencies cannot be met
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DENIED = "denied"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def terminal(self) -> bool:
        """Whether the step has finished."""
        return self in STEP_OVER


RUN_OVER: Final = frozenset(
    {RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.DENIED, RunStatus.CANCELLED, RunStatus.TIMED_OUT}
)
STEP_OVER: Final = frozenset(StepStatus) - {StepStatus.PENDING, StepStatus.RUNNING, StepStatus.WAITING}


@dataclass(frozen=True, slots=True)
class StepState:
    """One step of a run, or one child of a fan-out."""

    status: StepStatus = StepStatus.PENDING
    attempt: int = 0  # number of started attempts
    job: str | None = None  # of the current attempt: job, gate of an approval, or child run
    started_ns: int | None = None  # the current attempt
    ended_ns: int | None = None
    due_ns: int | None = None  # pending: the earliest start; a delay: its end
    limit_ns: int | None = None  # the deadline of the current attempt
    output: Any = None
    error: str | None = None
    code: str | None = None  # condition_false, dependency_failed, timeout, denied, cancelled, bad_expression, …
    condition_false: bool = False  # skipped by its own condition: its dependents continue
    items: tuple[Any, ...] | None = None  # a fan-out: evaluated once
    children: tuple[StepState, ...] = ()  # one for each item
    size: int = 0  # bytes of the output, or of the items, as JSON: the size of a run is bounded
    kept: bool = False  # pending: `output` is the result of an earlier run; it counts when the step would start


@dataclass(frozen=True, slots=True)
class Parent:
    """The run that started this one, and the step."""

    run: str
    step: str  # the path: `name` or `name[3]`
    attempt: int


@dataclass(frozen=True, slots=True)
class Run:
    """A complete run."""

    id: str
    tenant: str
    workflow: Workflow
    input: Any
    status: RunStatus = RunStatus.PENDING
    steps: Mapping[str, StepState] = field(default_factory=lambda: MappingProxyType({}))  # all steps, in order
    output: Any = None
    error: str | None = None
    created_ns: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    deadline_ns: int | None = None
    cancelled_by: str | None = None
    parent: Parent | None = None
    depth: int = 0
    requesters: tuple[str, ...] = ()  # of the runs that this one repeats: they may not approve it


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it is stored."""

    run: Run
    scope: str  # of its definition: a tenant, or all (`*`)
    version: int  # increases with every write
    fence: int | None  # of the lease of the last write
    updated_ns: int
    wake_ns: int | None
    about: RunRequest

    @property
    def risk(self) -> str:
        """The class that decides about lock errors."""
        return self.run.workflow.risk

    def same_version(self, other: StoredRun) -> bool:
        """Whether nothing was written between these two reads."""
        return (self.version, self.run.created_ns) == (other.version, other.run.created_ns)

    def started(self, other: StoredRun) -> bool:
        """Whether a step of this run has started the other run."""
        parent = other.run.parent
        return parent is not None and (parent.run, other.run.tenant) == (self.run.id, self.run.tenant)


# Events.


@dataclass(frozen=True, slots=True)
class CheckRun:
    """Check the run: it is new, something is due, or the reconciler asks. Changes nothing that is up to date."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job of the run has ended, as the scheduler has written it; or a gate was decided."""

    job: str  # run:step@attempt
    state: JobState
    result: Any = None
    reason: str | None = None
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A run that a step has started has ended."""

    run: str  # run:step@attempt
    status: RunStatus
    output: Any = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A caller has requested the cancellation of the run."""

    actor: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run cannot be advanced: a message about it failed, or ended its process, too often. It ends as failed."""

    reason: str


Event: TypeAlias = CheckRun | JobEnded | ChildEnded | CancelRequested | GiveUp


# Effects, applied in the transaction that writes the run.


@dataclass(frozen=True, slots=True)
class SubmitStepJob:
    """Insert a job. Its id names run, step and attempt, so a second submission makes no second job."""

    id: str
    step: str
    topic: str
    payload: Any
    risk: str
    attempt: int
    priority: int = 0
    attempts: int = 1  # maximal attempts of the step
    timeout_ns: int | None = None
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RequestApproval:
    """Insert a gate: a job that waits for approval and ends with the decision."""

    id: str
    step: str
    message: Any
    risk: str
    attempt: int
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True)
class StartChildRun:
    """Start a run of another workflow."""

    id: str
    step: str
    workflow: str
    version: int | None
    input: Any
    attempt: int
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True)
class StopJob:
    """Stop a job or gate."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class StopRun:
    """Stop a child run."""

    id: str
    reason: str


Effect: TypeAlias = SubmitStepJob | RequestApproval | StartChildRun | StopJob | StopRun


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One entry of the run's timeline."""

    step: str | None  # None: the run itself
    kind: str  # started, submitted, succeeded, failed, retrying, skipped, waiting, approved, denied, held_back, …
    detail: str = ""
    attempt: int = 0


class EventOutcome(StrEnum):
    """The outcome of an event. Only `APPLIED` changes the run."""

    APPLIED = "applied"
    NOTHING = "nothing"  # a check that found everything up to date
    OVER = "over"  # the run had ended
    REPEATED = "repeated"  # a completion of a completed step: an indicator of duplicates, counted
    OUTDATED = "outdated"  # of an earlier attempt
    UNKNOWN = "unknown"  # no such step


@dataclass(frozen=True, slots=True)
class Advance:
    """The result of applying an event to a run."""

    run: Run
    outcome: EventOutcome
    effects: tuple[Effect, ...] = ()
    notes: tuple[TimelineEntry, ...] = ()
    wake_ns: int | None = None  # time of the next automatic check: the earliest delay, retry or deadline; None: none
    held_back: tuple[str, ...] = ()  # ready steps that need a full lease, or another advance


ID_CHARS_MAX: Final = 200  # of any id; those of nested runs grow with every level

_PATH: Final = re.compile(r"(?P<step>[^\[\]@:]+)(?:\[(?P<index>0|[1-9][0-9]{0,8})\])?@(?P<attempt>[1-9][0-9]{0,8})")


class StepSlot(NamedTuple):
    """A step of a run, or one child of its fan-out."""

    step: str
    child: int | None = None  # its index, from 0

    @property
    def path(self) -> str:
        """Its form in ids and texts."""
        return self.step if self.child is None else f"{self.step}[{self.child}]"


def attempt_id(run: str, slot: StepSlot, attempt: int) -> str:
    """The id of the job, gate or run of an attempt."""
    return f"{run}:{slot.path}@{attempt}"


def is_attempt_id(text: str) -> bool:
    """Whether a text has the form of an attempt id, of any run: callers cannot choose such ids for jobs."""
    _, colon, last = text.rpartition(":")
    return bool(colon) and _PATH.fullmatch(last) is not None


def root_of(run: str) -> str:
    """The run that a caller started, from the id of a run in its tree."""
    before, at, _ = run.partition("@")  # callers cannot choose an id with an @
    return before.rpartition(":")[0] if at else run


def read_attempt_id(run: str, text: str) -> tuple[StepSlot, int] | None:
    """The position and the attempt in an id of this run."""
    if not text.startswith(f"{run}:"):
        return None
    found = _PATH.fullmatch(text, len(run) + 1)
    if found is None:
        return None
    index = found["index"]
    return StepSlot(found["step"], None if index is None else int(index)), int(found["attempt"])
