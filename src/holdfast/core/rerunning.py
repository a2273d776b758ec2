"""Another run of the same: from its beginning, or with what went well kept. Pure.

What is kept: steps that succeeded, steps that their own condition skipped, and failures that a handler made good,
together with the handler. Everything else begins anew. A run that is not over has nothing to be run again.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from holdfast.core.advancing import begin
from holdfast.core.run import Run, StepState, StepStatus
from holdfast.core.run_status import Standing, standing


def again(run: Run, identity: str, *, now_ns: int, keep: bool) -> Run:
    """A new run of the same workflow with the same input. `keep`: with the outputs of what went well."""
    anew = begin(identity, run.tenant, run.workflow, run.input, now_ns=now_ns)
    if not keep:
        return anew
    steps = {name: _kept(run, name, state) for name, state in run.steps.items()}
    return replace(anew, steps=MappingProxyType(steps))


def _kept(run: Run, name: str, state: StepState) -> StepState:
    if state.status is StepStatus.SUCCEEDED or standing(run.workflow, run.steps, name) is Standing.GOOD:
        return state
    return StepState()
