"""Which failures a run forgives, which steps can still be reached, and what the run is called for it. Pure.

A step that is over stands in one of two ways to those that wait for it (`Standing`): it went well, or it is lost. It
went well if it succeeded, if its own condition skipped it, or if it is *recovered*: it failed, was denied or timed out,
and the chain of its `on_error` steps reaches one that succeeded. A chain ends, without success, at a step that has no
`on_error`, was skipped or cancelled, or was met before. Until the chain is decided the step is open. A failed step with
`recover: false` is lost whatever its handler does: the handler cleans up, and the run fails.

A lost failure is *outvoted* if somebody waits for it and everybody who does has a `join` that others have fulfilled. A
failure that is neither recovered nor outvoted, and can no longer be, is *beyond repair*; a step whose job somebody
cancelled is a failure that has no handler. The run is named after those, the worst first:

    failed or cancelled step ▶ failed    denied ▶ denied    timed out ▶ timed_out
    else a step waits for a person ▶ waiting    all steps are over ▶ succeeded    else ▶ running

Steps that the run itself has stopped (code `stopped`) have no say in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.run import RunStatus, StepState, StepStatus

STOPPED: Final = "stopped"  # the code of a step that the run itself has ended
NOT_NEEDED: Final = "not_needed"  # of a handler whose steps went well, and of what waits for it

HANDLED: Final = frozenset({StepStatus.FAILED, StepStatus.DENIED, StepStatus.TIMED_OUT})  # these have `on_error` run


class Standing(Enum):
    """What a step is to those that wait for it."""

    OPEN = "open"
    GOOD = "good"
    LOST = "lost"


class Chance(Enum):
    """Whether enough of what a step waits for has gone well."""

    OPEN = "open"
    REACHED = "reached"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Plan:
    """A definition, read backwards."""

    workflow: Workflow
    after: Mapping[str, tuple[str, ...]]  # each name once
    need: Mapping[str, int]  # how many of them must have gone well
    dependents: Mapping[str, list[str]]
    guarded: Mapping[str, list[str]]  # by handler: the steps it stands in for


def plan(workflow: Workflow) -> Plan:
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
    return Plan(workflow, after, need, dependents, guarded)


def standing(workflow: Workflow, states: Mapping[str, StepState], name: str) -> Standing:
    """What a step is to those that wait for it."""
    return _chain(workflow, states, name)[1]


def _chain(workflow: Workflow, states: Mapping[str, StepState], name: str) -> tuple[set[str], Standing]:
    """The failed steps that lead from one to the end of its chain, and how all of them stand."""
    state, met = states[name], {name}
    if state.status is StepStatus.SKIPPED and state.condition_false:
        return met, Standing.GOOD
    while state.status in HANDLED:
        met.add(name)
        handler = workflow.steps[name].on_error
        if handler is None or handler in met or not workflow.steps[name].recover:
            return met, Standing.LOST
        name, state = handler, states[handler]
    return met, _end_of_chain(state)


def _end_of_chain(state: StepState) -> Standing:
    if not state.status.terminal:
        return Standing.OPEN
    return Standing.GOOD if state.status is StepStatus.SUCCEEDED else Standing.LOST


def failure(state: StepState) -> bool:
    """Whether a step failed by itself, in one way or another."""
    return state.status in HANDLED or (state.status is StepStatus.CANCELLED and state.code != STOPPED)


class Standings:
    """The standings of all steps of a run and what follows from them, kept up to date while the steps change.

    `states` is the caller's; it is read, never written. Whoever ends a step in it says so with `over`.
    """

    __slots__ = ("_good", "_lost", "_open_guarded", "_plan", "_standing", "_states", "_triggers")

    def __init__(self, plan: Plan, states: Mapping[str, StepState]) -> None:
        self._plan, self._states = plan, states
        self._standing: dict[str, Standing] = {}
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
        """A step has just ended, which is to be said once: the steps that this may concern."""
        concerned = []
        handler = self._plan.workflow.steps[name].on_error
        if handler is not None:
            self._open_guarded[handler] -= 1
            if self._states[name].status in HANDLED:
                self._triggers.setdefault(handler, name)
            concerned.append(handler)
        now = standing(self._plan.workflow, self._states, name)
        self._decide(name, now, concerned)
        # The end of a handler decides about those it stands in for, and about those that they stand in for.
        end = now if self._states[name].status in HANDLED else _end_of_chain(self._states[name])
        pending = [name] if end is not Standing.OPEN else []
        while pending:
            for each in self._plan.guarded.get(pending.pop(), ()):
                if self._standing[each] is Standing.OPEN and self._states[each].status in HANDLED:
                    self._decide(each, end, concerned)
                    pending.append(each)
        return concerned

    def trigger(self, handler: str) -> str | None:
        """The failed step that a handler stands in for; None: it has no reason to run yet."""
        return self._triggers.get(handler)

    def needless(self, handler: str) -> bool:
        """Whether nothing can give a handler a reason to run any more."""
        return handler not in self._triggers and not self._open_guarded[handler]

    def chance(self, name: str) -> Chance:
        """Whether enough of what a step waits for has gone well, still can, or never will."""
        need = self._plan.need[name]
        if self._good[name] >= need:
            return Chance.REACHED
        return Chance.OPEN if len(self._plan.after[name]) - self._lost[name] >= need else Chance.GONE

    def only_needless(self, name: str) -> bool:
        """Whether all that a step waits for in vain was not needed, so that nothing went wrong."""
        lost = [each for each in self._plan.after[name] if self._standing[each] is Standing.LOST]
        return all(self._states[each].code == NOT_NEEDED for each in lost)

    def beyond_repair(self) -> list[str]:
        """The failures that decide what becomes of the run."""
        return [
            name
            for name, state in self._states.items()
            if failure(state) and self._standing[name] is Standing.LOST and not self._may_be_outvoted(name)
        ]

    def _may_be_outvoted(self, name: str) -> bool:
        """Whether all who wait for a step that is lost can do without it. Whoever needs all of them cannot."""
        dependents = self._plan.dependents[name]
        return bool(dependents) and all(self.chance(each) is not Chance.GONE for each in dependents)

    def _decide(self, name: str, now: Standing, concerned: list[str]) -> None:
        if now is not Standing.OPEN:
            self._standing[name] = now
            self._count(name, now)
            concerned += self._plan.dependents[name]

    def _count(self, name: str, now: Standing) -> None:
        if now is Standing.OPEN:
            return
        counts = self._good if now is Standing.GOOD else self._lost
        for each in self._plan.dependents[name]:
            counts[each] += 1


def worst(states: Mapping[str, StepState], failures: list[str]) -> tuple[RunStatus, str] | None:
    """What failures beyond repair make of a run, and the step that it is named after; None: there are none."""
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
    """What a run is called that is not over."""
    waiting = any(state.status is StepStatus.WAITING for state in states.values())
    return RunStatus.WAITING if waiting else RunStatus.RUNNING
