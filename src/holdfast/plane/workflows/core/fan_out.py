"""Fan-out: one child of a step for each item of a list, with limited concurrency and one list as the output. Pure.

The items are evaluated once, when the step starts, and kept. Children start in order, as long as fewer than
`max_parallel` of them run or wait; a child between two attempts takes no slot. The output is the list of the children's
outputs in the order of the items. The first child that fails permanently fails the step in the same way, and the others
are stopped (`RunDraft`). Retries and timeouts apply to each child.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.core.strict_parsers import Unstorable
from holdfast.errors import BadExpression, ExpressionFailed
from holdfast.plane.workflows.core.definition import FAN_OUT_MAX
from holdfast.plane.workflows.core.run import StepSlot, StepState, StepStatus, TimelineEntry
from holdfast.plane.workflows.core.run_draft import ACTIVE, RunDraft, bad_expression
from holdfast.plane.workflows.core.step_attempts import AttemptOutcome
from holdfast.plane.workflows.expressions import evaluate, render


def open_fan_out(draft: RunDraft, name: str) -> None:
    """Evaluate the items of a step that is due, and create its children."""
    slot = StepSlot(name)
    try:
        items = _items(draft, slot)
        size = draft.keep(items)
    except (BadExpression, ExpressionFailed) as error:
        draft.end(slot, bad_expression(error))
        return
    except Unstorable as problem:
        draft.end(slot, AttemptOutcome(StepStatus.FAILED, error=f"for_each {problem}", code="too_many_items"))
        return
    begun = StepState(StepStatus.RUNNING, attempt=1, started_ns=draft.now_ns, items=tuple(items), size=size)
    draft.put(slot, replace(begun, children=(StepState(),) * len(items)))
    draft.notes.append(TimelineEntry(name, "started", f"{len(items)} items", 1))
    go_on(draft, name)


def _items(draft: RunDraft, slot: StepSlot) -> list[Any]:
    wanted = draft.step(slot).for_each
    names = draft.names(slot)
    budget = draft.budget
    items = evaluate(wanted, names, budget) if isinstance(wanted, str) else render(wanted, names, budget)
    if not isinstance(items, list):
        raise ExpressionFailed(str(wanted), "gives no list")
    if len(items) > FAN_OUT_MAX:
        raise Unstorable(f"gives {len(items)} items, and {FAN_OUT_MAX} is the most")
    return items


def go_on(draft: RunDraft, name: str) -> None:
    """Start the children that are due; end the step when all of them have succeeded."""
    slot = StepSlot(name)
    children = draft.children(name)
    if draft.starting:
        _begin_children(draft, name, children)
    state = draft.states[name]
    if state.status.terminal:
        return
    if all(child.status is StepStatus.SUCCEEDED for child in children):
        output = [child.output for child in children]
        over = replace(state, status=StepStatus.SUCCEEDED, ended_ns=draft.now_ns, output=output)
        draft.put(slot, over)
        draft.notes.append(TimelineEntry(name, "succeeded", "", 1))
        return
    waiting = any(child.status is StepStatus.WAITING for child in children)
    status = StepStatus.WAITING if waiting else StepStatus.RUNNING
    if state.status is not status:
        draft.put(slot, replace(state, status=status))


def _begin_children(draft: RunDraft, name: str, children: list[StepState]) -> None:
    most = draft.step(StepSlot(name)).max_parallel or len(children)
    free = most - sum(child.status in ACTIVE for child in children)
    for index, child in enumerate(children):
        if free <= 0:
            return
        if child.status is not StepStatus.PENDING or (child.due_ns is not None and child.due_ns > draft.now_ns):
            continue
        if not draft.may_start(name):
            return
        draft.start(StepSlot(name, index))
        if draft.states[name].status.terminal:
            return
        free -= children[index].status in ACTIVE
