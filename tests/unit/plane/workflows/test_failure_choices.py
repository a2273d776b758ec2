"""What a definition can choose about failures and losers: recover or not, what stands in, and what is cancelled."""

from __future__ import annotations

import pytest

from holdfast.plane import BadWorkflow, parse_workflow
from holdfast.plane.workflows.core.definition import Input
from holdfast.plane.workflows.core.run import RunStatus
from holdfast.plane.workflows.core.validation import check_workflow
from support.harness.runs import Stage, approval, job, workflow


def test_a_step_after_a_recovered_one_reads_the_output_of_the_handler() -> None:
    stage = Stage(
        job("fetch", on_error="cached"),
        job("cached"),
        job("use", "fetch", input={"got": "${ steps.fetch.output }", "how": "${ steps.fetch.status }"}),
    )
    stage.look()
    stage.failed("fetch")
    stage.ended("cached", result={"amount": 7})
    assert stage.effect("use@1").payload == {"got": {"amount": 7}, "how": "failed"}
    stage.ended("use")
    assert stage.run.status is RunStatus.SUCCEEDED


def test_a_handler_reads_no_output_of_the_step_that_it_handles() -> None:
    stage = Stage(job("fetch", on_error="cached"), job("cached", input="${ steps.fetch.output }"))
    stage.look()
    stage.failed("fetch")
    assert stage.effect("cached@1").payload is None


def test_without_recovery_the_handler_cleans_up_and_the_run_fails() -> None:
    """A saga: the steps after the failed one do not run, and the run is not green."""
    stage = Stage(
        job("book"),
        job("pay", "book", on_error="unbook", recover=False),
        job("ship", "pay"),
        job("unbook"),
        job("beside"),
    )
    stage.look()
    stage.ended("book")
    stage.failed("pay", "card refused")
    assert stage.asked() == ["unbook@1", "-beside@1"]
    stage.ended("unbook")
    assert stage.statuses() == {
        "book": "succeeded",
        "pay": "failed",
        "ship": "skipped",
        "unbook": "succeeded",
        "beside": "cancelled",
    }
    assert (stage.run.status, stage.run.error) == (RunStatus.FAILED, "pay: card refused")


def test_a_failure_that_is_not_recovered_is_not_recovered_further_up_either() -> None:
    stage = Stage(job("a", on_error="b"), job("b", on_error="c", recover=False), job("c"))
    stage.look()
    stage.failed("a")
    stage.failed("b")
    stage.ended("c")
    assert stage.run.status is RunStatus.FAILED


def test_a_join_can_cancel_what_it_did_not_need() -> None:
    stage = Stage(job("fast"), job("slow"), job("first", "fast", "slow", join=1, cancel_rest=True))
    stage.look()
    stage.ended("fast", result="here")
    assert stage.asked() == ["first@1", "-slow@1"]
    stage.ended("first")
    assert stage.statuses() == {"fast": "succeeded", "slow": "cancelled", "first": "succeeded"}
    assert stage.run.status is RunStatus.SUCCEEDED


def test_what_led_only_to_a_loser_is_cancelled_and_what_others_need_is_not() -> None:
    stage = Stage(
        job("fast"),
        job("begin"),
        approval("slow", "begin", on_error="told"),
        job("told"),
        job("shared"),
        job("first", "fast", "slow", "shared", join=1, cancel_rest=True),
        job("other", "shared"),
    )
    stage.look()
    stage.ended("fast")
    assert stage.asked() == ["first@1", "-begin@1"]
    assert (stage.status("slow"), stage.status("told"), stage.status("shared")) == ("skipped", "skipped", "running")
    for name in ("shared", "first", "other"):
        stage.ended(name)
    assert stage.run.status is RunStatus.SUCCEEDED


def test_a_loser_is_left_alone_unless_the_step_asks_for_it() -> None:
    stage = Stage(job("fast"), job("slow"), job("first", "fast", "slow", join=1))
    stage.look()
    stage.ended("fast")
    assert stage.asked() == ["first@1"]


def test_a_choice_without_effect_is_refused() -> None:
    for step, field in (
        (job("b", "a", cancel_rest=True), "cancel_rest"),
        (job("b", "a", join=1, cancel_rest=True), "cancel_rest"),
        (job("b", recover=False), "recover"),
    ):
        problems = check_workflow(workflow(job("a"), step))
        assert [each.path for each in problems] == [("steps", "b", field)]


def test_an_input_that_is_not_declared_is_refused_with_its_line() -> None:
    text = """\
name: w
inputs: {order: text}
steps:
  a:
    topic: t
    when: input.amount > 3
    input: {id: "${ input['oder'] }", all: "${ input }", fine: "${ input.order }"}
output: "${ [x.amount for x in input.order] }"
"""
    with pytest.raises(BadWorkflow) as caught:
        parse_workflow(text, "w.yaml")
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == ["w.yaml:6:5", "w.yaml:7:5"]
    assert "step 'a': when: there is no input 'amount'; add it to inputs" in str(caught.value)
    assert "step 'a': input: there is no input 'oder'; did you mean order?" in str(caught.value)


def test_a_workflow_without_inputs_takes_any_and_an_empty_table_takes_none() -> None:
    reads = job("a", input="${ input.x }")
    assert not check_workflow(workflow(reads))
    assert not check_workflow(workflow(reads, inputs={"x": Input()}))
    assert [each.problem for each in check_workflow(workflow(reads, inputs={}))] == ["there is no input 'x'"]
