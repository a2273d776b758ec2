"""Rehearsals of workflows: which steps would run, and how the run would end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import testing
from holdfast.errors import BadInput
from holdfast.plane import Fatal, Flow, workflow
from holdfast.plane.workflows.core.definition import Workflow


@workflow("refund", inputs={"id": "text", "vip": {"type": "flag", "required": False, "default": False}})
def refund(flow: Flow) -> None:
    fetch = flow.job("fetch", topic="crm.fetch", input={"id": "${ input.id }"}, retries=2)
    agreed = flow.approval("agreed", after=fetch, when="${ steps.fetch.output.amount > 100 }", timeout="1h")
    undo = flow.job("undo", topic="bank.undo")
    pay = flow.job("pay", topic="bank.pay", after=agreed, input=fetch.output, on_error=undo, recover=False)
    flow.delay("wait", "2h", after=pay)
    flow.job("thank", topic="mail.send", after="wait", when="${ input.vip }")


FETCHED = {"amount": 120}


def play(**more: Any) -> testing.Rehearsal:
    outputs = {"fetch": FETCHED, "pay": 1, "thank": None, "undo": None, **more.pop("outputs", {})}
    return testing.rehearse(refund, {"id": "A-7"}, outputs=outputs, **{"approvals": {"agreed": True}, **more})


def test_steps_run_in_order_with_their_payloads() -> None:
    seen = play()
    assert (seen.status, seen.order) == ("succeeded", ["fetch", "agreed", "pay"])
    assert [each.payload for each in seen.started if each.kind == "job"] == [{"id": "A-7"}, FETCHED]
    assert [each.topic for each in seen.started] == ["crm.fetch", None, "bank.pay"]
    assert seen.skipped == {"thank": "condition_false", "undo": "not_needed"}
    assert seen.outputs["pay"] == 1
    assert seen.error is None


def test_an_input_decides_about_conditions_and_a_delay_passes_without_waiting() -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    seen = testing.rehearse(
        refund, {"id": "B", "vip": True}, outputs={"fetch": {"amount": 5}, "pay": 1, "thank": None}, at=start
    )
    assert seen.order == ["fetch", "pay", "thank"]
    assert seen.skipped["agreed"] == "condition_false"
    assert seen.started[-1].at - start == timedelta(hours=2)


@pytest.mark.parametrize(("decision", "status"), [(True, "succeeded"), (False, "denied"), (None, "timed_out")], ids=str)
def test_an_approval_is_granted_rejected_or_times_out(decision: bool | None, status: str) -> None:
    seen = play(approvals={"agreed": decision})
    assert seen.steps["agreed"] == status
    assert ("pay" in seen.order, seen.status == "succeeded") == (decision is True, decision is True)


def test_failures_are_retried_as_the_workflow_defines() -> None:
    seen = play(outputs={"fetch": testing.attempts(TimeoutError("slow"), ConnectionError, FETCHED)})
    assert (seen.status, seen.attempts_of("fetch")) == ("succeeded", 3)
    broken = play(outputs={"fetch": ValueError("no such order")})
    assert (broken.status, broken.attempts_of("fetch"), broken.order) == ("failed", 3, ["fetch"])
    assert broken.failures["fetch"] == "ValueError: no such order"
    fatal = play(outputs={"fetch": Fatal("never")})
    assert (fatal.status, fatal.attempts_of("fetch")) == ("failed", 1)


def test_a_handler_runs_after_a_failure() -> None:
    seen = play(outputs={"pay": RuntimeError("declined")})
    assert seen.order == ["fetch", "agreed", "pay", "undo"]
    assert (seen.status, seen.steps["undo"]) == ("failed", "succeeded")


def test_a_function_computes_an_output_from_the_payload() -> None:
    def pay(payload: dict[str, int]) -> int:
        if payload["amount"] > 100:
            raise Fatal("too much")
        return payload["amount"]

    assert play(outputs={"pay": pay}).failures["pay"] == "too much"
    assert play(outputs={"pay": pay, "fetch": {"amount": 7}}).outputs["pay"] == 7


def many() -> Workflow:
    flow = Flow("many", inputs={"ids": "list"})
    each = flow.job("each", topic="t", for_each="${ input.ids }", input="${ item }", max_parallel=1)
    flow.run_of("child", workflow="other", after=each, input=each.output)
    return flow.build()


def test_a_fan_out_and_a_nested_run_have_outputs_of_their_own() -> None:
    outputs = {"each": lambda item: item * 10, "each[1]": 7, "child": {"ok": True}}
    seen = testing.rehearse(many(), {"ids": [1, 2, 3]}, outputs=outputs)
    assert seen.order == ["each[0]", "each[1]", "each[2]", "child"]
    assert seen.outputs["each"] == [10, 7, 30]
    assert seen.started[-1].payload == [10, 7, 30]
    failed = testing.rehearse(many(), {"ids": []}, outputs={"child": ValueError("x")})
    assert (failed.status, failed.steps["child"]) == ("failed", "failed")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": {"nope": 1}}, "outputs: name 'nope', which is not such a step of refund; use some of fetch"),
        ({"outputs": {"agreed": 1}}, "outputs: name 'agreed'"),
        ({"approvals": {"pay": True}}, "approvals: name 'pay'"),
        ({"approvals": {}}, "approvals: have no decision for the step 'agreed'"),
        ({"outputs": {"pay": object()}}, "outputs.pay: "),
        ({"at": datetime(2026, 1, 1)}, "at: has no time zone"),  # noqa: DTZ001 - that is the point
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_meant_is_refused_with_the_fix(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        play(**change)
    assert str(caught.value).startswith(message)


def test_a_missing_output_and_an_approval_without_an_end_are_named() -> None:
    with pytest.raises(BadInput, match="have none for the step 'fetch', which would run"):
        testing.rehearse(refund, {"id": "A"})
    with pytest.raises(BadInput, match=r"input\.id"):
        testing.rehearse(refund, {})
    flow = Flow("stuck")
    flow.approval("agreed")
    with pytest.raises(BadInput, match="leave agreed undecided, and stuck would wait forever"):
        testing.rehearse(flow.build(), approvals={"agreed": None})
    with pytest.raises(BadInput, match="str is not a workflow"):
        testing.rehearse("refund")  # type: ignore[arg-type]  # a mistake
    with pytest.raises(BadInput, match="outputs: are empty"):
        testing.attempts()
