"""The names that expressions of a run can read. Pure.

These are `input`, `run` and `steps`, and in some places `item`, `index`, `result` and `error`.

`steps.fetch` has `status`, `output`, `error` and `code`. An unfinished step has no output, and a step that a handler
recovered has the output of the handler. In a handler, `error` is the failure that it handles: `step`, `status`, `code`,
`message`, `attempt`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.run import Run, StepState, StepStatus
from holdfast.plane.workflows.core.run_outcome import HANDLED
from holdfast.types import NS


class _Steps(Mapping[str, Any]):
    """The steps as expressions see them, created when they are read: few of them ever are."""

    __slots__ = ("_states", "_workflow")

    def __init__(self, workflow: Workflow, states: Mapping[str, StepState]) -> None:
        self._workflow = workflow
        self._states = states

    def __getitem__(self, name: str) -> dict[str, Any]:
        state = self._states[name]
        output = None if state.kept else self._recovered(name).output
        return {"status": state.status.value, "output": output, "error": state.error, "code": state.code}

    def _recovered(self, name: str) -> StepState:
        """The step with the output: the step itself, or the handler that recovered it."""
        last, met = name, {name}
        while self._states[last].status in HANDLED:
            step = self._workflow.steps[last]
            if step.on_error is None or step.on_error in met or not step.recover:
                break
            last = step.on_error
            met.add(last)
        return self._states[last if self._states[last].status is StepStatus.SUCCEEDED else name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)


def run_names(run: Run, states: Mapping[str, StepState]) -> dict[str, Any]:
    """The names that every text of a run can read. `states` may change afterwards: expressions read the latest."""
    about = {
        "id": run.id,
        "tenant": run.tenant,
        "workflow": run.workflow.name,
        "version": run.workflow.version,
        "created": run.created_ns / NS,
    }
    return {"input": run.input, "run": about, "steps": _Steps(run.workflow, states)}


def error_name(step: str, state: StepState) -> dict[str, Any]:
    """The failure as a handler can read it."""
    return {
        "step": step,
        "status": state.status.value,
        "code": state.code,
        "message": state.error,
        "attempt": state.attempt,
    }
