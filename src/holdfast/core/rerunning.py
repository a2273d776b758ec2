"""A new run of the same workflow with the same input: from the beginning, or with the results of finished steps. Pure.

Kept are steps that succeeded, steps that their own condition skipped, and failures that a handler recovered, together
with the handler. All other steps start again. Only a finished run can be run again.

Promises: **an approval is never kept.** A re-run asks for every approval that a run from the beginning asks for: all
approval steps, and all steps in `held`, start again. The result of a step behind such a step counts only once that
step has succeeded again (`StepState.kept`), so no step that comes after an approval starts before the new decision.
Jobs and sub-workflows behind an approval keep their results this way and are not executed twice. Other steps behind an
approval start again: they cost nothing, and they may read the decision.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import MappingProxyType

from holdfast.core.advancing import begin
from holdfast.core.run import Run, StepState, StepStatus
from holdfast.core.run_status import HANDLED, Standing, plan, standing
from holdfast.core.workflow import StepKind


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
