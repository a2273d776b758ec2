"""A run of a workflow as it is stored: one value that holds all its steps. Values only; `advancing` moves it.

A run is written under its lock with a fence and a version, and never in part. Times are the wall clock's, in
nanoseconds; they decide when a delay is over and a limit has passed, and order nothing else.

Where in a run an attempt belongs, and the id that says so: `run:step@attempt`, of a child `run:step[3]@attempt`.

Promises: an id is read back to the place it was made for and to no other; a text that no run of this id can have made
is None. Ids of nested runs (`run:step@1:inner@2`) belong to the inner run alone. The form is reserved: callers cannot
submit jobs, nor start runs, under an id that an attempt may have (`is_attempt_id`).
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
class RunWanted:
    """What is known of a run besides what it follows and is given."""

    idempotency_key: str | None = None  # the same key of the same tenant is the same run
    submitted_by: str = ""
    trace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    rerun_of: str | None = None


class RunStatus(StrEnum):
    """How a run is."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"  # a step waits for a person; steps of other branches go on all the same
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DENIED = "denied"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def terminal(self) -> bool:
        """Whether it is over."""
        return self in RUN_OVER


class StepStatus(StrEnum):
    """How a step is."""

    PENDING = "pending"
    RUNNING = "running"  # its job, its children or its workflow run; a delay counts down
    WAITING = "waiting"  # for a person
    SKIPPED = "skipped"  # its condition was false, or what it waits for will never come
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DENIED = "denied"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def terminal(self) -> bool:
        """Whether it is over."""
        return self in STEP_OVER


RUN_OVER: Final = frozenset(
    {RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.DENIED, RunStatus.CANCELLED, RunStatus.TIMED_OUT}
)
STEP_OVER: Final = frozenset(StepStatus) - {StepStatus.PENDING, StepStatus.RUNNING, StepStatus.WAITING}


@dataclass(frozen=True, slots=True)
class StepState:
    """One step of a run, or one child of a fan-out."""

    status: StepStatus = StepStatus.PENDING
    attempt: int = 0  # how many have begun
    job: str | None = None  # of the current attempt: job, gate of an approval, or run of another workflow
    started_ns: int | None = None  # the current attempt
    ended_ns: int | None = None
    due_ns: int | None = None  # pending: not before then; a delay: when it is over
    limit_ns: int | None = None  # when the current attempt has run out of time
    output: Any = None
    error: str | None = None
    code: str | None = None  # condition_false, dependency_failed, timeout, denied, cancelled, bad_expression, …
    condition_false: bool = False  # skipped by its own condition: its dependents go on
    items: tuple[Any, ...] | None = None  # a fan-out: evaluated once
    children: tuple[StepState, ...] = ()  # one for each item
    size: int = 0  # bytes of the output, or of the items, as JSON: what a run keeps is bounded
    kept: bool = False  # pending: `output` is the result of an earlier run; it counts when the step's turn comes


@dataclass(frozen=True, slots=True)
class Parent:
    """The run whose step a run is."""

    run: str
    step: str  # the path: `name` or `name[3]`
    attempt: int


@dataclass(frozen=True, slots=True)
class Run:
    """A run, whole."""

    id: str
    tenant: str
    workflow: Workflow
    input: Any
    status: RunStatus = RunStatus.PENDING
    steps: Mapping[str, StepState] = field(default_factory=lambda: MappingProxyType({}))  # all of them, in order
    output: Any = None
    error: str | None = None
    created_ns: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    deadline_ns: int | None = None
    cancelled_by: str | None = None
    parent: Parent | None = None
    depth: int = 0
    requesters: tuple[str, ...] = ()  # who asked for the runs that this one repeats: none of them may approve it


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it is stored."""

    run: Run
    scope: str  # whose definition it follows: a tenant's, or everybody's (`*`)
    version: int  # rises with every write
    fence: int | None  # of the lease under which it was last written
    updated_ns: int
    wake_ns: int | None
    about: RunWanted

    @property
    def risk(self) -> str:
        """The class that decides about lock errors."""
        return self.run.workflow.risk

    def same_version(self, other: StoredRun) -> bool:
        """Whether nothing was written between these two readings of a run."""
        return (self.version, self.run.created_ns) == (other.version, other.run.created_ns)

    def started(self, other: StoredRun) -> bool:
        """Whether a step of this run has started the other."""
        parent = other.run.parent
        return parent is not None and (parent.run, other.run.tenant) == (self.run.id, self.run.tenant)


# What can happen to a run.


@dataclass(frozen=True, slots=True)
class Look:
    """Somebody looks: it was just made, its time has come, or a reconciler came by. Changes nothing that is right."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job of the run has reached a terminal state, as the scheduler has written it; a gate: somebody decided."""

    job: str  # run:step@attempt
    state: JobState
    result: Any = None
    reason: str | None = None
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A run that a step has started is over."""

    run: str  # run:step@attempt
    status: RunStatus
    output: Any = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CancelWanted:
    """Somebody wants the run to end."""

    actor: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run cannot be advanced: a message about it failed, or ended its process, too often. It ends as failed."""

    reason: str


Event: TypeAlias = Look | JobEnded | ChildEnded | CancelWanted | GiveUp


# What is to be done, in the same transaction as the run is written.


@dataclass(frozen=True, slots=True)
class SubmitJob:
    """Make a job. Its id names run, step and attempt, so a second submission of it is no second job."""

    id: str
    step: str
    topic: str
    payload: Any
    risk: str
    attempt: int
    priority: int = 0
    attempts: int = 1  # how many the step may have
    timeout_ns: int | None = None
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True)
class AskApproval:
    """Make a gate: a job that waits for a person and is done as soon as somebody decides."""

    id: str
    step: str
    message: Any
    risk: str
    attempt: int
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True)
class StartRun:
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
    """A job or gate is no longer wanted."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class StopRun:
    """A run of another workflow is no longer wanted."""

    id: str
    reason: str


Effect: TypeAlias = SubmitJob | AskApproval | StartRun | StopJob | StopRun


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the run's timeline."""

    step: str | None  # None: the run itself
    kind: str  # started, submitted, succeeded, failed, retrying, skipped, waiting, approved, denied, held_back, …
    detail: str = ""
    attempt: int = 0


class Heard(StrEnum):
    """What became of an event. Nothing but `APPLIED` changes the run."""

    APPLIED = "applied"
    NOTHING = "nothing"  # a look that found everything as it should be
    OVER = "over"  # the run has ended already
    REPEATED = "repeated"  # a step completion that was applied before: an indicator of duplicates, counted
    OUTDATED = "outdated"  # of an attempt that is no longer the current one
    UNKNOWN = "unknown"  # no such step


@dataclass(frozen=True, slots=True)
class Advance:
    """What an event made of a run."""

    run: Run
    heard: Heard
    effects: tuple[Effect, ...] = ()
    notes: tuple[Note, ...] = ()
    wake_ns: int | None = None  # when to look again by itself: the earliest delay, retry or limit; None: no need
    held_back: tuple[str, ...] = ()  # steps that were ready and need a full lease, or another advance


ID_CHARS_MAX: Final = 200  # of any id; those of nested runs grow with every level

_PATH: Final = re.compile(r"(?P<step>[^\[\]@:]+)(?:\[(?P<index>0|[1-9][0-9]{0,8})\])?@(?P<attempt>[1-9][0-9]{0,8})")


class Slot(NamedTuple):
    """A step of a run, or one child of its fan-out."""

    step: str
    child: int | None = None  # its number, from 0

    @property
    def path(self) -> str:
        """How people and ids spell it."""
        return self.step if self.child is None else f"{self.step}[{self.child}]"


def attempt_id(run: str, slot: Slot, attempt: int) -> str:
    """The id of what an attempt makes: a job, a gate, a run."""
    return f"{run}:{slot.path}@{attempt}"


def is_attempt_id(text: str) -> bool:
    """Whether a text has the form of these ids, of whatever run: no caller may choose such an id for a job."""
    _, colon, last = text.rpartition(":")
    return bool(colon) and _PATH.fullmatch(last) is not None


def root_of(run: str) -> str:
    """The run that a caller started, from the id of a run: of itself, or of one that was started through it."""
    before, at, _ = run.partition("@")  # a caller cannot choose an id with an @
    return before.rpartition(":")[0] if at else run


def read_attempt_id(run: str, text: str) -> tuple[Slot, int] | None:
    """The place and the attempt that an id of this run names."""
    if not text.startswith(f"{run}:"):
        return None
    found = _PATH.fullmatch(text, len(run) + 1)
    if found is None:
        return None
    index = found["index"]
    return Slot(found["step"], None if index is None else int(index)), int(found["attempt"])
