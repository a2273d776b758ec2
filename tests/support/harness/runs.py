"""A run on a stage: it is advanced by hand, in virtual time, and everything that it asks for is kept.

What must hold at every event is checked at every event, whatever the test is about: nothing is made twice, nothing is
made for a step that has ended, what was over stays as it was, a second look changes nothing, and JSON changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.advance import advance, always, begin
from holdfast.plane.workflows.core.definition import Step, StepKind, Workflow
from holdfast.plane.workflows.core.run import (
    Advance,
    CancelRequested,
    CheckRun,
    ChildEnded,
    Effect,
    Event,
    EventOutcome,
    JobEnded,
    RequestApproval,
    Run,
    RunStatus,
    StartChildRun,
    StepState,
    StepStatus,
    StopJob,
    StopRun,
    SubmitStepJob,
    read_attempt_id,
)
from holdfast.plane.workflows.core.run_codec import RunText, as_document, from_document
from holdfast.types import NS

START = 1_000 * NS
ACTIVE = (StepStatus.RUNNING, StepStatus.WAITING)
MAKES = (SubmitStepJob, RequestApproval, StartChildRun)


def job(name: str, *after: str, **more: Any) -> Step:
    return Step(name, StepKind.JOB, after=after, topic=more.pop("topic", "work"), **more)


def approval(name: str, *after: str, **more: Any) -> Step:
    return Step(name, StepKind.APPROVAL, after=after, **more)


def transform(name: str, *after: str, **more: Any) -> Step:
    return Step(name, StepKind.TRANSFORM, after=after, **more)


def delay(name: str, *after: str, **more: Any) -> Step:
    return Step(name, StepKind.DELAY, after=after, **more)


def sub(name: str, *after: str, **more: Any) -> Step:
    return Step(name, StepKind.WORKFLOW, after=after, workflow=more.pop("workflow", "other"), **more)


def workflow(*steps: Step, **more: Any) -> Workflow:
    return Workflow("w", {step.name: step for step in steps}, **more)


def lowest(bound: int) -> int:
    assert bound > 0
    return 0


class Stage:
    def __init__(
        self, *steps: Step, input: Any = None, deadline_ns: int | None = None, depth: int = 0, **more: Any
    ) -> None:
        self.now = START
        self.run: Run = begin(
            "r", "t", workflow(*steps, **more), input, now_ns=START, deadline_ns=deadline_ns, depth=depth
        )
        self.made: dict[str, Effect] = {}  # by id
        self.stopped: dict[str, str] = {}  # by id: why
        self.may_start: Callable[[str], bool] = always
        self.last = Advance(self.run, EventOutcome.NOTHING)
        self.draw: Callable[[int], int] = lowest
        self.text = RunText()

    # Events.

    def hear(self, event: Event) -> Advance:
        before = self.run
        found = advance(before, event, self.now, self.draw, may_start=self.may_start)
        self._check(before, event, found)
        self.run, self.last = found.run, found
        return found

    def look(self, later_ns: int = 0) -> Advance:
        self.now += later_ns
        return self.hear(CheckRun())

    def wake(self) -> Advance:
        """Let time pass until the run itself asks to be looked at."""
        assert self.last.wake_ns is not None
        self.now = max(self.now, self.last.wake_ns)
        return self.look()

    def ended(self, path: str, state: JobState = JobState.SUCCEEDED, result: Any = None, **more: Any) -> Advance:
        return self.hear(JobEnded(self._id(path), state, result, **more))

    def failed(self, path: str, reason: str = "it broke", **more: Any) -> Advance:
        return self.ended(path, JobState.FAILED, reason=reason, **more)

    def child_ended(self, path: str, status: RunStatus = RunStatus.SUCCEEDED, **more: Any) -> Advance:
        return self.hear(ChildEnded(self._id(path), status, **more))

    def cancel(self, reason: str = "") -> Advance:
        return self.hear(CancelRequested("ann", reason))

    def _id(self, path: str) -> str:
        return f"r:{path}" if "@" in path else f"r:{path}@{max(self.state(path).attempt, 1)}"

    # What there is.

    def state(self, path: str) -> StepState:
        name, bracket, rest = path.partition("[")
        state = self.run.steps[name]
        return state.children[int(rest.rstrip("]"))] if bracket else state

    def status(self, path: str) -> str:
        return self.state(path).status.value

    def statuses(self) -> dict[str, str]:
        return {name: state.status.value for name, state in self.run.steps.items()}

    def codes(self) -> dict[str, str | None]:
        return {name: state.code for name, state in self.run.steps.items()}

    def asked(self) -> list[str]:
        """What the last event has made and stopped, in that order: `fetch@1`, `-fetch@1`."""
        made = [each.id.removeprefix("r:") for each in self.last.effects if isinstance(each, MAKES)]
        stopped = [each.id.removeprefix("r:") for each in self.last.effects if isinstance(each, StopJob | StopRun)]
        return [*made, *(f"-{each}" for each in stopped)]

    def effect(self, id: str) -> Any:
        return self.made[f"r:{id}"]

    # What always holds.

    def _check(self, before: Run, event: Event, found: Advance) -> None:
        after = found.run
        self._check_effects(after, found)
        self._check_ends(before, after)
        if found.outcome is not EventOutcome.APPLIED:
            assert after is before
            assert not found.effects
            assert not found.notes
        again = advance(after, CheckRun(), self.now, self.draw, may_start=self.may_start)
        if found.outcome is EventOutcome.APPLIED:
            assert again.outcome is (EventOutcome.OVER if after.status.terminal else EventOutcome.NOTHING), (
                event,
                again,
            )
            assert again.wake_ns == found.wake_ns
            assert again.held_back == found.held_back
        timed = [each for state in after.steps.values() for each in (state, *state.children)]
        waiting = [each for each in timed if each.limit_ns or (each.due_ns or 0) > self.now]
        if not after.status.terminal and (waiting or after.deadline_ns is not None):
            assert found.wake_ns is not None
        document = json.loads(json.dumps(as_document(after), allow_nan=False))
        assert from_document(document, after.workflow) == after
        written = json.loads(self.text.of(after))  # by what encodes changes alone
        assert from_document(written, after.workflow) == after

    def _check_effects(self, after: Run, found: Advance) -> None:
        for effect in found.effects:
            named = read_attempt_id(after.id, effect.id)
            assert named is not None
            slot, attempt = named
            state = after.steps[slot.step]
            state = state if slot.child is None else state.children[slot.child]
            if isinstance(effect, StopJob | StopRun):
                assert effect.id in self.made
                assert effect.id not in self.stopped
                assert state.job != effect.id
                self.stopped[effect.id] = effect.reason
                continue
            assert effect.id not in self.made
            assert state.job == effect.id
            assert (state.attempt, state.status in ACTIVE) == (attempt, True)
            self.made[effect.id] = effect

    def _check_ends(self, before: Run, after: Run) -> None:
        assert list(after.steps) == list(before.steps)
        for name, was in before.steps.items():
            now = after.steps[name]
            if was.status.terminal:
                assert now == was
            for earlier, later in zip(was.children, now.children, strict=False):
                assert not earlier.status.terminal or later == earlier
            assert len(now.children) == len(was.children) or not was.children
        if after.status.terminal:
            assert all(state.status.terminal for state in after.steps.values())
            assert all(child.status.terminal for state in after.steps.values() for child in state.children)
            assert after.ended_ns is not None
        else:
            assert after.ended_ns is None
