"""A run while an event is applied: the changed steps and the effects. Pure.

`RunDraft` starts, ends, times out and stops attempts, for steps and for children of a fan-out alike; `advance` decides
which step is due. An attempt that one event both starts and ends has not started: no effect is created only to be
stopped. Nothing here outlives one call of `advance`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from holdfast.core.backoff import Draw
from holdfast.core.strict_parsers import RUN_BYTES_MAX, Unstorable, json_size
from holdfast.errors import BadExpression, ExpressionFailed
from holdfast.plane.workflows.core.definition import Step, StepKind
from holdfast.plane.workflows.core.expression_scope import error_name, run_names
from holdfast.plane.workflows.core.run import Effect, Run, StepSlot, StepState, StepStatus, TimelineEntry
from holdfast.plane.workflows.core.run_outcome import STOPPED, StepResults, plan
from holdfast.plane.workflows.core.step_attempts import (
    AttemptOutcome,
    StartedAttempt,
    begin_attempt,
    charge_bytes,
    retry_delay_ns,
    stop_effect,
)
from holdfast.plane.workflows.expressions import render
from holdfast.plane.workflows.expressions.builtins import Budget

ADVANCE_COST_MAX: Final = 1_000_000
"""Units (`expressions.builtins`) that one advance may spend before it starts no more steps: about half a second.

The next advance, a second later, starts the remaining ready steps: a workflow with costly expressions is slow, and does
not delay other runs.
"""

ACTIVE = frozenset({StepStatus.RUNNING, StepStatus.WAITING})

_DONE = AttemptOutcome(StepStatus.SUCCEEDED)


def bad_expression(error: BadExpression | ExpressionFailed) -> AttemptOutcome:
    """The outcome of a step whose expressions have no value."""
    return AttemptOutcome(StepStatus.FAILED, error=str(error), code="bad_expression")


class RunDraft:
    """One run, one event."""

    def __init__(
        self, run: Run, now_ns: int, draw: Draw, may_start: Callable[[str], bool], budget: Budget | None = None
    ) -> None:
        self.run, self.now_ns, self._draw, self._may_start = run, now_ns, draw, may_start
        self.budget = Budget() if budget is None else budget
        self.states: dict[str, StepState] = dict(run.steps)
        self.plan = plan(run.workflow)
        self.standings = StepResults(self.plan, self.states)
        self.turn: deque[str] = deque()  # steps to check, each once
        self.starting = False  # whether steps may start now
        self.held: set[str] = set()  # ready steps that may not start
        self.changed = False
        self.notes: list[TimelineEntry] = []
        self._made: dict[str, tuple[Effect, StepState]] = {}  # by id: the effect, and the step before it
        self._stops: list[Effect] = []
        self._in_turn: set[str] = set()
        self._children: dict[str, list[StepState]] = {}  # of the changed fan-outs
        self._kept: int | None = None  # bytes; counted on demand
        self._names = run_names(run, self.states)

    # The current state.

    def step(self, slot: StepSlot) -> Step:
        """The definition of a slot's step."""
        return self.run.workflow.steps[slot.step]

    def state(self, slot: StepSlot) -> StepState:
        """The current state of a slot."""
        return self.states[slot.step] if slot.child is None else self.children(slot.step)[slot.child]

    def children(self, name: str) -> list[StepState]:
        """The current children of a fan-out."""
        found = self._children.get(name)
        if found is None:
            found = self._children[name] = list(self.states[name].children)
        return found

    def effects(self) -> tuple[Effect, ...]:
        """The effects. Stops come first: they free capacity."""
        return (*self._stops, *(effect for effect, _ in self._made.values()))

    def names(self, slot: StepSlot) -> dict[str, Any]:
        """The names that the expressions of a slot can read."""
        names = dict(self._names)
        failed = self.standings.trigger(slot.step)
        if failed is not None:
            names["error"] = error_name(failed, self.states[failed])
        if slot.child is not None:
            names["item"] = (self.states[slot.step].items or ())[slot.child]
            names["index"] = slot.child
        return names

    # Steps to check.

    def look_at(self, names: list[str]) -> None:
        """Check these steps later, once each."""
        for name in names:
            if name not in self._in_turn:
                self._in_turn.add(name)
                self.turn.append(name)

    def next_turn(self) -> str | None:
        """The next step to check."""
        if not self.turn:
            return None
        name = self.turn.popleft()
        self._in_turn.discard(name)
        return name

    def may_start(self, name: str) -> bool:
        """Whether a step may start under the current lease, in this advance. If not, it is recorded as held back."""
        if self.affordable(name) and self._may_start(self.run.workflow.risk_of(name)):
            return True
        self.held.add(name)
        return False

    def affordable(self, name: str) -> bool:
        """Whether this advance may evaluate more expressions. If not, the step is left for the next advance."""
        if self.budget.spent < ADVANCE_COST_MAX:
            return True
        self.held.add(name)
        return False

    def held_back(self) -> tuple[str, ...]:
        """The ready steps that were not started, in the order of the definition."""
        return tuple(name for name in self.states if name in self.held) if self.held else ()

    # Changes.

    def put(self, slot: StepSlot, state: StepState) -> None:
        """Set the state of a slot."""
        self.changed = True
        if slot.child is not None:
            self.children(slot.step)[slot.child] = state
            return
        before = self.states[slot.step]
        if state.status.terminal and slot.step in self._children:
            state = replace(state, children=tuple(self._children.pop(slot.step)))
        self.states[slot.step] = state
        if state.status.terminal and not before.status.terminal:
            self.look_at(self.standings.over(slot.step))

    def freeze(self) -> None:
        """Write the changed children into their steps."""
        for name, children in self._children.items():
            self.states[name] = replace(self.states[name], children=tuple(children))
        self._children.clear()

    def start(self, slot: StepSlot) -> None:
        """Start the next attempt."""
        step, before = self.step(slot), self.state(slot)
        attempt = before.attempt + 1
        limit_ns = None if step.timeout_ns is None else self.now_ns + step.timeout_ns
        names = self.names(slot)
        try:
            begun = begin_attempt(
                self.run, step, slot, attempt, names, now_ns=self.now_ns, limit_ns=limit_ns, budget=self.budget
            )
        except (BadExpression, ExpressionFailed) as error:
            begun = StartedAttempt(StepStatus.RUNNING, outcome=bad_expression(error))
        state = StepState(
            begun.status, attempt, begun.job, started_ns=self.now_ns, due_ns=begun.due_ns, limit_ns=limit_ns
        )
        self.put(slot, state)
        if begun.job is not None and begun.effect is not None:
            self._made[begun.job] = (begun.effect, before)
        if begun.outcome is not None:
            self.end(slot, begun.outcome)
        elif step.kind is StepKind.DELAY and self._ran_out(slot, state):
            pass
        elif slot.child is None:
            self._note(slot, "waiting" if state.status is StepStatus.WAITING else "started")

    def reuse(self, name: str) -> None:
        """A step is due whose result an earlier run has: it succeeds with that result."""
        before = self.states[name]
        done = StepState(StepStatus.SUCCEEDED, 1, started_ns=self.now_ns, ended_ns=self.now_ns)
        self.put(StepSlot(name), replace(done, output=before.output, size=before.size))
        self._note(StepSlot(name), "kept", "the result of the earlier run")

    def end(self, slot: StepSlot, outcome: AttemptOutcome) -> None:
        """An attempt has ended: the step ends, or is retried."""
        step, state = self.step(slot), self.state(slot)
        size = 0
        if outcome.status is StepStatus.SUCCEEDED:
            outcome, size = self._with_output(slot, outcome)
        if outcome.retryable and state.attempt <= step.retry.retries:
            delay_ns = retry_delay_ns(step.retry, state.attempt, self._draw)
            due_ns = self.now_ns + delay_ns
            again = replace(state, status=StepStatus.PENDING, due_ns=due_ns, limit_ns=None)
            self.put(slot, replace(again, ended_ns=self.now_ns, error=outcome.error, code=outcome.code))
            self._note(slot, "retrying", f"{outcome.status}: {outcome.error}")
            return
        over = replace(state, status=outcome.status, ended_ns=self.now_ns, due_ns=None, limit_ns=None)
        self.put(
            slot, replace(over, output=outcome.result, size=state.size + size, error=outcome.error, code=outcome.code)
        )
        if slot.child is None or outcome.status is not StepStatus.SUCCEEDED:
            self._note(slot, outcome.status.value, outcome.error or "")
        if slot.child is not None and outcome.status is not StepStatus.SUCCEEDED:
            self._fail_fan_out(slot, outcome)

    def _with_output(self, slot: StepSlot, outcome: AttemptOutcome) -> tuple[AttemptOutcome, int]:
        """A successful attempt with its output and size, or its failure if there is no output."""
        template = self.step(slot).output
        try:
            output = outcome.result
            if template is not None:
                output = render(template, {**self.names(slot), "result": output}, self.budget)
            return outcome._replace(result=output), self.keep(output)
        except (BadExpression, ExpressionFailed) as error:
            return bad_expression(error), 0
        except Unstorable as problem:
            return AttemptOutcome(StepStatus.FAILED, error=f"its output {problem}", code="output_too_large"), 0

    def keep(self, value: Any) -> int:
        """The size of a value that the run will keep, or `Unstorable`: the run would be too large."""
        if value is None:
            return 0
        if self._kept is None:
            self._kept = sum(each.size for state in self.states.values() for each in (state, *state.children))
        size = json_size(value, RUN_BYTES_MAX - self._kept)
        charge_bytes(self.budget, size)
        self._kept += size
        return size

    def _fail_fan_out(self, slot: StepSlot, outcome: AttemptOutcome) -> None:
        """A child has failed permanently: the step fails in the same way, and the other children are stopped."""
        parent = StepSlot(slot.step)
        self._stop_children(parent, f"{slot.path} ended as {outcome.status}")
        self.end(parent, outcome._replace(error=f"{slot.path}: {outcome.error}", retryable=False))

    def skip(self, name: str, code: str, error: str | None = None, *, condition_false: bool = False) -> None:
        """A step will not run."""
        skipped = StepState(StepStatus.SKIPPED, ended_ns=self.now_ns, error=error, code=code)
        self.put(StepSlot(name), replace(skipped, condition_false=condition_false))
        self._note(StepSlot(name), "skipped", code)

    # Time.

    def tick(self) -> None:
        """End the delays and attempts whose time has passed."""
        for name in [name for name, state in self.states.items() if state.status in ACTIVE]:
            if self.states[name].items is None:
                self._ran_out(StepSlot(name), self.states[name])
                continue
            timed = [
                (index, child)
                for index, child in enumerate(self.children(name))
                if child.status in ACTIVE and (child.due_ns is not None or child.limit_ns is not None)
            ]
            for index, child in timed:
                if not self.states[name].status.terminal:  # a child that failed has stopped the others
                    self._ran_out(StepSlot(name, index), child)

    def _ran_out(self, slot: StepSlot, state: StepState) -> bool:
        """Whether the time of an attempt has passed; if so, it is ended. A delay ends at the earlier of its times."""
        due_ns, limit_ns = state.due_ns, state.limit_ns
        if due_ns is not None and due_ns <= self.now_ns and (limit_ns is None or due_ns <= limit_ns):
            self.end(slot, _DONE)
            return True
        if limit_ns is None or limit_ns > self.now_ns:
            return False
        self._unmake(slot, state, "its time is up")
        timed_out = AttemptOutcome(StepStatus.TIMED_OUT, error="its time is up", code="timeout", retryable=True)
        self.end(slot, timed_out)
        return True

    # Stopping.

    def stop(self, name: str, why: str) -> None:
        """The run does not need a step any more. It is skipped if it never started, otherwise cancelled."""
        slot = StepSlot(name)
        if self.states[name].items is not None:
            self._stop_children(slot, why)
        self._stop_slot(slot, why)

    def _stop_children(self, slot: StepSlot, why: str) -> None:
        for index, child in enumerate(self.children(slot.step)):
            if not child.status.terminal:
                self._stop_slot(StepSlot(slot.step, index), why)

    def _stop_slot(self, slot: StepSlot, why: str) -> None:
        state = self._unmake(slot, self.state(slot), why)
        if state.kept:
            state = StepState()
        status = StepStatus.CANCELLED if state.attempt else StepStatus.SKIPPED
        stopped = replace(state, status=status, ended_ns=self.now_ns, due_ns=None, limit_ns=None)
        self.put(slot, replace(stopped, error=why, code=STOPPED))
        if slot.child is None:
            self._note(slot, status.value, why)

    def _unmake(self, slot: StepSlot, state: StepState, why: str) -> StepState:
        """Stop the job, gate or run of the current attempt, if there is one."""
        job = state.job
        if state.status not in ACTIVE or job is None:
            return state
        fresh = self._made.pop(job, None)
        if fresh is None:
            self._stops.append(stop_effect(self.step(slot), job, why))
            state = replace(state, job=None)
        else:
            state = fresh[1]
            self.notes = [each for each in self.notes if (each.step, each.attempt) != (slot.path, state.attempt + 1)]
        self.put(slot, state)
        return state

    def _note(self, slot: StepSlot, kind: str, detail: str = "") -> None:
        self.notes.append(TimelineEntry(slot.path, kind, detail, self.state(slot).attempt))
