"""Rehearses a workflow in a unit test: which steps would run, in which order, and how the run would end.

    seen = testing.rehearse(
        refund, {"id": "A-7"}, outputs={"fetch": {"amount": 120}, "pay": 42}, approvals={"agreed": True}
    )
    assert (seen.status, seen.order) == ("succeeded", ["fetch", "agreed", "pay"])

Promises: every decision is made by the engine of the plane (`plane.workflows.core`), so that conditions, retries,
handlers, fan-outs, delays and deadlines are those of a real run. Nothing is executed, and delays cost no time: the
time of the rehearsal jumps to the next due moment. The same call returns the same result; retries have no jitter.

Does not promise an order of steps that would run at the same time: here they end in the order in which they started.

Clock: its own, which starts at `at`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from holdfast.errors import BadInput, HoldfastError
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.outcome import Quarantine, raised
from holdfast.plane.parameters import plain_json
from holdfast.plane.workflows.core.advance import advance, begin
from holdfast.plane.workflows.core.definition import StepKind, Workflow
from holdfast.plane.workflows.core.run import (
    CheckRun,
    ChildEnded,
    Effect,
    Event,
    JobEnded,
    RequestApproval,
    Run,
    RunStatus,
    StartChildRun,
    StepState,
    StepStatus,
    StopJob,
    StopRun,
    SubmitStepJob,
)
from holdfast.plane.workflows.core.validation import check_input
from holdfast.types import NS

EVENTS_MAX: Final = 100_000
START: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)

Output: TypeAlias = Any
"""A value, an exception (the attempt fails with it), `attempts(…)`, or a function of the payload that returns one."""


@dataclass(frozen=True, slots=True)
class AttemptOutputs:
    """Outputs of the attempts of a step, in order; the last one is repeated."""

    outputs: tuple[Output, ...]


def attempts(*outputs: Output) -> AttemptOutputs:
    """Outputs of the attempts of a step, in order, as in `attempts(OSError(), 42)`. The last one is repeated."""
    if not outputs:
        raise BadInput("outputs", "are empty", "give the output of the first attempt")
    return AttemptOutputs(outputs)


@dataclass(frozen=True, slots=True)
class StartedStep:
    """An attempt of a step that was started."""

    step: str  # `name`, or `name[3]` for a child of a fan-out
    attempt: int
    kind: str  # job, approval or workflow
    payload: Any  # of a job or a run; the message of an approval
    topic: str | None = None  # of a job
    at: datetime = START


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a rehearsal has shown."""

    status: str
    """How the run ended: `succeeded`, `failed`, `denied`, `cancelled` or `timed_out`."""
    output: Any
    error: str | None
    started: tuple[StartedStep, ...]
    """Every attempt of a job, an approval or a nested run, in the order of their starts."""
    steps: Mapping[str, str]
    """The last status of every step."""
    outputs: Mapping[str, Any]
    """The output of every step that succeeded."""
    skipped: Mapping[str, str]
    """Every step that was skipped, with the reason: `condition_false`, `dependency_failed`, …"""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Every step that failed, was denied or timed out, with its error, even if a handler recovered it."""

    @property
    def order(self) -> list[str]:
        """The steps that started, in order, each once."""
        return list(dict.fromkeys(each.step for each in self.started))

    def attempts_of(self, step: str) -> int:
        """How many attempts of a step were started."""
        return sum(each.step == step for each in self.started)


def rehearse(
    workflow: Workflow,
    input: Any = None,
    *,
    outputs: Mapping[str, Output] | None = None,
    approvals: Mapping[str, bool | None] | None = None,
    at: datetime = START,
) -> Rehearsal:
    """Advance a run of a workflow to its end, and return which steps would run.

    `outputs` has the output of each job and nested run that is reached: a value, an exception, `attempts(…)`, or a
    function of the payload. A child of a fan-out is `step[3]`, else its step. `approvals` has the decision of each
    approval that is reached: True, False, or None for one that is never decided and times out.
    """
    if not isinstance(workflow, Workflow):
        raise BadInput("workflow", f"{type(workflow).__name__} is not a workflow", "give what build() returns")
    if at.tzinfo is None:
        raise BadInput("at", "has no time zone", "give a datetime with tzinfo, such as datetime.now(UTC)")
    stage = _Stage(workflow, dict(outputs or {}), dict(approvals or {}))
    return stage.play(check_input(workflow, input), int(at.timestamp() * NS))


class _Stage:
    """One rehearsal."""

    def __init__(self, workflow: Workflow, outputs: Mapping[str, Output], approvals: Mapping[str, bool | None]) -> None:
        self._workflow = workflow
        self._outputs = outputs
        self._approvals = approvals
        self._check_names()
        self._events: deque[Event] = deque([CheckRun()])
        self._started: list[StartedStep] = []
        self._undecided: set[str] = set()
        self._now_ns = 0

    def play(self, given: Any, now_ns: int) -> Rehearsal:
        """From the start to the end of the run."""
        self._now_ns = now_ns
        run = begin("rehearsal", "default", self._workflow, given, now_ns=now_ns)
        for _ in range(EVENTS_MAX):
            if not self._events:
                raise BadInput("approvals", *self._stuck(run))
            found = advance(run, self._events.popleft(), self._now_ns, lambda _: 0)
            run = found.run
            if run.status.terminal:
                return self._result(run)
            for effect in found.effects:
                self._apply(effect)
            if not self._events:
                if found.held_back:
                    self._events.append(CheckRun())
                elif found.wake_ns is not None:
                    self._now_ns = max(self._now_ns, found.wake_ns)
                    self._events.append(CheckRun())
        raise BadInput("workflow", f"did not end after {EVENTS_MAX} events", "give fewer retries or items")

    def _apply(self, effect: Effect) -> None:
        if isinstance(effect, StopJob | StopRun):
            self._events = deque(each for each in self._events if _attempt_of(each) != effect.id)
            self._undecided.discard(effect.id)
            return
        moment = datetime.fromtimestamp(self._now_ns / NS, UTC)
        if isinstance(effect, RequestApproval):
            self._started.append(StartedStep(effect.step, effect.attempt, "approval", effect.message, None, moment))
            self._decide(effect)
        elif isinstance(effect, SubmitStepJob):
            started = StartedStep(effect.step, effect.attempt, "job", effect.payload, effect.topic, moment)
            self._started.append(started)
            self._events.append(self._job_end(effect))
        else:
            self._started.append(StartedStep(effect.step, effect.attempt, "workflow", effect.input, None, moment))
            self._events.append(self._child_end(effect))

    def _decide(self, asked: RequestApproval) -> None:
        step = _name(asked.step)
        if step not in self._approvals:
            raise BadInput("approvals", f"have no decision for the step {step!r}", f"give {{{step!r}: True}} or False")
        verdict = self._approvals[step]
        if verdict is None:
            self._undecided.add(asked.id)
        elif verdict:
            self._events.append(JobEnded(asked.id, JobState.SUCCEEDED, {"approved_by": "rehearsal", "note": None}))
        else:
            reason = "rejected by rehearsal"
            self._events.append(JobEnded(asked.id, JobState.DENIED, None, reason, retryable=False))

    def _job_end(self, job: SubmitStepJob) -> Event:
        value = self._output(job.step, job.attempt, job.payload)
        if isinstance(value, Quarantine):
            return JobEnded(job.id, JobState.OUTPUT_QUARANTINED, None, value.reason, retryable=False)
        if isinstance(value, BaseException):
            ended = raised(value)
            return JobEnded(job.id, JobState.FAILED, None, ended.error, ended.retryable)
        return JobEnded(job.id, JobState.SUCCEEDED, plain_json(f"outputs.{job.step}", value))

    def _child_end(self, child: StartChildRun) -> Event:
        value = self._output(child.step, child.attempt, child.input)
        if isinstance(value, BaseException):
            return ChildEnded(child.id, RunStatus.FAILED, None, raised(value).error)
        return ChildEnded(child.id, RunStatus.SUCCEEDED, plain_json(f"outputs.{child.step}", value))

    def _output(self, path: str, attempt: int, payload: Any) -> Any:
        name = path if path in self._outputs else _name(path)
        if name not in self._outputs:
            fix = f"give outputs={{{name!r}: …}}, or None if the step returns nothing"
            raise BadInput("outputs", f"have none for the step {name!r}, which would run", fix)
        value = self._outputs[name]
        if isinstance(value, AttemptOutputs):
            value = value.outputs[min(attempt, len(value.outputs)) - 1]
        if isinstance(value, type) and issubclass(value, BaseException):
            return value("rehearsed") if issubclass(value, HoldfastError) else value()
        if callable(value):
            try:
                return value(payload)
            except Exception as error:  # noqa: BLE001 - it is the failure of the step
                return error
        return value

    def _check_names(self) -> None:
        works = (StepKind.JOB, StepKind.WORKFLOW)
        for field_, given, kinds in (
            ("outputs", self._outputs, works),
            ("approvals", self._approvals, (StepKind.APPROVAL,)),
        ):
            known = [name for name, step in self._workflow.steps.items() if step.kind in kinds]
            for name in given:
                if _name(name) not in known:
                    fix = f"use some of {', '.join(known)}" if known else f"the workflow has none: leave {field_} out"
                    raise BadInput(field_, f"name {name!r:.80}, which is not such a step of {self._workflow.name}", fix)

    def _stuck(self, run: Run) -> tuple[str, str]:
        waiting = ", ".join(_name(each.partition(":")[2].partition("@")[0]) for each in sorted(self._undecided))
        return (
            f"leave {waiting or 'the run'} undecided, and {run.workflow.name} would wait forever",
            "give True or False, or give the step a timeout",
        )

    def _result(self, run: Run) -> Rehearsal:
        states = dict(_states(run))
        failed = (StepStatus.FAILED, StepStatus.DENIED, StepStatus.TIMED_OUT)
        return Rehearsal(
            str(run.status),
            run.output,
            run.error,
            tuple(self._started),
            steps={name: str(each.status) for name, each in states.items()},
            outputs={name: each.output for name, each in states.items() if each.status is StepStatus.SUCCEEDED},
            skipped={name: each.code or "" for name, each in states.items() if each.status is StepStatus.SKIPPED},
            failures={name: each.error or "" for name, each in states.items() if each.status in failed},
        )


def _states(run: Run) -> Sequence[tuple[str, StepState]]:
    found: list[tuple[str, StepState]] = []
    for name, state in run.steps.items():
        found.append((name, state))
        found += [(f"{name}[{index}]", child) for index, child in enumerate(state.children)]
    return found


def _attempt_of(event: Event) -> str | None:
    if isinstance(event, JobEnded):
        return event.job
    return event.run if isinstance(event, ChildEnded) else None


def _name(path: str) -> str:
    return path.partition("[")[0]
