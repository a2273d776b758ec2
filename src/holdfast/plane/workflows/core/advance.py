"""How a run goes on: a run and an event give the run that comes of it, and what is to be done. Pure.

Promises: every attempt is made once and ends once; a step that is over stays so, and so does a run; nothing is made for
a step that is over; a look at a run on which everything is as it should be changes nothing and asks for nothing. Every
run ends, if its jobs, gates and runs do: no step is left pending for ever. An expression that gives no value fails its
step, never the engine. An event that cannot be worked in (`Heard`) leaves the run as it is, value for value.

A step's turn comes when enough of what it waits for has gone well (`run_status`), whatever the steps of other branches
do meanwhile: a step that waits for a person holds up nobody but those who wait for it. A handler's turn comes when,
besides, a step that names it has failed for good; a handler runs once, for whoever comes first, and counts for all.

*When a failure is beyond repair*, the run cannot succeed any more. Then and only then everything that is not over is
stopped, but for handlers that run or are due: they are there to clean up, and run to their end. The run ends with the
last of them. *A deadline, a cancellation, and a run that is given up* stop everything, handlers too, and end the run
at once.

A stopped job is not waited for. What it says later is `OUTDATED`, or `OVER` if the run has ended. A result that came
is worth more than a limit that has passed unnoticed: the event is heard first, then time. Times are the wall clock's.

A new run of the same workflow with the same input: from the beginning, or with the results of finished steps. Pure.

Kept are steps that succeeded, steps that their own condition skipped, and failures that a handler recovered, together
with the handler. All other steps start again. Only a finished run can be run again.

Promises: **an approval is never kept.** A re-run asks for every approval that a run from the beginning asks for: all
approval steps, and all steps in `held`, start again. The result of a step behind such a step counts only once that
step has succeeded again (`StepState.kept`), so no step that comes after an approval starts before the new decision.
Jobs and sub-workflows behind an approval keep their results this way and are not executed twice. Other steps behind an
approval start again: they cost nothing, and they may read the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    CancelWanted,
    ChildEnded,
    Event,
    GiveUp,
    Heard,
    JobEnded,
    Look,
    Note,
    Parent,
    Run,
    RunStatus,
    Slot,
    StepState,
    StepStatus,
    read_attempt_id,
)
from holdfast.plane.workflows.core.run_draft import ACTIVE, Draft, bad_expression
from holdfast.plane.workflows.core.run_outcome import (
    HANDLED,
    NOT_NEEDED,
    Chance,
    Standing,
    going_on,
    plan,
    standing,
    worst,
)
from holdfast.plane.workflows.core.step_attempts import Outcome, earliest, outcome
from holdfast.plane.workflows.expressions import render, truth
from holdfast.plane.workflows.expressions.builtins import Budget

End: TypeAlias = tuple[RunStatus, str | None]  # a run's last status, and why

_ENDED_BY: Final = {StepKind.JOB: JobEnded, StepKind.APPROVAL: JobEnded, StepKind.WORKFLOW: ChildEnded}


def always(risk: str) -> bool:  # noqa: ARG001 - the answer of a full lease, whatever the class
    """Whether steps of a class may start, under a full lease."""
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
    """A new run, with every step to come. Its deadline is the given one or the workflow's, whichever is earlier."""
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
    """Work an event into a run.

    `draw(n)` is a uniform whole number below n, for the spread of retries. `may_start` says of a risk class whether its
    steps may start under the lease that is held; ready steps that may not stay pending and are named in `held_back`.
    So do steps that are ready when the expressions of this advance have cost enough (`ADVANCE_COST_MAX`). `budget`
    counts that cost; `OverBudget` if it has a limit and that is not enough.
    """
    heard, slot, ended = _hear(run, event)
    if heard is not Heard.APPLIED:
        return Advance(run, heard, wake_ns=_wake_ns(run, run.steps.values(), -1))
    draft = Draft(run, now_ns, draw, may_start, budget)
    end: End | None = None
    if isinstance(event, CancelWanted):
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


# What an event means.


def _hear(run: Run, event: Event) -> tuple[Heard, Slot | None, Outcome | None]:
    if run.status.terminal:
        return Heard.OVER, None, None
    if isinstance(event, Look | CancelWanted | GiveUp):
        return Heard.APPLIED, None, None
    named = read_attempt_id(run.id, event.job if isinstance(event, JobEnded) else event.run)
    state = None if named is None else _found(run, named[0])
    if named is None or state is None or named[1] > state.attempt:
        return Heard.UNKNOWN, None, None
    slot, attempt = named
    if _ENDED_BY.get(run.workflow.steps[slot.step].kind) is not type(event):
        return Heard.UNKNOWN, None, None
    if attempt < state.attempt:
        return Heard.OUTDATED, None, None
    if state.status not in ACTIVE:
        # An attempt that the run itself has stopped has no job any more, so this is late and not a repetition.
        return (Heard.OUTDATED if state.job is None else Heard.REPEATED), None, None
    ended = outcome(event)
    return (Heard.NOTHING if ended is None else Heard.APPLIED), slot, ended


def _found(run: Run, slot: Slot) -> StepState | None:
    state = run.steps.get(slot.step)
    if state is None or (slot.child is None) is not (state.items is None):
        return None
    if slot.child is None:
        return state
    return state.children[slot.child] if slot.child < len(state.children) else None


# What follows.


def _settle(draft: Draft, *, starting: bool) -> None:
    """Let everything follow that follows by itself. First what will never run, so that nothing begins in vain."""
    draft.look_at(_not_over(draft))
    _turns(draft)
    if starting:
        draft.starting = True
        draft.look_at(_not_over(draft))
        _turns(draft)


def _turns(draft: Draft) -> None:
    while True:
        while (name := draft.next_turn()) is not None:
            _look_at(draft, name)
        if not _stop_in_vain(draft) and not _skip_circle(draft):
            return


def _look_at(draft: Draft, name: str) -> None:
    state = draft.states[name]
    if state.status.terminal:
        return
    if state.items is not None:
        go_on(draft, name)
    elif state.status is not StepStatus.PENDING:
        return
    elif state.attempt:
        if draft.starting and (state.due_ns or 0) <= draft.now_ns and draft.may_start(name):
            draft.start(Slot(name))
    elif name in draft.plan.guarded and draft.standings.trigger(name) is None:
        if draft.standings.needless(name):
            draft.skip(name, NOT_NEEDED)
    else:
        _turn_comes(draft, name)


def _turn_comes(draft: Draft, name: str) -> None:
    chance = draft.standings.chance(name)
    if chance is Chance.GONE:
        draft.skip(name, NOT_NEEDED if draft.standings.only_needless(name) else "dependency_failed")
    if chance is not Chance.REACHED or not draft.starting or not draft.affordable(name):
        return
    slot = Slot(name)
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


def _cancel_rest(draft: Draft, name: str) -> None:
    """Stop what a step that has begun did not need of its `after`, and what led only to that."""
    pending = [name]
    while pending:
        for each in draft.plan.after[pending.pop()]:
            wanted = (other for other in draft.plan.dependents[each] if other != name)
            needed = any(not draft.states[other].status.terminal for other in wanted)
            if not draft.states[each].status.terminal and not needed and each not in draft.plan.guarded:
                _stop(draft, f"{name} has begun without it", [each])
                pending.append(each)


def _stop_in_vain(draft: Draft) -> bool:
    """Stop what goes on for nothing, if a failure is beyond repair; whether there was anything."""
    failures = draft.standings.beyond_repair()
    if not failures:
        return False
    vain = [name for name in _not_over(draft) if draft.standings.trigger(name) is None]
    _stop(draft, f"{failures[0]} ended as {draft.states[failures[0]].status}", vain)
    return bool(vain)


def _skip_circle(draft: Draft) -> bool:
    """Skip steps that wait for each other. No definition that was checked has any; nothing hangs if one has."""
    left = _not_over(draft)
    idle = draft.starting and not draft.held and all(not draft.states[name].attempt for name in left)
    if not left or not idle:
        return False
    for name in left:
        draft.skip(name, "dependency_failed", "it waits for itself")
    return True


def _stop(draft: Draft, why: str, names: list[str]) -> None:
    for name in names:
        draft.held.discard(name)
        draft.stop(name, why)


# What has become of it.


def _not_over(draft: Draft) -> list[str]:
    return [name for name, state in draft.states.items() if not state.status.terminal]


def _concluded(draft: Draft, event: Event, end: End | None) -> Advance:
    draft.freeze()
    run, output, notes = draft.run, None, draft.notes
    started_ns = run.started_ns
    if started_ns is None and end is None:  # a run that is stopped before anything began has not begun
        started_ns = draft.now_ns
    if end is None and not _not_over(draft):
        end, output = _verdict(draft)
    status, error = end or (going_on(draft.states), None)
    heard = Heard.APPLIED if draft.changed or status is not run.status else Heard.NOTHING
    if heard is Heard.NOTHING:
        wake_ns = _wake_ns(run, run.steps.values(), draft.now_ns)
        return Advance(run, heard, wake_ns=wake_ns, held_back=draft.held_back())
    if run.started_ns != started_ns:
        notes = [Note(None, "started"), *notes]
    if end is not None:
        notes = [*notes, Note(None, status.value, error or "")]
    made = replace(
        run,
        status=status,
        steps=MappingProxyType(draft.states),
        output=output,
        error=error,
        started_ns=started_ns,
        ended_ns=None if end is None else draft.now_ns,
        cancelled_by=event.actor if isinstance(event, CancelWanted) else run.cancelled_by,
    )
    wake_ns = _wake_ns(made, draft.states.values(), draft.now_ns)
    return Advance(made, heard, draft.effects(), tuple(notes), wake_ns, draft.held_back())


def _verdict(draft: Draft) -> tuple[End, Any]:
    """What a run is whose steps are all over, and its output."""
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
    """The first time after this one at which something happens by itself."""
    if run.status.terminal:
        return None
    first = run.deadline_ns
    for state in states:
        if state.status.terminal:
            continue
        for each in (state, *state.children):
            if each.due_ns is None and each.limit_ns is None:
                continue  # so most of the children of a fan-out
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

    `held`: steps that a person has to approve although they are no approval steps. `requesters`: who asked for the
    run and for those that it repeats.
    """
    anew = replace(begin(identity, run.tenant, run.workflow, run.input, now_ns=now_ns), requesters=requesters)
    if not keep:
        return anew
    gates = held | {name for name, step in run.workflow.steps.items() if step.kind is StepKind.APPROVAL}
    behind = _behind(run, gates)
    steps = {name: _deferred(run, name) if name in behind else _kept(run, name) for name in run.steps}
    return replace(anew, steps=MappingProxyType({**steps, **dict.fromkeys(gates, StepState())}))


def _kept(run: Run, name: str) -> StepState:
    """The result of a step that depends on no approval."""
    state = run.steps[name]
    if state.status is StepStatus.SUCCEEDED or standing(run.workflow, run.steps, name) is Standing.GOOD:
        return state
    return StepState()


def _deferred(run: Run, name: str) -> StepState:
    """The result of a step that depends on an approval: it counts when the turn of the step comes."""
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
