"""Random graphs, random schedules: every step takes effect once, and every run ends as the rules say.

`Stage` checks after every event that nothing is made twice or in vain, that what is over stays over, that a second look
changes nothing, that time is asked for while something waits for it, and that JSON changes nothing. Here the world is
added: jobs that end well, badly, twice, late or never; clocks that jump; leases that come and go; people who cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st

from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.definition import Step, StepKind, StepRetry
from holdfast.plane.workflows.core.graph import handling_circles, waiting_circles
from holdfast.plane.workflows.core.run import (
    Advance,
    ChildEnded,
    Event,
    EventOutcome,
    JobEnded,
    Run,
    RunStatus,
    StartChildRun,
    read_attempt_id,
)
from holdfast.types import NS
from support.harness.run_reference import Reference
from support.harness.runs import MAKES, START, Stage, workflow

CONDITIONS = [*("true", "false") * 4, "${ input }", "${ index }"]  # the last cannot be read
TEMPLATES = [None, {"n": 1}, "${ item }", "${ input }", "${ input / 1 }"]  # some of them fail
LISTS: list[Any] = [[], [1], [1, 2, 3], "${ range(4) }", "${ input }"]  # the last is a text at times


def a_step(rng: Random, place: int, names: list[str]) -> Step:
    kind = rng.choice([StepKind.JOB, StepKind.JOB, *StepKind])
    after = tuple(rng.sample(names[:place], rng.randint(0, min(place, 3))))
    later = names[place + 1 :]
    return Step(
        names[place],
        kind,
        after=after,
        join=rng.randint(1, len(after)) if after and rng.random() < 0.4 else None,
        when=rng.choice(CONDITIONS) if rng.random() < 0.15 else None,
        on_error=rng.choice(later) if later and rng.random() < 0.5 else None,
        retry=StepRetry(rng.choice([0, 0, 1, 2]), initial_ns=NS, jitter=0.1),
        timeout_ns=rng.randint(1, 5) * NS if rng.random() < 0.4 else None,
        risk=rng.choice([None, None, "high"]),
        input=rng.choice(TEMPLATES) if rng.random() < 0.05 else None,
        output="${ result }" if rng.random() < 0.2 else None,
        delay_ns=rng.randint(0, 3) * NS if kind is StepKind.DELAY else None,
        for_each=rng.choice(LISTS) if rng.random() < 0.25 else None,
        max_parallel=rng.choice([None, 1, 2]),
        topic="work",
        workflow="other",
    )


def a_stage(rng: Random, size: int, *, circles: bool) -> Stage:
    names = [f"s{n}" for n in range(size)]
    while True:
        steps = [a_step(rng, place, names) for place in range(size)]
        if circles:
            steps = [replace(step, after=tuple(rng.sample(names, min(size, 2))), join=None) for step in steps]
        rng.shuffle(steps)  # the order of a definition means nothing
        if circles or not (waiting_circles(workflow(*steps)) or handling_circles(workflow(*steps))):
            deadline_ns = START + rng.randint(0, 20) * NS if rng.random() < 0.15 else None
            note("\n".join(map(str, steps)))
            return Stage(*steps, input=rng.choice([[1, 2], "text"]), deadline_ns=deadline_ns)


JOB_ENDS = [JobState.SUCCEEDED] * 12 + [JobState.FAILED] * 5
JOB_ENDS += [JobState.DENIED, JobState.TIMEOUT, JobState.CANCELLED, JobState.OUTPUT_QUARANTINED, JobState.RUNNING]
RUN_ENDS = [RunStatus.SUCCEEDED] * 6
RUN_ENDS += [RunStatus.FAILED, RunStatus.DENIED, RunStatus.TIMED_OUT, RunStatus.CANCELLED, RunStatus.WAITING]


class World:
    """Whatever is around a run."""

    def __init__(self, stage: Stage, rng: Random) -> None:
        self.stage, self.rng = stage, rng
        self.outstanding: list[str] = []
        self.heard: dict[str, Event] = {}  # completions that took effect
        self.cancelled = False
        self.follow(stage.look)

    def follow(self, happens: Callable[[], Advance]) -> Advance:
        before = self.stage.run
        found = happens()
        for effect in found.effects:
            if isinstance(effect, MAKES):
                self.outstanding.append(effect.id)
                if effect.attempt == 1:
                    named = read_attempt_id("r", effect.id)
                    assert named is not None
                    reference = Reference(before.workflow, found.run.steps)
                    assert reference.reached(named[0].step) is True
                    assert reference.wanted(named[0].step)
            else:
                self.outstanding.remove(effect.id)
        return found

    def event(self, made: str, *, well: bool = False) -> JobEnded | ChildEnded:
        """How something ends that was made."""
        if isinstance(self.stage.made[made], StartChildRun):
            status = RunStatus.SUCCEEDED if well else self.rng.choice(RUN_ENDS)
            return ChildEnded(made, status, output=self.rng.randint(0, 9))
        state = JobState.SUCCEEDED if well else self.rng.choice(JOB_ENDS)
        return JobEnded(made, state, result=self.rng.randint(0, 9), retryable=self.rng.random() < 0.7)

    def end(self, *, well: bool = False) -> None:
        """Something that was made ends: this must be heard, once."""
        if not self.outstanding:
            return
        made = self.rng.choice(self.outstanding)
        event = self.event(made, well=well)
        found = self.follow(lambda: self.stage.hear(event))
        if not (event.state if isinstance(event, JobEnded) else event.status).terminal:
            assert found.outcome is EventOutcome.NOTHING
            return
        assert found.outcome is EventOutcome.APPLIED
        self.outstanding.remove(made)
        assert made not in self.heard
        self.heard[made] = event

    def again(self) -> None:
        """Something ends for a second time, perhaps in another way."""
        if self.heard:
            heard = self.stage.hear(self.event(self.rng.choice(list(self.heard)))).outcome
            assert heard in (EventOutcome.REPEATED, EventOutcome.OUTDATED, EventOutcome.OVER)

    def late(self) -> None:
        """Something that was stopped says how it ended."""
        if self.stage.stopped:
            heard = self.stage.hear(self.event(self.rng.choice(list(self.stage.stopped)))).outcome
            assert heard in (EventOutcome.OUTDATED, EventOutcome.OVER)

    def pass_time(self) -> None:
        if self.rng.random() < 0.5 and self.stage.last.wake_ns is not None:
            self.follow(self.stage.wake)
        else:
            later_ns = self.rng.randint(0, 2 * NS)
            self.follow(lambda: self.stage.look(later_ns))

    def lease(self, *, full: bool = False) -> None:
        degraded = not full and self.rng.random() < 0.5
        self.stage.may_start = lambda risk: not (degraded and risk == "high")
        self.follow(self.stage.look)

    def cancel(self) -> None:
        if self.rng.random() < 0.05 and self.follow(self.stage.cancel).outcome is EventOutcome.APPLIED:
            self.cancelled = True

    def act(self) -> None:
        self.rng.choice([*([self.end] * 6), self.again, self.late, self.pass_time, self.lease, self.cancel])()

    def drain(self) -> None:
        """Let everything that was made end well and all time pass: then every run has ended."""
        self.lease(full=True)
        for _ in range(300):
            if self.stage.run.status.terminal:
                return
            if self.outstanding:
                self.end(well=True)
            else:
                assert self.stage.last.wake_ns is not None, self.stage.statuses()
                self.follow(self.stage.wake)
        raise AssertionError("it goes on for ever")


@given(st.randoms(use_true_random=True), st.integers(3, 12), st.integers(10, 60))
def test_every_step_takes_effect_once_and_every_run_ends_as_the_rules_say(rng: Random, size: int, acts: int) -> None:
    stage = a_stage(rng, size, circles=False)
    world = World(stage, rng)
    for _ in range(acts):
        world.act()
    world.drain()
    run = stage.run
    assert world.outstanding == []  # no job is left running without a waiting step
    for made in stage.made:
        assert (made in world.heard) is not (made in stage.stopped), made
    reference = Reference(run.workflow, run.steps)
    if world.cancelled:
        assert run.status == "cancelled"
    elif run.error == "the deadline of the run has passed":
        assert run.status == "timed_out"
        assert run.deadline_ns is not None
        assert stage.now >= run.deadline_ns
    else:
        assert run.status == reference.verdict()
        check_skips(run, reference)


def check_skips(run: Run, reference: Reference) -> None:
    """Everything that was skipped had a reason, and what had none ran."""
    for name, state in run.steps.items():
        assert state.error != "it waits for itself"
        if state.code == "dependency_failed" or (state.code == "not_needed" and reference.wanted(name)):
            assert reference.reached(name) is False
        elif state.code == "condition_false":
            assert reference.reached(name) is True
        if run.status == "succeeded" and state.status == "skipped":
            assert state.code in ("condition_false", "not_needed")
        if run.status == "succeeded":
            assert state.code != "stopped"


@settings(max_examples=30)
@given(st.randoms(use_true_random=True), st.integers(1, 8), st.integers(0, 20))
def test_even_a_definition_that_waits_for_itself_comes_to_an_end(rng: Random, size: int, acts: int) -> None:
    world = World(a_stage(rng, size, circles=True), rng)
    for _ in range(acts):
        world.act()
    world.drain()
