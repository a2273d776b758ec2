"""Failures that a run tolerates, steps that can still be reached, and the resulting status of the run. Pure.

A finished step has one of two results for its dependents (`StepResult`): it went well, or it is lost. It went well if
it succeeded, if its own condition skipped it, or if it is *recovered*: it failed, was denied or timed out, and the
chain of its `on_error` steps reaches one that succeeded. A chain ends, without success, at a step that has no
`on_error`, was skipped or cancelled, or is in the chain already. Until the chain is decided the step is open. A failed
step with `recover: false` is lost whatever its handler does: the handler cleans up, and the run fails.

A lost failure is *outvoted* if it has dependents and each of them has a `join` that other steps have fulfilled. A
failure that is neither recovered nor outvoted, and can no longer be, is *beyond repair*. A step whose job was cancelled
is a failure without a handler. The run is named after those, the worst first:

    failed or cancelled step ▶ failed    denied ▶ denied    timed out ▶ timed_out
    else a step waits for approval ▶ waiting    all steps are finished ▶ succeeded    else ▶ running

Steps that the run itself has stopped (code `stopped`) do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.run import RunStatus, StepState, StepStatus

STOPPED: Final = "stopped"  # the code of a step that the run itself has ended
NOT_NEEDED: Final = "not_needed"  # of a handler whose steps went well, and of its dependents

HANDLED: Final = frozenset({StepStatus.FAILED, StepStatus.DENIED, StepStatus.TIMED_OUT})  # these have `on_error` run


class StepResult(Enum):
    """The result of a step for its dependents."""

    OPEN = "open"
    GOOD = "good"
    LOST = "lost"


class Reachability(Enum):
    """Whether enough dependencies of a step went well."""

    OPEN = "open"
    REACHED = "reached"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class DependencyPlan:
    """A definition with its reverse edges."""

    workflow: Workflow
    after: Mapping[str, tuple[str, ...]]  # each name once
    need: Mapping[str, int]  # how many of them must go well
    dependents: Mapping[str, list[str]]
    guarded: Mapping[str, list[str]]  # by handler: the steps that it handles


def plan(workflow: Workflow) -> DependencyPlan:
    """The plan of a definition, in time linear in its edges."""
    after, need = {}, {}
    dependents: dict[str, list[str]] = {name: [] for name in workflow.steps}
    guarded: dict[str, list[str]] = {}
    for name, step in workflow.steps.items():
        after[name] = tuple(dict.fromkeys(step.after))
        need[name] = len(after[name]) if step.join is None else min(step.join, len(after[name]))
        for each in after[name]:
            dependents[each].append(name)
        if step.on_error is not None:
            guarded.setdefault(step.on_error, []).append(name)
    return DependencyPlan(workflow, after, need, dependents, guarded)


def step_result(workflow: Workflow, states: Mapping[str, StepState], name: str) -> StepResult:
    """The result of a step for its dependents."""
    return _chain(workflow, states, name)[1]


def _chain(workflow: Workflow, states: Mapping[str, StepState], name: str) -> tuple[set[str], StepResult]:
    """The failed steps from one to the end of its chain, and the result of all of them."""
    state, met = states[name], {name}
    if state.status is StepStatus.SKIPPED and state.condition_false:
        return met, StepResult.GOOD
    while state.status in HANDLED:
        met.add(name)
        handler = workflow.steps[name].on_error
        if handler is None or handler in met or not workflow.steps[name].recover:
            return met, StepResult.LOST
        name, state = handler, states[handler]
    return met, _end_of_chain(state)


def _end_of_chain(state: StepState) -> StepResult:
    if not state.status.terminal:
        return StepResult.OPEN
    return StepResult.GOOD if state.status is StepStatus.SUCCEEDED else StepResult.LOST


def failure(state: StepState) -> bool:
    """Whether a step failed on its own, in one way or another."""
    return state.status in HANDLED or (state.status is StepStatus.CANCELLED and state.code != STOPPED)


class StepResults:
    """The results of all steps of a run, updated while the steps change.

    `states` belongs to the caller and is only read. The caller reports each step that ends with `over`.
    """

    __slots__ = ("_good", "_lost", "_open_guarded", "_plan", "_standing", "_states", "_triggers")

    def __init__(self, plan: DependencyPlan, states: Mapping[str, StepState]) -> None:
        self._plan, self._states = plan, states
        self._standing: dict[str, StepResult] = {}
        for name in states:
            if name not in self._standing:
                chain, found = _chain(plan.workflow, states, name)
                self._standing.update(dict.fromkeys(chain, found))
        self._good = dict.fromkeys(states, 0)
        self._lost = dict.fromkeys(states, 0)
        for name, each in self._standing.items():
            self._count(name, each)
        self._open_guarded: dict[str, int] = {}
        self._triggers: dict[str, str] = {}  # by handler: the first that failed
        for handler, names in plan.guarded.items():
            self._open_guarded[handler] = sum(not states[name].status.terminal for name in names)
            failed = [name for name in names if states[name].status in HANDLED]
            if failed:
                self._triggers[handler] = min(failed, key=lambda name: states[name].ended_ns or 0)

    def over(self, name: str) -> list[str]:
        """A step has just ended; reported once. Returns the steps that this may affect."""
        concerned = []
        handler = self._plan.workflow.steps[name].on_error
        if handler is not None:
            self._open_guarded[handler] -= 1
            if self._states[name].status in HANDLED:
                self._triggers.setdefault(handler, name)
            concerned.append(handler)
        now = step_result(self._plan.workflow, self._states, name)
        self._decide(name, now, concerned)
        # The end of a handler decides about the steps that it handles, and about those that they handle.
        end = now if self._states[name].status in HANDLED else _end_of_chain(self._states[name])
        pending = [name] if end is not StepResult.OPEN else []
        while pending:
            for each in self._plan.guarded.get(pending.pop(), ()):
                if self._standing[each] is StepResult.OPEN and self._states[each].status in HANDLED:
                    self._decide(each, end, concerned)
                    pending.append(each)
        return concerned

    def trigger(self, handler: str) -> str | None:
        """The failed step that a handler handles; None: it has no reason to run yet."""
        return self._triggers.get(handler)

    def needless(self, handler: str) -> bool:
        """Whether a handler can have no reason to run any more."""
        return handler not in self._triggers and not self._open_guarded[handler]

    def chance(self, name: str) -> Reachability:
        """Whether enough dependencies of a step went well, still can, or never will."""
        need = self._plan.need[name]
        if self._good[name] >= need:
            return Reachability.REACHED
        return Reachability.OPEN if len(self._plan.after[name]) - self._lost[name] >= need else Reachability.GONE

    def only_needless(self, name: str) -> bool:
        """Whether all lost dependencies of a step were not needed, so that nothing went wrong."""
        lost = [each for each in self._plan.after[name] if self._standing[each] is StepResult.LOST]
        return all(self._states[each].code == NOT_NEEDED for each in lost)

    def beyond_repair(self) -> list[str]:
        """The failures that decide the status of the run."""
        return [
            name
            for name, state in self._states.items()
            if failure(state) and self._standing[name] is StepResult.LOST and not self._may_be_outvoted(name)
        ]

    def _may_be_outvoted(self, name: str) -> bool:
        """Whether all dependents of a lost step can do without it. A step that needs all of its `after` cannot."""
        dependents = self._plan.dependents[name]
        return bool(dependents) and all(self.chance(each) is not Reachability.GONE for each in dependents)

    def _decide(self, name: str, now: StepResult, concerned: list[str]) -> None:
        if now is not StepResult.OPEN:
            self._standing[name] = now
            self._count(name, now)
            concerned += self._plan.dependents[name]

    def _count(self, name: str, now: StepResult) -> None:
        if now is StepResult.OPEN:
            return
        counts = self._good if now is StepResult.GOOD else self._lost
        for each in self._plan.dependents[name]:
            counts[each] += 1


def worst(states: Mapping[str, StepState], failures: list[str]) -> tuple[RunStatus, str] | None:
    """The status of a run from its failures beyond repair, and the step that it is named after; None: no failure."""
    for status, named in (
        (RunStatus.FAILED, (StepStatus.FAILED, StepStatus.CANCELLED)),
        (RunStatus.DENIED, (StepStatus.DENIED,)),
        (RunStatus.TIMED_OUT, (StepStatus.TIMED_OUT,)),
    ):
        for name in failures:
            if states[name].status in named:
                return status, name
    return None


def going_on(states: Mapping[str, StepState]) -> RunStatus:
    """The status of an unfinished run."""
    waiting = any(state.status is StepStatus.WAITING for state in states.values())
    return RunStatus.WAITING if waiting else RunStatus.RUNNING
