"""Workflows in Python: the builder says what a file says, and refuses what a file is refused for."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.plane import App, BadWorkflow, Flow, parse_workflow, retrying, workflow
from holdfast.plane.workflows.core.definition import Input, Step, StepKind, StepRetry, Workflow
from holdfast.types import NS
from pages import blocks

REFUND = """\
name: refund
risk: high
description: Money back
timeout: 1d
labels: {team: money}
inputs: {id: text, note: {type: text, default: none}}
steps:
  fetch: {topic: crm.fetch, input: {id: "${ input.id }"}, priority: 5, timeout: 30s}
  agreed: {after: fetch, message: "Refund ${ steps.fetch.output.amount }?", timeout: 1h}
  undo: {topic: bank.undo, input: "${ error.code }"}
  pay:
    topic: bank.pay
    after: agreed
    when: steps.agreed.output.approved
    for_each: "${ steps.fetch.output }"
    max_parallel: 2
    input: {part: "${ item }"}
    output: "${ result.receipt }"
    retry: {retries: 3, initial: 2s, cap: 5m}
    on_error: undo
    risk: money
  cool: {delay: 90s, after: pay}
  night: {until: run.created + 60, after: pay}
  sum: {kind: transform, input: {paid: "${ steps.pay.output }"}, after: [cool, night], join: 1}
  tell: {workflow: notify, version: 2, input: "${ steps.sum.output }", after: sum}
output: {paid: "${ steps.sum.output }"}
"""


def define(flow: Flow) -> dict[str, str]:
    fetch = flow.job("fetch", topic="crm.fetch", input={"id": "${ input.id }"}, priority=5, timeout="30s")
    agreed = flow.approval("agreed", after=fetch, message="Refund ${ steps.fetch.output.amount }?", timeout=3600)
    undo = flow.job("undo", topic="bank.undo", input="${ error.code }")
    pay = flow.job(
        "pay",
        topic="bank.pay",
        after=agreed,
        when="steps.agreed.output.approved",
        for_each=fetch.output,
        max_parallel=2,
        input={"part": "${ item }"},
        output="${ result.receipt }",
        retries=retrying(3, initial=2, cap=timedelta(minutes=5)),
        on_error=undo,
        risk="money",
    )
    cool = flow.delay("cool", 90, after=[pay])
    night = flow.delay("night", until="run.created + 60", after="pay")
    total = flow.transform("sum", {"paid": pay.output}, after=(cool, night), join=1)
    flow.run_of("tell", workflow="notify", version=2, input=total.output, after=total)
    return {"paid": total.output}


def test_the_builder_says_what_the_file_says() -> None:
    flow = workflow(
        "refund",
        risk="high",
        description="Money back",
        timeout=timedelta(days=1),
        labels={"team": "money"},
        inputs={"id": "text", "note": {"type": "text", "default": "none"}},
    )
    flow.returns(define(flow))
    assert flow.build() == parse_workflow(REFUND)
    assert flow.build() == flow.build()


def test_a_decorated_function_is_its_workflow() -> None:
    @workflow("small", inputs={"n": "whole"})
    def small(flow: Flow) -> None:
        flow.transform("double", "${ input.n * 2 }")

    assert isinstance(small, Workflow)
    assert small.inputs == {"n": Input("whole")}
    assert small.steps["double"] == Step("double", StepKind.TRANSFORM, input="${ input.n * 2 }")
    assert small.output is None


def test_what_the_function_returns_is_the_output() -> None:
    made = workflow("refund", inputs={"id": "text"})(define)
    assert made.output == {"paid": "${ steps.sum.output }"}


def test_a_step_with_an_unusual_name_can_be_read() -> None:
    flow = workflow("w")
    first = flow.transform("fetch-it", 1)
    assert first.output == '${ steps["fetch-it"].output }'
    flow.transform("next", first.output, after=first)
    assert list(flow.build().steps) == ["fetch-it", "next"]


def test_all_that_is_wrong_is_told_when_it_is_built() -> None:
    flow = workflow("w", risk="very high")
    flow.job("a", topic="t", after="b", retries=101)
    flow.job("a", topic="t", wehn="x")  # type: ignore[call-arg]
    flow.delay("c", "5 parsecs")
    flow.transform("d", object())
    flow.approval("e", after=[5])  # type: ignore[list-item]
    with pytest.raises(BadWorkflow) as caught:
        flow.build()
    assert [problem.path for problem in caught.value.problems] == [
        ("steps", "a"),
        ("steps", "a", "wehn"),
        ("steps", "c", "delay"),
        ("steps", "d", "input"),
        ("steps", "e", "after"),
        ("risk",),
    ]
    assert (
        str(caught.value).splitlines()[1]
        == "workflow 'w': step 'a': wehn: there is no field 'wehn'; did you mean when?"
    )


def test_a_retry_keeps_its_times_to_the_nanosecond() -> None:
    retry = StepRetry(2, 1_234_567_891, 3.5, 9_876_543_219, 0.25)
    flow = workflow("w")
    flow.job("a", topic="t", retries=retry)
    assert flow.build().steps["a"].retry == retry
    assert retrying(1, initial="1500ms") == StepRetry(1, 3 * NS // 2)
    with pytest.raises(BadInput, match="cap"):
        retrying(1, cap="soon")


def test_what_was_built_does_not_change_with_its_parts() -> None:
    payload: dict[str, Any] = {"list": [1]}
    flow = workflow("w")
    flow.job("a", topic="t", input=payload)
    made = flow.build()
    payload["list"].append(2)
    flow.job("b", topic="t")
    assert (made.steps["a"].input, list(made.steps)) == ({"list": [1]}, ["a"])


def test_an_app_knows_its_workflows() -> None:
    app = App("billing")

    @app.workflow("refund", risk="high", inputs={"id": "text"})
    def refund(flow: Flow) -> dict[str, str]:
        return define(flow)

    other = app.include(parse_workflow(REFUND.replace("name: refund", "name: other")))
    assert dict(app.workflows) == {"refund": refund, "other": other}
    assert (refund.name, refund.risk) == ("refund", "high")
    with pytest.raises(TypeError):
        app.workflows["x"] = refund  # type: ignore[index]


def test_an_app_takes_each_name_once_and_only_sound_workflows() -> None:
    app = App("billing")
    app.include(parse_workflow(REFUND))
    with pytest.raises(BadInput, match="there is a workflow 'refund' already"):
        app.workflow("refund", inputs={"id": "text"})(define)
    with pytest.raises(BadInput, match="dict is not a workflow"):
        app.include({})  # type: ignore[arg-type]
    with pytest.raises(BadWorkflow, match="step 'a': topic: is missing"):
        app.include(Workflow("w", {"a": Step("a", StepKind.JOB)}))
    with pytest.raises(BadInput, match="is not a function"):
        workflow("w")(5)  # type: ignore[arg-type]
    assert list(app.workflows) == ["refund"]


def test_the_page_shows_one_workflow_in_both_ways() -> None:
    page = list(blocks(Path(__file__).resolve().parents[4] / "docs" / "workflows.md"))
    namespace: dict[str, Any] = {}
    exec(next(block.text for block in page if block.language == "python"), namespace)
    assert namespace["refund"] == parse_workflow(next(block.text for block in page if block.language == "yaml"))
