"""The written form of a definition: an exact inverse, kind to people, and strict about what it does not know."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.duration_text import EXAMPLES, YEAR_NS
from holdfast.errors import BadInput
from holdfast.plane.workflows.core.definition import Input, Step, StepKind, StepRetry, Workflow
from holdfast.plane.workflows.core.definition_codec import (
    as_document,
    duration,
    from_document,
    read_document,
    written_duration,
)
from holdfast.plane.workflows.core.problems import BadWorkflow
from holdfast.types import NS

KINDS = "job, approval, delay, transform, workflow"

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
NAMES = st.sampled_from(["a", "b", "c-d", "e.f", "g/h"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
TIMES = st.none() | st.integers(0, YEAR_NS)
WHOLES = st.integers(-5, 1_000)
RETRIES = st.builds(
    StepRetry,
    WHOLES,
    st.integers(0, YEAR_NS),
    st.floats(1, 9),
    st.integers(0, YEAR_NS),
    st.floats(0, 1),
)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """A step with any field set, whether it makes sense or not."""
    options: dict[str, st.SearchStrategy[Any]] = {
        **{name: st.none() | TEXTS for name in ("when", "on_error", "risk", "topic", "workflow", "until")},
        **dict.fromkeys(("input", "output", "message", "for_each"), JSON),
        **{name: st.none() | WHOLES for name in ("join", "version", "max_parallel")},
        **dict.fromkeys(("timeout_ns", "delay_ns"), TIMES),
        "after": st.lists(NAMES, max_size=2).map(tuple),
        "priority": WHOLES,
        **dict.fromkeys(("recover", "cancel_rest"), st.booleans()),
        "retry": RETRIES,
    }
    assert options.keys() == {each.name for each in fields(Step)} - {"name", "kind"}
    chosen = draw(st.sets(st.sampled_from(sorted(options)), max_size=5))
    return Step("", draw(st.sampled_from(StepKind)), **{name: draw(options[name]) for name in sorted(chosen)})


WORKFLOWS = st.builds(
    Workflow,
    TEXTS,
    st.dictionaries(NAMES, steps(), max_size=3).map(lambda each: {n: replace(s, name=n) for n, s in each.items()}),
    WHOLES,
    st.none() | st.dictionaries(NAMES, st.builds(Input, TEXTS, st.booleans(), JSON), max_size=2),
    JSON,
    TIMES,
    TEXTS,
    TEXTS,
    st.dictionaries(TEXTS, TEXTS, max_size=2).map(MappingProxyType),
)


@settings(max_examples=60)
@given(WORKFLOWS)
def test_what_is_written_is_read_back_exactly(workflow: Workflow) -> None:
    document = json.loads(json.dumps(as_document(workflow)))
    again = from_document(document)
    assert again == workflow
    assert list(again.steps) == list(workflow.steps)
    assert as_document(again) == document


def test_what_is_as_it_would_be_anyway_is_not_written() -> None:
    step = Step("a", StepKind.JOB, topic="t")
    assert as_document(Workflow("w", {"a": step})) == {"name": "w", "steps": {"a": {"kind": "job", "topic": "t"}}}


def test_reading_is_kind() -> None:
    workflow = from_document(
        {
            "name": "w",
            "inputs": {"a": "text", "b": None, "c": {"default": 5}, "d": {"type": "flag", "required": False}},
            "steps": {
                "job": {"topic": "t", "retry": 3, "when": True},
                "wait": {"delay": "1h30m", "after": "job"},
                "until": {"until": "input.c"},
                "ok": {"message": "?", "timeout": "90s"},
                "child": {"workflow": "other", "when": False},
            },
        }
    )
    assert workflow.inputs == {
        "a": Input("text"),
        "b": Input(),
        "c": Input(required=False, default=5),
        "d": Input("flag", required=False),
    }
    kinds = [step.kind for step in workflow.steps.values()]
    assert kinds == [StepKind.JOB, StepKind.DELAY, StepKind.DELAY, StepKind.APPROVAL, StepKind.WORKFLOW]
    assert workflow.steps["job"].retry == StepRetry(3)
    assert (workflow.steps["job"].when, workflow.steps["child"].when) == ("true", "false")
    assert (workflow.steps["wait"].after, workflow.steps["wait"].delay_ns) == (("job",), 5_400 * NS)


def test_all_that_cannot_be_read_is_found_at_once() -> None:
    document = {
        "nmae": "w",
        "timeout": "soon",
        "labels": {"a": 1},
        "inputs": [],
        "steps": {
            "a": {"topc": "t", "kind": "jbo"},
            "b": {"kind": "job", "after": [1], "join": "2", "retry": {"retires": 2, "jitter": "x"}},
            "c": {},
            "d": 5,
            "e": {"topic": ["t"], "when": 3, "priority": True, "timeout": -1},
        },
    }
    _, problems = read_document(document)
    assert sorted(map(str, problems)) == sorted(
        [
            "nmae: there is no field 'nmae'; did you mean name?",
            "name: is missing; write name: refund",
            f"timeout: 'soon' is not a length of time; {EXAMPLES}",
            'labels: labels are a table of texts; write {team: "payments"}',
            "inputs: a list stands where a table belongs; write {amount: number, note: text}",
            "step 'a': topc: there is no field 'topc'; did you mean topic?",
            f"step 'a': kind: 'jbo' is no kind of step; did you mean job?; use {KINDS}",
            "step 'b': after: [1] is not a list of names; write [a, b]",
            "step 'b': join: '2' is not a whole number; write a number such as 3",
            "step 'b': retry.retires: there is no field 'retires'; did you mean retries?",
            "step 'b': retry.jitter: 'x' is not a number; write a number such as 2.0",
            f"step 'c': does not say what kind of step it is; write kind: {KINDS}",
            "step 'd': a number stands where a table belongs; write kind, after, join, …",
            "step 'e': topic: a list stands where a text belongs; write it in quotes: \"…\"",
            "step 'e': when: a number stands where a text belongs; write it in quotes: \"…\"",
            "step 'e': priority: True is not a whole number; write a number such as 3",
            "step 'e': timeout: -1 s is out of range; give between 0 and 31622400 seconds",
        ]
    )
    with pytest.raises(BadWorkflow) as caught:
        from_document(document, "w.json")
    assert caught.value.problems == problems
    assert str(caught.value).splitlines() == [f"w.json: {problem}" for problem in problems]


@pytest.mark.parametrize("document", [None, 5, "x", [], [{}]])
def test_what_is_no_table_is_no_workflow(document: object) -> None:
    with pytest.raises(BadWorkflow, match="stands where a table belongs"):
        from_document(document)


FIELDS = st.sampled_from(["name", "steps", "kind", "after", "retry", "inputs", "a"])
ANYTHING = st.recursive(st.none() | st.integers(0, 3) | TEXTS, lambda inner: st.dictionaries(FIELDS, inner, max_size=4))


@settings(max_examples=60)
@given(ANYTHING)
def test_any_json_is_a_workflow_or_has_problems(document: object) -> None:
    workflow, problems = read_document(document)
    if not problems:
        assert from_document(as_document(workflow)) == workflow
    assert all(problem.problem and problem.fix for problem in problems)


@pytest.mark.parametrize(
    ("written", "value_ns"),
    [
        (0, 0),
        (90, 90 * NS),
        (0.25, NS // 4),
        ("90s", 90 * NS),
        (" 5m ", 300 * NS),
        ("1h30m", 5_400 * NS),
        ("1h 30m", 5_400 * NS),
        ("2d", 172_800 * NS),
        ("1.5s", 1_500_000_000),
        ("250ms", 250_000_000),
        ("3us", 3_000),
        ("7ns", 7),
        ("366d", YEAR_NS),
        ("5", 5 * NS),
        ("0.25", NS // 4),
        ("1.5 MIN", 90 * NS),
        (timedelta(minutes=1, microseconds=1), 60 * NS + 1_000),
    ],
)
def test_a_time_is_seconds_or_a_text_with_units(written: Any, value_ns: int) -> None:
    assert duration(written) == value_ns


@pytest.mark.parametrize(
    "written",
    [
        None,
        True,
        [],
        "",
        "5x",
        "m",
        "5 parsecs",
        "-5s",
        "1h-30m",
        "1e3s",
        "٣s",
        float("nan"),
        float("inf"),
        -1,
        "367d",
        10**30,
        1e300,
    ],
)
def test_what_is_no_time_is_refused_with_a_fix(written: Any) -> None:
    with pytest.raises(BadInput) as caught:
        duration(written, "timeout")
    assert (caught.value.field, bool(caught.value.fix)) == ("timeout", True)


@given(st.integers(0, YEAR_NS))
def test_a_time_is_written_exactly(value_ns: int) -> None:
    assert duration(written_duration(value_ns)) == value_ns
    assert duration(json.loads(json.dumps(written_duration(value_ns)))) == value_ns
