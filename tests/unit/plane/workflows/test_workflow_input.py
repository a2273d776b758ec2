"""What a run can be started with: what the definition wants, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.plane.workflows.core.definition import Input, Step, StepKind, Workflow
from holdfast.plane.workflows.core.validation import check_input


def taking(inputs: Mapping[str, Input] | None) -> Workflow:
    return Workflow("w", {"a": Step("a", StepKind.TRANSFORM, input=1)}, inputs=inputs)


WANTED = {
    "id": Input("text"),
    "amount": Input("number", required=False, default=10),
    "count": Input("whole", required=False),
    "anything": Input(required=False),
}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"id": "x"}, {"id": "x", "amount": 10, "count": None, "anything": None}),
        ({"id": "", "amount": 2.5, "count": 3}, {"id": "", "amount": 2.5, "count": 3, "anything": None}),
        ({"id": "x", "amount": None, "anything": [1]}, {"id": "x", "amount": 10, "count": None, "anything": [1]}),
    ],
)
def test_a_run_gets_what_it_was_given_and_the_defaults(given: Any, taken: Any) -> None:
    assert check_input(taking(WANTED), given) == taken


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (None, "input.id: is missing"),
        ({"id": 5}, "input.id: is a number, and not text"),
        ({"id": "x", "amuont": 5}, "input.amuont: is not an input"),
        ({"id": "x", "zzz": 5}, "input.zzz: is not an input"),
        ({"id": "x", "amount": True}, "input.amount: is a flag, and not number"),
        ({"id": "x", "count": 1.5}, "input.count: is a number, and not whole"),
        ([], "input: a list stands where a table belongs"),
        ({"id": object()}, "input: no JSON value"),
        ({"id": float("nan")}, "input: a number that is not finite"),
    ],
)
def test_a_run_is_not_started_with_anything_else(given: Any, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_input(taking(WANTED), given)
    assert str(caught.value) == f"{problem}; {caught.value.fix}"
    assert caught.value.fix


def test_without_inputs_anything_goes_that_is_json() -> None:
    workflow = taking(None)
    assert [check_input(workflow, value) for value in (None, 5, [1], {"a": 1})] == [None, 5, [1], {"a": 1}]
    assert check_input(taking({}), None) == {}
    with pytest.raises(BadInput):
        check_input(workflow, {1, 2})
