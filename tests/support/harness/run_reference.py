"""The status rules of a run once more, written from their text alone: slow, plain, and without a line of the engine.

It looks at steps that are as they are (status and code) and says what must follow, not knowing how they came there.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.run import StepState

FAILURES = ("failed", "denied", "timed_out")
OPEN = ("pending", "running", "waiting")


class Reference:
    def __init__(self, workflow: Workflow, states: Mapping[str, StepState]) -> None:
        self.steps = workflow.steps
        self.states = states

    def recovered(self, name: str, seen: tuple[str, ...] = ()) -> bool | None:
        """Whether the chain of handlers reaches one that succeeded; None: it is not decided."""
        handler = self.steps[name].on_error
        if handler is None or handler in (*seen, name):
            return False
        status = self.states[handler].status
        if status == "succeeded":
            return True
        if status in OPEN:
            return None
        return self.recovered(handler, (*seen, name)) if status in FAILURES else False

    def good(self, name: str) -> bool | None:
        """Whether a step went well for those who wait for it; None: it is not decided."""
        state = self.states[name]
        if state.status in OPEN:
            return None
        if state.status in FAILURES:
            return self.recovered(name)
        return state.status == "succeeded" or state.code == "condition_false"

    def reached(self, name: str) -> bool | None:
        """Whether enough of what a step waits for went well; None: it is not decided."""
        after = set(self.steps[name].after)
        join = self.steps[name].join
        need = len(after) if join is None else join
        if sum(self.good(each) is True for each in after) >= need:
            return True
        return None if sum(self.good(each) is not False for each in after) >= need else False

    def outvoted(self, name: str) -> bool:
        dependents = [each for each, step in self.steps.items() if name in step.after]
        tolerant = [each for each in dependents if (self.steps[each].join or 10**9) < len(set(self.steps[each].after))]
        return bool(dependents) and dependents == tolerant and all(self.reached(each) for each in dependents)

    def wanted(self, name: str) -> bool:
        """Whether a step has any reason to run: handlers have one when a step that names them failed."""
        guarded = [each for each, step in self.steps.items() if step.on_error == name]
        return not guarded or any(self.states[each].status in FAILURES for each in guarded)

    def verdict(self) -> str:
        """What a run is whose steps are all over."""
        found = set()
        for name, state in self.states.items():
            if state.status == "cancelled" and state.code == "stopped":
                continue
            failed = state.status in (*FAILURES, "cancelled")
            if failed and not (state.status in FAILURES and self.recovered(name)) and not self.outvoted(name):
                found.add("failed" if state.status == "cancelled" else str(state.status))
        return next((each for each in FAILURES if each in found), "succeeded")
