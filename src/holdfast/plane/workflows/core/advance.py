"""Advances a run: a run and an event give the next state of the run, and the effects to apply. Pure.

Promises:

- Every attempt starts once and ends once. A finished step never changes, nor does a finished run, and nothing is
  started for a finished step.
- A check of a run on which everything is up to date changes nothing and has no effects.
- Every run ends, if its jobs, gates and child runs do: no step stays pending forever.
- An expression without a value fails its step, never the engine. An event that cannot be applied (`EventOutcome`)
  leaves the run unchanged.

A step starts when enough of the steps in its `after` went well (`run_outcome`), independent of other branches: a step
that waits for approval delays only its dependents. A handler starts when, in addition, a step that names it has failed
permanently. A handler runs once, for the first such step, and counts for all.

*When a failure is beyond repair*, the run cannot succeed any more. Then every unfinished step is stopped, except
handlers that are running or due: they clean up, and run to their end. The run ends with the last of them. *A deadline,
a cancellation, and a run that is given up* stop everything, handlers too, and end the run immediately.

The engine does not wait for stopped jobs. Their later results are `OUTDATED`, or `OVER` if the run has ended. A result
takes precedence over a deadline that has passed unnoticed: the event is applied first, then time. Times are the wall
clock's.

A re-run is a new run of the same workflow with the same input: from the beginning, or with the results of finished
steps. Steps that succeeded, steps that their own condition skipped, and failures that a handler recovered, together
with the handler, are kept. All other steps start again. Only a finished run can be run again.

Promises: **an approval is never kept.** A re-run requires every approval that a run from the beginning requires: all
approval steps, and all steps in `held`, start again. The result of a step behind such a step counts only after that
step has succeeded again (`StepState.kept`), so no step after an approval starts before the new decision. Jobs and child
runs behind an approval keep their results in this way and are not executed twice. Other steps behind an approval start
again: they cost nothing, and they may read the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from holdfast.core.backoff import Draw
from holdfast.errors import BadExpression, ExpressionFailed
from holdfast.plane.workflows.core.definition import StepKind, Workflow
from holdfast.plane.workflows.core.expression_scope import run_names
from holdfast.plane.workflows.core.fan_out import go_on, open_fan_out
from holdfast.plane.workflows.core.run import (
    Advance,
    CancelRequested,
    CheckRun,
    ChildEnded,
    Effect,
    Event,
    EventOutcome,
    GiveUp,
    JobEnded,
    Parent,
    Run,
    RunStatus,
    StepSlot,
    StepState,
    StepStatus,
    TimelineEntry,
    read_attempt_id,
)
from holdfast.plane.workflows.core.run_draft import ACTIVE, ADVANCE_COST_MAX, RunDraft, bad_expression
from holdfast.plane.workflows.core.run_outcome import (
    HANDLED,
    NOT_NEEDED,
    Reachability,
    StepResult,
    going_on,
    plan,
    step_result,
    worst,
)
from holdfast.plane.workflows.core.step_attempts import AttemptOutcome, earliest, outcome
from holdfast.plane.workflows.expressions import render, truth
from holdfast.plane.workflows.expressions.builtins import Budget

End: TypeAlias = tuple[RunStatus, str | None]  # the last status of a run, and the reason

_ENDED_BY: Final = {StepKind.JOB: JobEnded, StepKind.APPROVAL: JobEnded, StepKind.WORKFLOW: ChildEnded}


def always(risk: str) -> bool:  # noqa: ARG001 - the answer of a full lease, whatever the class
    """Whether steps of a class may start: always, under a full lease."""
    return True


def begin(
    id: str,
    tenant: str,
    workflow: Workflow,
    input: Any,
    *,
    now_ns: int,
    parent: Parent | None = None,
    depth: int = 0,
    deadline_ns: int | None = None,
) -> Run:
    """A new run with all steps pending. Its deadline is the given one or the workflow's, whichever is earlier."""
    own_ns = None if workflow.timeout_ns is None else now_ns + workflow.timeout_ns
    return Run(
        id,
        tenant,
        workflow,
        input,
        steps=MappingProxyType({name: StepState() for name in workflow.steps}),
        created_ns=now_ns,
        deadline_ns=earliest(own_ns, deadline_ns),
        parent=parent,
        depth=depth,
    )


def advance(
    run: Run,
    event: Event,
    now_ns: int,
    draw: Draw,
    *,
    may_start: Callable[[str], bool] = always,
    budget: Budget | None = None,
) -> Advance:
    """Apply an event to a run.

    `draw(n)` is a uniform integer below n, for the jitter of retries. `may_start` returns whether steps of a risk class
    may start under the current lease. Ready steps that may not start stay pending and are named in `held_back`. So do
    steps that are ready when the expressions of this advance have cost enough (`ADVANCE_COST_MAX`). `budget` counts
    that cost; `OverBudget` if its limit is exceeded.
    """
    heard, slot, ended = _apply_to_step(run, event)
    if heard is not EventOutcome.APPLIED:
        return Advance(run, heard, wake_ns=_wake_ns(run, run.steps.values(), -1))
    draft = RunDraft(run, now_ns, draw, may_start, budget)
    end: End | None = None
    if isinstance(event, CancelRequested):
        why = f"cancelled by {event.actor}" + (f": {event.reason}" if event.reason else "")
        end = (RunStatus.CANCELLED, why)
    elif isinstance(event, GiveUp):
        end = (RunStatus.FAILED, event.reason)
    else:
        if slot is not None and ended is not None:
            draft.end(slot, ended)
        draft.tick()
        late = run.deadline_ns is not None and now_ns >= run.deadline_ns
        _settle(draft, starting=not late)
        if late and _not_over(draft):
            end = (RunStatus.TIMED_OUT, "the deadline of the run has passed")
    if end is not None:
        _stop(draft, end[1] or "", _not_over(draft))
    return _concluded(draft, event, end)


def advance_all(
    run: Run,
    events: Sequence[Event],
    now_ns: int,
    draw: Draw,
    *,
    may_start: Callable[[str], bool] = always,
    budget: Budget | None = None,
) -> tuple[Advance, list[EventOutcome]]:
    """Apply at least one event to a run, as one change. Also returns the `EventOutcome` of each applied event.

    The run is the one that `advance` returns when it is called for each event in turn, at the same time and under the
    same lease; effects and notes keep that order. An event that cannot be applied does not affect the others. All
    events share the budget. If it is spent before the last one, the remaining events are left for another change, so
    that fan-out results with costly outputs are not one long computation. The whole change is `APPLIED` if one of the
    events was; otherwise it is like the last one's.
    """
    shared = Budget() if budget is None else budget
    effects: list[Effect] = []
    notes: list[TimelineEntry] = []
    outcomes: list[EventOutcome] = []
    found = Advance(run, EventOutcome.NOTHING)
    for event in events:
        if outcomes and shared.spent >= ADVANCE_COST_MAX:
            break
        found = advance(found.run, event, now_ns, draw, may_start=may_start, budget=shared)
        outcomes.append(found.outcome)
        effects += found.effects
        notes += found.notes
    whole = EventOutcome.APPLIED if EventOutcome.APPLIED in outcomes else found.outcome
    return replace(found, outcome=whole, effects=tuple(effects), notes=tuple(notes)), outcomes


# Events.


def _apply_to_step(run: Run, event: Event) -> tuple[EventOutcome, StepSlot | None, AttemptOutcome | None]:
    if run.status.terminal:
        return EventOutcome.OVER, None, None
    if isinstance(event, CheckRun | CancelRequested | GiveUp):
        return EventOutcome.APPLIED, None, None
    named = read_attempt_id(run.id, event.job if isinstance(event, JobEnded) else event.run)
    state = None if named is None else _found(run, named[0])
    if named is None or state is None or named[1] > state.attempt:
        return EventOutcome.UNKNOWN, None, None
    slot, attempt = named
    if _ENDED_BY.get(run.workflow.steps[slot.step].kind) is not type(event):
        return EventOutcome.UNKNOWN, None, None
    if attempt < state.attempt:
        return EventOutcome.OUTDATED, None, None
    if state.status not in ACTIVE:
        # An attempt that the run itself has stopped has no job any more, so this is late and not a duplicate.
        return (EventOutcome.OUTDATED if state.job is None else EventOutcome.REPEATED), None, None
    ended = outcome(event)
    return (EventOutcome.NOTHING if ended is None else EventOutcome.APPLIED), slot, ended


def _found(run: Run, slot: StepSlot) -> StepState | None:
    state = run.steps.get(slot.step)
    if state is None or (slot.child is None) is not (state.items is None):
        return None
    if slot.child is None:
        return state
    return state.children[slot.child] if slot.child < len(state.children) else None


# Consequences.


def _settle(draft: RunDraft, *, starting: bool) -> None:
    """Apply everything that follows. First skip steps that will never run, so that nothing starts in vain."""
    draft.look_at(_not_over(draft))
    _turns(draft)
    if starting:
        draft.starting = True
        draft.look_at(_not_over(draft))
        _turns(draft)


def _turns(draft: RunDraft) -> None:
    while True:
        while (name := draft.next_turn()) is not None:
            _look_at(draft, name)
        if not _stop_in_vain(draft) and not _skip_circle(draft):
            return


def _look_at(draft: RunDraft, name: str) -> None:
    state = draft.states[name]
    if state.status.terminal:
        return
    if state.items is not None:
        go_on(draft, name)
    elif state.status is not StepStatus.PENDING:
        return
    elif state.attempt:
        if draft.starting and (state.due_ns or 0) <= draft.now_ns and draft.may_start(name):
            draft.start(StepSlot(name))
    elif name in draft.plan.guarded and draft.standings.trigger(name) is None:
        if draft.standings.needless(name):
            draft.skip(name, NOT_NEEDED)
    else:
        _turn_comes(draft, name)


def _turn_comes(draft: RunDraft, name: str) -> None:
    chance = draft.standings.chance(name)
    if chance is Reachability.GONE:
        draft.skip(name, NOT_NEEDED if draft.standings.only_needless(name) else "dependency_failed")
    if chance is not Reachability.REACHED or not draft.starting or not draft.affordable(name):
        return
    slot = StepSlot(name)
    step = draft.step(slot)
    try:
        wanted = step.when is None or truth(step.when, draft.names(slot), draft.budget)
    except (BadExpression, ExpressionFailed) as error:
        draft.end(slot, bad_expression(error))
        return
    if not wanted:
        draft.skip(name, "condition_false", condition_false=True)
    elif not draft.may_start(name):
        return
    elif draft.states[name].kept:
        draft.reuse(name)
    else:
        if step.for_each is not None:
            open_fan_out(draft, name)
        else:
            draft.start(slot)
        if step.cancel_rest:
            _cancel_rest(draft, name)


def _cancel_rest(draft: RunDraft, name: str) -> None:
    """Stop the steps in `after` that a started step did not need, and the steps that led only to them."""
    pending = [name]
    while pending:
        for each in draft.plan.after[pending.pop()]:
            wanted = (other for other in draft.plan.dependents[each] if other != name)
            needed = any(not draft.states[other].status.terminal for other in wanted)
            if not draft.states[each].status.terminal and not needed and each not in draft.plan.guarded:
                _stop(draft, f"{name} has started without it", [each])
                pending.append(each)


def _stop_in_vain(draft: RunDraft) -> bool:
    """Stop steps that run in vain after a failure beyond repair. Returns whether there were any."""
    failures = draft.standings.beyond_repair()
    if not failures:
        return False
    vain = [name for name in _not_over(draft) if draft.standings.trigger(name) is None]
    _stop(draft, f"{failures[0]} ended as {draft.states[failures[0]].status}", vain)
    return bool(vain)


def _skip_circle(draft: RunDraft) -> bool:
    """Skip steps that wait for each other. A checked definition has none; with one, the run still ends."""
    left = _not_over(draft)
    idle = draft.starting and not draft.held and all(not draft.states[name].attempt for name in left)
    if not left or not idle:
        return False
    for name in left:
        draft.skip(name, "dependency_failed", "it waits for itself")
    return True


def _stop(draft: RunDraft, why: str, names: list[str]) -> None:
    for name in names:
        draft.held.discard(name)
        draft.stop(name, why)


# The result.


def _not_over(draft: RunDraft) -> list[str]:
    return [name for name, state in draft.states.items() if not state.status.terminal]


def _concluded(draft: RunDraft, event: Event, end: End | None) -> Advance:
    draft.freeze()
    run, output, notes = draft.run, None, draft.notes
    started_ns = run.started_ns
    if started_ns is None and end is None:  # a run that is stopped before any step started has not started
        started_ns = draft.now_ns
    if end is None and not _not_over(draft):
        end, output = _verdict(draft)
    status, error = end or (going_on(draft.states), None)
    heard = EventOutcome.APPLIED if draft.changed or status is not run.status else EventOutcome.NOTHING
    if heard is EventOutcome.NOTHING:
        wake_ns = _wake_ns(run, run.steps.values(), draft.now_ns)
        return Advance(run, heard, wake_ns=wake_ns, held_back=draft.held_back())
    if run.started_ns != started_ns:
        notes = [TimelineEntry(None, "started"), *notes]
    if end is not None:
        notes = [*notes, TimelineEntry(None, status.value, error or "")]
    made = replace(
        run,
        status=status,
        steps=MappingProxyType(draft.states),
        output=output,
        error=error,
        started_ns=started_ns,
        ended_ns=None if end is None else draft.now_ns,
        cancelled_by=event.actor if isinstance(event, CancelRequested) else run.cancelled_by,
    )
    wake_ns = _wake_ns(made, draft.states.values(), draft.now_ns)
    return Advance(made, heard, draft.effects(), tuple(notes), wake_ns, draft.held_back())


def _verdict(draft: RunDraft) -> tuple[End, Any]:
    """The status and output of a run whose steps have all finished."""
    found = worst(draft.states, draft.standings.beyond_repair())
    if found is not None:
        status, name = found
        return (status, f"{name}: {draft.states[name].error}"), None
    workflow = draft.run.workflow
    if workflow.output is None:
        last = {name: state for name, state in draft.states.items() if not draft.plan.dependents[name]}
        outputs = {name: each.output for name, each in last.items() if each.status is StepStatus.SUCCEEDED}
        return (RunStatus.SUCCEEDED, None), outputs
    try:
        return (RunStatus.SUCCEEDED, None), render(workflow.output, run_names(draft.run, draft.states), draft.budget)
    except (BadExpression, ExpressionFailed) as error:
        return (RunStatus.FAILED, f"output: {error}"), None


def _wake_ns(run: Run, states: Iterable[StepState], after_ns: int) -> int | None:
    """The earliest time after this one at which something is due."""
    if run.status.terminal:
        return None
    first = run.deadline_ns
    for state in states:
        if state.status.terminal:
            continue
        for each in (state, *state.children):
            if each.due_ns is None and each.limit_ns is None:
                continue  # most children of a fan-out
            for time_ns in (each.due_ns, each.limit_ns):
                if time_ns is not None and time_ns > after_ns and (first is None or time_ns < first):
                    first = time_ns
    return first


def again(
    run: Run,
    identity: str,
    *,
    now_ns: int,
    keep: bool,
    held: AbstractSet[str] = frozenset(),
    requesters: tuple[str, ...] = (),
) -> Run:
    """A new run of the same workflow with the same input. `keep`: with the results of finished steps.

    `held`: steps that need approval although they are no approval steps. `requesters`: of the run and of those that it
    repeats.
    """
    fresh = replace(begin(identity, run.tenant, run.workflow, run.input, now_ns=now_ns), requesters=requesters)
    if not keep:
        return fresh
    gates = held | {name for name, step in run.workflow.steps.items() if step.kind is StepKind.APPROVAL}
    behind = _behind(run, gates)
    steps = {name: _deferred(run, name) if name in behind else _kept(run, name) for name in run.steps}
    return replace(fresh, steps=MappingProxyType({**steps, **dict.fromkeys(gates, StepState())}))


def _kept(run: Run, name: str) -> StepState:
    """The result of a step that depends on no approval."""
    state = run.steps[name]
    if state.status is StepStatus.SUCCEEDED or step_result(run.workflow, run.steps, name) is StepResult.GOOD:
        return state
    return StepState()


def _deferred(run: Run, name: str) -> StepState:
    """The result of a step that depends on an approval: it counts when the step would start."""
    state, kind = run.steps[name], run.workflow.steps[name].kind
    repeatable = kind in (StepKind.JOB, StepKind.WORKFLOW) and name not in run.workflow.handlers
    if state.status is not StepStatus.SUCCEEDED or not repeatable:
        return StepState()
    size = sum(each.size for each in state.children) or state.size
    return StepState(output=state.output, size=size, kept=True)


def _behind(run: Run, gates: AbstractSet[str]) -> set[str]:
    """The steps that start only after one of these: dependents, handlers, and failures that one of them recovered."""
    backwards = plan(run.workflow)
    found: set[str] = set()
    pending = list(gates)
    while pending:
        name = pending.pop()
        handler = run.workflow.steps[name].on_error
        recovered = [each for each in backwards.guarded.get(name, ()) if run.steps[each].status in HANDLED]
        for each in (*backwards.dependents[name], *recovered, *([] if handler is None else [handler])):
            if each not in found:
                found.add(each)
                pending.append(each)
    return found
