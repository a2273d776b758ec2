"""How a run continues: what waits for a person or for another run, what is heard, and what ends it."""

from __future__ import annotations

import pytest

from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.definition import DEPTH_MAX, StepRetry
from holdfast.plane.workflows.core.run import (
    ChildEnded,
    EventOutcome,
    JobEnded,
    RequestApproval,
    RunStatus,
    StartChildRun,
)
from holdfast.types import NS
from support.harness.runs import START, Stage, approval, delay, job, sub, transform

# Failures beyond repair.


def test_a_failure_beyond_repair_stops_the_other_branches() -> None:
    stage = Stage(job("a"), job("b"), sub("c"), approval("d"), delay("e", delay_ns=NS), job("f", "b"), job("g", "a"))
    stage.look()
    stage.failed("a")
    assert stage.run.status == "failed"
    assert stage.asked() == ["-b@1", "-c@1", "-d@1"]
    assert set(stage.stopped.values()) == {"a ended as failed"}
    assert list(stage.statuses().values()) == ["failed", *["cancelled"] * 4, "skipped", "skipped"]
    assert stage.codes()["f"] == "stopped"
    assert stage.codes()["g"] == "dependency_failed"


def test_handlers_at_work_run_to_their_end_before_a_failed_run_is_over() -> None:
    stage = Stage(job("a", on_error="clean"), job("b"), job("c"), job("clean", retry=StepRetry(retries=1)))
    stage.look()
    stage.failed("a")
    stage.failed("b")
    assert stage.asked() == ["-c@1"]
    assert (stage.run.status, stage.status("clean")) == ("running", "running")
    stage.failed("clean")
    assert (stage.run.status, stage.status("clean")) == ("running", "pending")
    stage.wake()
    assert stage.asked() == ["clean@2"]
    stage.ended("clean")
    assert (stage.run.status, stage.run.error) == ("failed", "b: it broke")


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ((JobState.DENIED, JobState.FAILED), "failed"),
        ((JobState.TIMEOUT, JobState.FAILED), "failed"),
        ((JobState.TIMEOUT, JobState.CANCELLED), "failed"),
        ((JobState.TIMEOUT, JobState.DENIED), "denied"),
        ((JobState.DENIED, JobState.DENIED), "denied"),
        ((JobState.TIMEOUT, JobState.TIMEOUT), "timed_out"),
        ((JobState.OUTPUT_QUARANTINED, JobState.DENIED), "failed"),
    ],
)
def test_the_worst_failure_names_the_run(states: tuple[JobState, JobState], status: str) -> None:
    stage = Stage(job("a", on_error="h"), job("h"))
    stage.look()
    stage.ended("a", states[0])
    stage.ended("h", states[1])
    assert stage.run.status == status


# Waiting.


def test_other_branches_go_on_while_a_step_waits_for_a_person() -> None:
    stage = Stage(
        job("a"), approval("ask", message="${ input.n } euros?"), job("b", "a"), job("c", "ask"), input={"n": 5}
    )
    stage.look()
    assert stage.run.status == "waiting"
    assert stage.effect("ask@1") == RequestApproval("r:ask@1", "ask", "5 euros?", "low", 1)
    stage.ended("a")
    assert (stage.run.status, stage.asked()) == ("waiting", ["b@1"])
    stage.ended("ask", result={"by": "ann"})
    assert (stage.run.status, stage.asked()) == ("running", ["c@1"])
    assert stage.state("ask").output == {"by": "ann"}


def test_a_denied_approval_denies_the_run_and_is_never_asked_again() -> None:
    stage = Stage(approval("ask", retry=StepRetry(retries=5)), job("b"), job("c", "ask"))
    stage.look()
    stage.ended("ask", JobState.DENIED, reason="too much")
    assert (stage.run.status, stage.run.error) == ("denied", "ask: too much")
    assert stage.asked() == ["-b@1"]
    assert stage.codes() == {"ask": "denied", "b": "stopped", "c": "dependency_failed"}


# Runs of other workflows.


@pytest.mark.parametrize(
    ("ended", "step", "run"),
    [
        (RunStatus.SUCCEEDED, "succeeded", "succeeded"),
        (RunStatus.FAILED, "failed", "failed"),
        (RunStatus.DENIED, "denied", "denied"),
        (RunStatus.TIMED_OUT, "timed_out", "timed_out"),
        (RunStatus.CANCELLED, "failed", "failed"),
    ],
)
def test_the_end_of_a_child_run_is_the_end_of_its_step(ended: RunStatus, step: str, run: str) -> None:
    stage = Stage(sub("s", workflow="other", version=3, input={"n": 1}, output="${ result.x }"))
    stage.look()
    assert stage.effect("s@1") == StartChildRun("r:s@1", "s", "other", 3, {"n": 1}, 1)
    stage.child_ended("s", ended, output={"x": 9})
    assert (stage.status("s"), stage.run.status) == (step, run)
    assert stage.state("s").output == (9 if step == "succeeded" else None)


def test_workflows_that_start_workflows_have_a_depth() -> None:
    deep, deeper = Stage(sub("s"), depth=DEPTH_MAX - 1), Stage(sub("s"), depth=DEPTH_MAX)
    deep.look()
    deeper.look()
    assert deep.status("s") == "running"
    assert (deeper.run.status, deeper.codes()["s"], deeper.made) == ("failed", "too_deep", {})


def test_an_id_that_no_store_takes_fails_its_step() -> None:
    stage = Stage(job("a" * 250))
    stage.look()
    assert (stage.run.status, stage.codes()["a" * 250], stage.made) == ("failed", "id_too_long", {})


# What is heard.


def test_events_that_are_not_the_runs_own_are_unknown() -> None:
    stage = Stage(job("a"), sub("s"), job("f", for_each=[1, 2]), delay("d", delay_ns=NS))
    stage.look()
    strange = ["a@1", "r:a", "r:a@2", "r:a@01", "r:a@x", "r:a[0]@1", "r:b@1", "r:f@1", "r:f[2]@1", "r:a@1:b@1", "q:a@1"]
    for name in [*strange, "r:d@1", "r:s@1"]:
        assert stage.hear(JobEnded(name, JobState.SUCCEEDED)).outcome is EventOutcome.UNKNOWN, name
    assert stage.hear(ChildEnded("r:a@1", RunStatus.SUCCEEDED)).outcome is EventOutcome.UNKNOWN


def test_a_job_that_has_not_ended_is_nothing() -> None:
    stage = Stage(job("a"), sub("s"))
    stage.look()
    assert stage.ended("a", JobState.RUNNING).outcome is EventOutcome.NOTHING
    assert stage.child_ended("s", RunStatus.WAITING).outcome is EventOutcome.NOTHING


@pytest.mark.requires("R93")
def test_a_repeated_completion_is_told_from_an_outdated_one() -> None:
    stage = Stage(job("a", retry=StepRetry(retries=1)), job("b"))
    stage.look()
    stage.failed("a")
    assert stage.failed("a").outcome is EventOutcome.REPEATED
    stage.wake()
    assert stage.ended("a@1").outcome is EventOutcome.OUTDATED
    stage.ended("a@2")
    assert stage.ended("a@2").outcome is EventOutcome.REPEATED
    stage.ended("b")
    assert stage.ended("b").outcome is EventOutcome.OVER
    assert stage.look().outcome is EventOutcome.OVER
    assert stage.cancel().outcome is EventOutcome.OVER


# Cancelling.


def test_a_cancelled_run_stops_everything_handlers_too() -> None:
    stage = Stage(job("a", on_error="h"), job("b"), job("h"), job("c", "b"))
    stage.look()
    stage.failed("a")
    stage.cancel("wrong customer")
    assert (stage.run.status, stage.run.cancelled_by) == ("cancelled", "ann")
    assert stage.run.error == "cancelled by ann: wrong customer"
    assert stage.asked() == ["-b@1", "-h@1"]
    assert stage.statuses() == {"a": "failed", "b": "cancelled", "h": "cancelled", "c": "skipped"}


def test_a_run_can_be_cancelled_before_it_has_begun() -> None:
    stage = Stage(job("a"))
    stage.cancel()
    assert (stage.run.status, stage.statuses(), stage.made) == ("cancelled", {"a": "skipped"}, {})
    assert (stage.run.started_ns, stage.run.ended_ns) == (None, START)
    assert [note.kind for note in stage.last.notes] == ["skipped", "cancelled"]


# Degraded leases.


@pytest.mark.requires("R100")
def test_steps_of_a_class_that_may_not_start_are_held_back_and_the_others_go_on() -> None:
    stage = Stage(job("pay", risk="high", when="true"), job("mail"), job("after", "pay"), transform("t", risk="high"))
    stage.may_start = lambda risk: risk != "high"
    stage.look()
    assert (stage.asked(), stage.last.held_back) == (["mail@1"], ("pay", "t"))
    assert stage.last.wake_ns is None
    stage.may_start = lambda risk: True
    stage.look()
    assert (stage.asked(), stage.last.held_back) == (["pay@1"], ())


def test_a_retry_is_held_back_like_a_first_attempt_and_a_condition_is_not() -> None:
    stage = Stage(
        job("pay", risk="high", retry=StepRetry(retries=1)), job("no", "pay", risk="high", when="false"), job("more")
    )
    stage.look()
    stage.failed("pay")
    stage.may_start = lambda risk: risk != "high"
    stage.wake()
    assert (stage.asked(), stage.last.held_back, stage.last.wake_ns) == ([], ("pay",), None)
    stage.may_start = lambda risk: True
    stage.look()
    stage.may_start = lambda risk: risk != "high"
    stage.ended("pay")
    assert stage.status("no") == "skipped"


def test_held_back_steps_are_forgotten_when_the_run_ends() -> None:
    stage = Stage(job("pay", risk="high"), job("mail"))
    stage.may_start = lambda risk: risk != "high"
    stage.look()
    stage.failed("mail")
    assert (stage.run.status, stage.last.held_back) == ("failed", ())
    stage = Stage(job("pay", risk="high"), transform("bad", input="${ input.x }"), input=1)
    stage.may_start = lambda risk: risk != "high"
    stage.look()
    assert (stage.run.status, stage.last.held_back) == ("failed", ())
