"""How a run continues: what waits for what, what is read, and what is forgiven."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core import run_draft
from holdfast.plane.workflows.core.definition import StepRetry
from holdfast.plane.workflows.core.expression_scope import run_names
from holdfast.plane.workflows.core.run import EventOutcome, SubmitStepJob
from support.harness.runs import START, Stage, approval, delay, job, sub, transform

# Order.


def test_a_new_run_starts_the_steps_that_wait_for_nothing() -> None:
    stage = Stage(job("a", input={"n": "${ input.n }"}, priority=3), job("b", "a"), input={"n": 7})
    assert stage.run.status == "pending"
    assert stage.look().outcome is EventOutcome.APPLIED
    assert stage.run.status == "running"
    assert stage.run.started_ns == START
    assert stage.statuses() == {"a": "running", "b": "pending"}
    assert stage.last.effects == (SubmitStepJob("r:a@1", "a", "work", {"n": 7}, "low", 1, priority=3),)


def test_a_step_starts_when_all_it_waits_for_has_succeeded_and_can_read_it() -> None:
    stage = Stage(job("a"), job("b"), job("c", "a", "b", input="${ steps.a.output + steps.b.output }"))
    stage.look()
    stage.ended("a", result=1)
    assert stage.asked() == []
    stage.ended("b", result=2)
    assert stage.effect("c@1").payload == 3
    stage.ended("c", result="done")
    assert (stage.run.status, stage.run.output, stage.last.wake_ns) == ("succeeded", {"c": "done"}, None)
    assert [note.kind for note in stage.last.notes] == ["succeeded", "succeeded"]


def test_a_workflow_without_steps_succeeds_at_once() -> None:
    stage = Stage()
    stage.look()
    assert (stage.run.status, stage.run.output) == ("succeeded", {})


def test_a_run_shows_its_own_output_and_a_bad_one_fails_it() -> None:
    good = Stage(transform("a", input=2), output={"twice": "${ steps.a.output * 2 }"})
    good.look()
    assert (good.run.status, good.run.output) == ("succeeded", {"twice": 4})
    bad = Stage(transform("a", input="two"), output="${ steps.a.output / 2 }")
    bad.look()
    assert (bad.run.status, bad.run.output) == ("failed", None)
    assert str(bad.run.error).startswith("output: ")


def test_a_join_starts_its_step_when_enough_have_gone_well_and_lets_the_others_run() -> None:
    stage = Stage(job("a"), job("b"), job("c"), job("d", "a", "b", "c", join=2))
    stage.look()
    stage.ended("c")
    assert stage.status("d") == "pending"
    stage.ended("a")
    assert stage.asked() == ["d@1"]
    assert stage.status("b") == "running"


def test_a_failure_that_a_join_can_do_without_is_outvoted() -> None:
    stage = Stage(job("a"), job("b"), job("c"), job("d", "a", "b", "c", join=2))
    stage.look()
    stage.failed("a")
    assert (stage.run.status, stage.asked()) == ("running", [])
    stage.ended("b")
    stage.ended("c")
    stage.ended("d")
    assert stage.run.status == "succeeded"


def test_a_join_that_cannot_be_reached_any_more_fails_the_run() -> None:
    stage = Stage(job("a"), job("b"), job("c"), job("d", "a", "b", "c", join=2))
    stage.look()
    stage.failed("a")
    stage.ended("b", JobState.CANCELLED)
    assert stage.run.status == "failed"
    assert stage.codes() == {"a": "failed", "b": "cancelled", "c": "stopped", "d": "dependency_failed"}
    assert stage.asked() == ["-c@1"]


def test_a_failure_that_somebody_else_needs_is_not_outvoted() -> None:
    stage = Stage(job("a"), job("b"), job("c", "a", "b", join=1), job("d", "a"))
    stage.look()
    stage.failed("a")
    assert stage.run.status == "failed"
    assert stage.codes()["d"] == "dependency_failed"


# Conditions and expressions.


def test_a_step_whose_condition_is_false_is_skipped_and_its_dependents_go_on() -> None:
    stage = Stage(job("a", when="${ input.go }"), job("b", "a", when="steps.a.status == 'skipped'"), input={"go": 0})
    stage.look()
    assert stage.statuses() == {"a": "skipped", "b": "running"}
    assert stage.state("a").condition_false
    assert stage.codes()["a"] == "condition_false"
    stage.ended("b")
    assert stage.run.status == "succeeded"


@pytest.mark.parametrize(
    "step",
    [
        job("a", when="${ input.x.y }"),
        job("a", input="${ input / 2 }"),
        job("a", input="${ nonsense }"),
        job("a", for_each="${ input.x }"),
        job("a", for_each="${ input }"),
        job("a", for_each=["${ input / 2 }"]),
        job("a", for_each=[1], input="${ item.x }"),
        job("a", input="${ '\\u0000' }"),
        approval("a", message="${ input.x }"),
        delay("a", until="${ input }"),
        delay("a", until="${ true }"),
        delay("a", until="${ -1 }"),
        delay("a", until="${ 1e300 }"),
        transform("a", input="${ input.x }"),
        sub("a", input="${ input.x }"),
    ],
    ids=str,
)
def test_an_expression_that_gives_no_value_fails_its_step_at_once_and_nothing_else(step: Any) -> None:
    stage = Stage(job("other"), step, input="text")
    stage.look()
    assert (stage.status("a"), stage.codes()["a"]) == ("failed", "bad_expression")
    assert stage.run.status == "failed"
    assert stage.made == {}  # nothing is made only to be stopped
    assert [note.kind for note in stage.last.notes if note.step == "other"] == ["skipped"]
    assert stage.codes()["other"] == "stopped"


def test_an_output_is_made_from_the_result_and_a_bad_one_fails_the_step_without_a_retry() -> None:
    retry = StepRetry(retries=3)
    stage = Stage(job("a", output={"n": "${ result.n + 1 }"}, retry=retry), job("b", output="${ result.n }"))
    stage.look()
    stage.ended("a", result={"n": 1})
    assert stage.state("a").output == {"n": 2}
    stage.ended("b", result="text")
    assert (stage.status("b"), stage.codes()["b"]) == ("failed", "bad_expression")


def test_a_value_that_no_store_takes_fails_the_step_that_makes_it() -> None:
    stage = Stage(transform("a", input="€" * 400_000), job("b", "a", input=["${ steps.a.output }"]))
    stage.look()
    assert stage.status("a") == "succeeded"
    assert (stage.status("b"), stage.codes()["b"]) == ("failed", "bad_expression")
    assert "1200004 bytes" in str(stage.state("b").error)


def test_what_a_run_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_draft, "RUN_BYTES_MAX", 1_000)
    stage = Stage(job("a"), job("b"), job("c"), job("d"))
    stage.look()
    stage.ended("a", result="x" * 498)
    stage.ended("b", result="x" * 498)
    stage.ended("c")
    assert stage.run.status == "running"
    stage.ended("d", result=1)
    assert (stage.status("d"), stage.codes()["d"]) == ("failed", "output_too_large")
    assert stage.state("d").error == "its output takes 1 bytes, and there is room for 0"


def test_texts_can_read_the_run_and_the_steps_as_they_are() -> None:
    stage = Stage(job("a"), transform("t", input=["${ steps.a.status }", "${ run.id }", "${ run.created }"]))
    stage.look()
    assert stage.state("t").output == ["running", "r", 1000]
    steps = run_names(stage.run, stage.run.steps)["steps"]
    assert (list(steps), len(steps), steps["t"]["code"]) == (["a", "t"], 2, None)


# Handlers.


def test_a_handler_runs_only_when_a_step_fails_and_can_read_why() -> None:
    stage = Stage(job("a", on_error="h"), job("b", "a"), job("h", input="${ error }"))
    stage.look()
    assert stage.asked() == ["a@1"]
    stage.failed("a", "no money")
    failure = {"step": "a", "status": "failed", "code": "failed", "message": "no money", "attempt": 1}
    assert stage.effect("h@1").payload == failure
    assert (stage.run.status, stage.status("b")) == ("running", "pending")
    stage.ended("h", result="cleaned")
    assert stage.asked() == ["b@1"]  # a is recovered, so what waits for it continues
    stage.ended("b")
    assert stage.run.status == "succeeded"
    assert stage.run.output == {"b": None, "h": "cleaned"}


def test_a_handler_that_nobody_needs_is_skipped_and_so_is_what_waits_for_it() -> None:
    stage = Stage(job("a", on_error="refund"), job("refund"), job("tell", "refund"), job("any", "a", "tell", join=1))
    stage.look()
    stage.ended("a")
    stage.ended("any")
    assert stage.run.status == "succeeded"
    assert stage.codes() == {"a": None, "refund": "not_needed", "tell": "not_needed", "any": None}


@pytest.mark.parametrize(
    ("state", "runs"),
    [
        (JobState.FAILED, True),
        (JobState.TIMEOUT, True),
        (JobState.DENIED, True),
        (JobState.OUTPUT_QUARANTINED, True),
        (JobState.CANCELLED, False),
    ],
)
def test_every_failure_but_a_cancellation_has_its_handler_run(state: JobState, runs: bool) -> None:
    stage = Stage(job("a", on_error="h"), job("h"))
    stage.look()
    stage.ended("a", state)
    assert stage.asked() == (["h@1"] if runs else [])
    if not runs:
        assert (stage.run.status, stage.codes()["h"]) == ("failed", "not_needed")


def test_a_failure_is_recovered_by_the_end_of_a_chain_of_handlers() -> None:
    stage = Stage(job("a", on_error="h"), job("h", on_error="i"), job("i"), job("b", "a"))
    stage.look()
    stage.failed("a")
    stage.failed("h")
    assert stage.asked() == ["i@1"]
    stage.ended("i")
    assert stage.asked() == ["b@1"]


@pytest.mark.parametrize("how", ["fails", "is skipped", "is cancelled"])
def test_a_chain_that_ends_without_success_recovers_nothing(how: str) -> None:
    stage = Stage(job("a", on_error="h"), job("h", when="false" if how == "is skipped" else None), job("b", "a"))
    stage.look()
    stage.failed("a", "no money")
    if how != "is skipped":
        stage.ended("h", JobState.FAILED if how == "fails" else JobState.CANCELLED)
    assert (stage.run.status, stage.run.error) == ("failed", "a: no money")
    assert stage.codes()["b"] == "dependency_failed"


def test_a_chain_of_handlers_that_goes_in_a_circle_ends() -> None:
    stage = Stage(job("a", on_error="h"), job("h", on_error="i"), job("i", on_error="h"))
    stage.look()
    stage.failed("a")
    stage.failed("h")
    stage.failed("i")
    assert stage.run.status == "failed"


def test_one_handler_for_several_steps_runs_once_and_counts_for_all() -> None:
    stage = Stage(job("a", on_error="h"), job("b", on_error="h"), job("c", "a", "b"), job("h", input="${ error.step }"))
    stage.look()
    stage.failed("b")
    assert stage.effect("h@1").payload == "b"
    stage.ended("h")
    stage.failed("a")
    assert stage.asked() == ["c@1"]
    stage.ended("c")
    assert stage.run.status == "succeeded"


def test_a_handler_that_is_tried_again_reads_the_same_failure() -> None:
    stage = Stage(
        *(job("a", on_error="h"), job("b", on_error="h"), job("h", retry=StepRetry(retries=1), input="${ error.step }"))
    )
    stage.look()
    stage.failed("b")
    stage.now += 1
    stage.failed("a")
    stage.failed("h")
    stage.wake()
    assert stage.effect("h@2").payload == "b"


def test_a_handler_waits_for_its_own_dependencies_too() -> None:
    stage = Stage(job("a", on_error="h"), job("b"), job("h", "b"))
    stage.look()
    stage.failed("a")
    assert stage.asked() == []
    stage.ended("b")
    assert stage.asked() == ["h@1"]


def test_steps_that_wait_for_each_other_are_skipped_and_nothing_hangs() -> None:
    stage = Stage(job("a"), job("b", "d"), job("c", "b"), job("d", "c"))
    stage.look()
    assert stage.status("b") == "pending"
    stage.ended("a")
    assert stage.run.status == "succeeded"
    assert stage.codes() == {"a": None, "b": "dependency_failed", "c": "dependency_failed", "d": "dependency_failed"}
