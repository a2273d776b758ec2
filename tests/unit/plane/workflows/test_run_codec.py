"""The written form of a run is undone exactly, is small, and is never half read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.strict_parsers import DEPTH_MAX, VALUE_BYTES_MAX, Unstorable, json_size
from holdfast.errors import BadInput
from holdfast.plane.workflows.core.advance import begin
from holdfast.plane.workflows.core.definition import StepRetry
from holdfast.plane.workflows.core.run import Parent, StepSlot, attempt_id, read_attempt_id
from holdfast.plane.workflows.core.run_codec import as_document, from_document
from holdfast.types import NS
from support.harness.runs import START, Stage, approval, delay, job, sub, transform, workflow


def a_run() -> Stage:
    """A run with something of everything."""
    stage = Stage(
        job("a", retry=StepRetry(retries=1), output={"n": "${ result }"}),
        *(job("b", on_error="h"), transform("h", input=["${ error }"]), transform("no", when="false")),
        *(approval("ask", message="?"), delay("wait", delay_ns=NS), sub("s", "a")),
        job("f", for_each=[0, 1], timeout_ns=9 * NS),
        transform("g", for_each=[None, 1, False], input="${ item }"),
        input={"x": [1, 2.5, "ü", None]},
        timeout_ns=60 * NS,
    )
    stage.look()
    stage.failed("a")
    stage.failed("b")
    stage.ended("f[1]", result=[])
    return stage


def test_a_run_with_its_definition_is_the_same_after_json() -> None:
    run = a_run().run
    document = json.loads(json.dumps(as_document(run, definition=True), allow_nan=False, sort_keys=True))
    assert from_document(document) == run
    assert list(from_document(document).steps) == list(document["workflow"]["steps"])
    assert list(from_document(document, run.workflow).steps) == list(run.steps)  # whatever became of the order of keys


def test_a_run_of_a_run_knows_its_parent() -> None:
    run = begin("p:s[3]@2", "t", workflow(job("a")), None, now_ns=START, parent=Parent("p", "s[3]", 2), depth=3)
    found = from_document(as_document(run), run.workflow)
    assert found == run
    assert found.parent == Parent("p", "s[3]", 2)


def test_what_is_as_in_the_beginning_is_left_out() -> None:
    run = begin("r", "t", workflow(job("a")), None, now_ns=START)
    assert as_document(run) == {
        "form": 1,
        "id": "r",
        "tenant": "t",
        "status": "pending",
        "input": None,
        "created_ns": START,
        "steps": {"a": {"status": "pending"}},
    }


def test_the_outputs_of_a_fan_out_are_written_once() -> None:
    stage = Stage(job("f", for_each=[1, 2]), output="done")
    stage.look()
    stage.ended("f[0]", result="one of a kind")
    assert json.dumps(as_document(stage.run)).count("one of a kind") == 1
    stage.ended("f[1]", result=None)
    assert json.dumps(as_document(stage.run)).count("one of a kind") == 1
    assert from_document(as_document(stage.run), stage.run.workflow).steps["f"].children[0].output == "one of a kind"


@pytest.mark.parametrize(
    "change",
    [
        {"form": 2},
        {"status": "asleep"},
        {"steps": {}},
        {"steps": {"a": {}}},
        {"steps": {"a": {"status": "gone"}}},
        {"steps": {"a": {"status": "succeeded", "items": [1], "children": [{"status": "succeeded"}], "output": []}}},
        {"steps": {"a": {"status": "succeeded", "items": [1]}}},
        {"steps": [1]},
        {"steps": None},
        {"parent": 7},
        {"parent": ["only"]},
        {"id": ...},
        {"form": ...},
        {"workflow": {"name": 3}},
    ],
    ids=str,
)
def test_a_document_that_no_run_can_have_made_is_refused(change: dict[str, Any]) -> None:
    run = begin("r", "t", workflow(job("a")), None, now_ns=START)
    document = {**as_document(run, definition=True), **change}
    document = {key: value for key, value in document.items() if value is not ...}
    with pytest.raises(BadInput):
        from_document(document)


def test_a_document_without_a_definition_needs_one() -> None:
    run = begin("r", "t", workflow(job("a")), None, now_ns=START)
    with pytest.raises(BadInput, match="workflow"):
        from_document(as_document(run))


# Ids.


@pytest.mark.requires("R151")
@pytest.mark.parametrize(
    ("slot", "attempt", "text"),
    [
        (StepSlot("step"), 1, "run-1:step@1"),
        (StepSlot("step", 0), 12, "run-1:step[0]@12"),
        (StepSlot("a.b/c-d_e", 999), 100, "run-1:a.b/c-d_e[999]@100"),
    ],
)
def test_the_id_of_an_attempt_names_run_step_and_attempt(slot: StepSlot, attempt: int, text: str) -> None:
    assert attempt_id("run-1", slot, attempt) == text
    assert read_attempt_id("run-1", text) == (slot, attempt)


def test_the_id_of_an_attempt_of_a_nested_run_belongs_to_that_run_alone() -> None:
    inner = attempt_id("r", StepSlot("outer", 2), 1)
    text = attempt_id(inner, StepSlot("s"), 3)
    assert read_attempt_id(inner, text) == (StepSlot("s"), 3)
    assert read_attempt_id("r", text) is None


@pytest.mark.parametrize(
    "text", ["r", "r:", "r:a", "r:a@", "r:a@0", "r:a@+1", "r:a@1 ", "r:a[]@1", "r:a[01]@1", "r:@1"]
)
def test_what_is_no_id_of_an_attempt_is_nothing(text: str) -> None:
    assert read_attempt_id("r", text) is None


# Sizes.


@pytest.mark.parametrize(
    ("value", "size"), [(None, 4), ({"a": [1, 2.5]}, 13), ("ü", 4), ("x" * (VALUE_BYTES_MAX - 2), VALUE_BYTES_MAX)]
)
def test_the_size_of_a_value_is_that_of_its_json(value: object, size: int) -> None:
    assert json_size(value) == size


@pytest.mark.parametrize(
    "value",
    [float("nan"), object(), {1: {2}}, "\x00", {"\x00": 1}, "\ud800", "x" * (VALUE_BYTES_MAX - 1)],
    ids=lambda value: repr(value)[:20],
)
def test_a_value_that_no_store_takes_has_no_size(value: object) -> None:
    with pytest.raises(Unstorable):
        json_size(value)


@pytest.mark.parametrize("beside", [None, [1, {}], "[" * 1000], ids=["nothing", "containers", "brackets in a text"])
@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}, lambda value: (value,)])
def test_a_value_may_be_so_deep_and_no_deeper(wrap: Callable[[object], object], beside: object) -> None:
    value = wrap(0)
    for _ in range(DEPTH_MAX - 2):
        value = wrap(value)
    assert json_size([value, beside]) > DEPTH_MAX
    with pytest.raises(Unstorable, match="nested deeper than 100 levels"):
        json_size([wrap(value), beside])
