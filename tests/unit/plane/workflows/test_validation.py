"""Which definitions make sense: every rule with its position and its fix, all together, and no false alarm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.plane.model import records as model
from holdfast.plane.workflows.core import validation
from holdfast.plane.workflows.core.definition import FAN_OUT_MAX, STEPS_MAX, Step, StepKind, Workflow
from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.plane.workflows.core.graph import certain
from holdfast.plane.workflows.core.problems import PROBLEMS_MAX, dotted
from holdfast.plane.workflows.core.validation import accept_document, check_workflow, judge_document


def flow(steps: Mapping[str, Mapping[str, Any]], **options: Any) -> Workflow:
    """A workflow whose steps compute 1, unless they say something else."""
    filled = {
        name: step if _is_kind(step) else {"kind": "transform", "input": 1, **step} for name, step in steps.items()
    }
    return from_document({"name": "w", "steps": filled, **options})


def _is_kind(step: Mapping[str, Any]) -> bool:
    return any(field in step for field in ("kind", "topic", "workflow", "delay", "until", "message"))


def found(steps: Mapping[str, Mapping[str, Any]], **options: Any) -> list[str]:
    """Every problem with its field, without the step and the fix."""
    problems = check_workflow(flow(steps, **options))
    assert all(problem.fix for problem in problems)
    return [": ".join(filter(None, [dotted(each.path[2 * bool(each.step) :]), each.problem])) for each in problems]


FULL: dict[str, Mapping[str, Any]] = {
    "fetch": {"topic": "crm.fetch", "input": {"id": "${ input.id }"}, "retry": 3, "timeout": 5, "priority": 5},
    "agreed": {"after": ["fetch"], "message": "${ steps.fetch.output.amount }?", "timeout": 3_600, "retry": 1},
    "pay": {
        "topic": "bank.pay",
        "after": ["agreed"],
        "when": "steps.agreed.output.approved",
        "for_each": "${ steps.fetch.output.parts }",
        "max_parallel": 3,
        "input": {"part": "${ item }", "n": "${ index }", "run": "${ run.id }"},
        "output": "${ result.receipt + text(item) }",
        "on_error": "undo",
        "risk": "money",
    },
    "undo": {"topic": "bank.undo", "input": "${ [error.step, error.code, steps.pay.error, steps.fetch.output] }"},
    "cool": {"delay": 60, "after": ["pay"]},
    "night": {"until": "input.at + 60", "after": ["pay"]},
    "any": {"after": ["cool", "night"], "join": 1, "input": "${ steps.pay.output or steps.undo.output }"},
    "child": {
        "workflow": "other",
        "version": 2,
        "after": ["any"],
        "input": "${ steps.any.output }",
        "for_each": [1, 2],
    },
}


def test_a_definition_that_uses_everything_is_sound() -> None:
    inputs = {"id": "text", "at": {"type": "whole", "default": 5}}
    assert found(FULL, inputs=inputs, output={"x": "${ steps.undo.output }"}, timeout=5, labels={"a": "b"}) == []


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ({"a": {"after": ["b"]}}, "after[0]: there is no step 'b'"),
        ({"fetch": {}, "a": {"after": ["ftech"]}}, "after[0]: there is no step 'ftech'"),
        ({"a": {}, "b": {"after": ["a", "a"]}}, "after[1]: 'a' is named twice"),
        ({"a": {"join": 1}}, "join: 1 of 0 steps cannot be waited for"),
        ({"a": {}, "b": {"after": ["a"], "join": 2}}, "join: 2 of 1 steps cannot be waited for"),
        ({"a": {}, "b": {"after": ["a"], "join": 0}}, "join: 0 of 1 steps cannot be waited for"),
        ({"a": {"on_error": "x"}}, "on_error: there is no step 'x'"),
        ({"a": {"kind": "job"}}, "topic: is missing"),
        ({"a": {"kind": "workflow"}}, "workflow: is missing"),
        ({"a": {"kind": "transform"}}, "input: is missing"),
        ({"a": {"kind": "delay"}}, "delay: is missing"),
        ({"a": {"delay": 1, "until": "1"}}, "delay: both delay and until are given"),
        ({"a": {"delay": 0}}, "delay: is out of range"),
        ({"a": {"topic": "t", "timeout": 0}}, "timeout: is out of range"),
        ({"a": {"topic": "t", "delay": 1}}, "delay: a step of kind job has no delay"),
        ({"a": {"delay": 1, "retry": 1}}, "retry: a step of kind delay has no retry"),
        ({"a": {"message": "?", "topic": "t", "kind": "approval"}}, "topic: a step of kind approval has no topic"),
        ({"a": {"topic": "no spaces"}}, "topic: 'no spaces' is not usable as a label"),
        ({"a": {"topic": "t", "priority": 101}}, "priority: 101 is out of range"),
        ({"a": {"topic": "t", "retry": 101}}, "retry.retries: 101 is out of range"),
        ({"a": {"topic": "t", "retry": {"multiplier": 0.5}}}, "retry.multiplier: 0.5 is out of range"),
        ({"a": {"topic": "t", "retry": {"jitter": 2}}}, "retry.jitter: 2 is out of range"),
        ({"a": {"topic": "t", "retry": {"initial": 9, "cap": 3}}}, "retry.cap: is less than initial"),
        ({"a": {"workflow": "w", "version": 0}}, "version: there is no version 0"),
        ({"a": {"for_each": {"a": 1}}}, "for_each: a table is no list"),
        ({"a": {"for_each": [1] * (FAN_OUT_MAX + 1)}}, f"for_each: has {FAN_OUT_MAX + 1} items"),
        ({"a": {"max_parallel": 2}}, "max_parallel: there is nothing to do in parallel"),
        ({"a": {"for_each": [1], "max_parallel": 0}}, "max_parallel: 0 is out of range"),
        ({"a": {"risk": "very high"}}, "risk: 'very high' is not usable as a label"),
    ],
)
def test_a_step_that_makes_no_sense_is_told_why(steps: dict[str, dict[str, Any]], problem: str) -> None:
    assert found(steps) == [problem]


@pytest.mark.parametrize("name", ["", "a:b", "a@1", "a[0]", "a b", "-a", "ä", "x" * 65, "a\n"])
def test_the_name_of_a_step_can_be_part_of_an_id(name: str) -> None:
    assert [problem.path for problem in check_workflow(flow({name: {}}))] == [("steps", name)]


@pytest.mark.parametrize(
    ("steps", "path", "problem"),
    [
        ({"a": {"after": ["a"]}}, ("steps", "a", "after", 0), "it waits for itself"),
        ({"a": {"after": ["b"]}, "b": {"after": ["a"]}}, ("steps", "a", "after"), "waits for itself: a → b → a"),
        (
            {"x": {}, "a": {"after": ["x", "b"]}, "b": {"after": ["c"]}, "c": {"after": ["a"]}, "d": {"after": ["c"]}},
            ("steps", "a", "after"),
            "waits for itself: a → b → c → a",
        ),
        ({"a": {"on_error": "a"}}, ("steps", "a", "on_error"), "it handles itself"),
        ({"a": {"on_error": "b"}, "b": {"on_error": "a"}}, ("steps", "a"), "can never start: a → b → a"),
        ({"a": {"on_error": "b"}, "b": {"after": ["a"]}}, ("steps", "a"), "can never start: a → b → a"),
        ({"a": {"on_error": "b", "after": ["b"]}, "b": {}}, ("steps", "a"), "can never start: a → b → a"),
        (
            {"a": {"on_error": "h"}, "b": {"after": ["a"]}, "h": {"after": ["b"]}},
            ("steps", "a"),
            "can never start: a → h → b → a",
        ),
        (
            {"a": {"on_error": "h"}, "h": {"on_error": "h2"}, "b": {"after": ["a"]}, "h2": {"after": ["b"]}},
            ("steps", "a"),
            "can never start: a → h → h2 → b → a",
        ),
    ],
)
def test_steps_that_wait_for_themselves_are_named(steps: dict[str, Any], path: tuple[Any, ...], problem: str) -> None:
    problems = check_workflow(flow(steps))
    assert (path, problem) in {(each.path, each.problem) for each in problems}


def test_two_circles_are_two_problems_and_what_is_behind_them_is_none() -> None:
    knots = {
        "a": {"after": ["b"]},
        "b": {"after": ["a"]},
        "c": {"after": ["d"]},
        "d": {"after": ["c"]},
        "e": {"after": ["d"]},
    }
    assert [each.problem for each in check_workflow(flow(knots))] == [
        "waits for itself: a → b → a",
        "waits for itself: c → d → c",
    ]


@pytest.mark.parametrize(
    "steps",
    [
        {"a": {"on_error": "h"}, "b": {"on_error": "h"}, "h": {}},
        {"a": {"on_error": "h"}, "x": {}, "h": {"after": ["x"]}},
        {"a": {"on_error": "h"}, "h": {"on_error": "h2"}, "h2": {}, "b": {"after": ["a", "h"], "join": 1}},
        {"a": {"on_error": "h"}, "h": {}, "n": {"after": ["h"]}},
    ],
)
def test_handlers_that_can_begin_are_left_alone(steps: dict[str, dict[str, Any]]) -> None:
    assert found(steps) == []


READER: dict[str, Mapping[str, Any]] = {
    "a": {},
    "b": {"after": ["a"]},
    "c": {},
    "d": {"after": ["b", "c"], "join": 1},
    "f": {"on_error": "h"},
    "h": {},
}


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"after": ["b"], "when": "steps.a.output"}, None),
        ({"after": ["b"], "when": "steps.c.output"}, "when: reads step 'c', which may not have finished by then"),
        ({"after": ["d"], "when": "steps.b.output"}, "when: reads step 'b', which may not have finished by then"),
        ({"after": ["d", "b"], "when": "steps.b.output"}, None),
        (
            {"after": ["b", "d"], "join": 1, "when": "steps.a.output"},
            "when: reads step 'a', which may not have finished by then",
        ),
        ({"after": ["f"], "when": "default(steps.h.output, 1)"}, None),
        ({"when": "steps.me.output"}, "when: reads step 'me', which may not have finished by then"),
        ({"when": "steps.bb.output"}, "when: there is no step 'bb'"),
        ({"when": "item > 1", "for_each": [1]}, "when: there is no item here"),
        ({"input": "${ index }"}, "input: there is no index here"),
        ({"input": "${ result }"}, "input: there is no result here"),
        ({"input": "${ error }"}, "input: there is no error here"),
        ({"input": ["${ 1 + }"]}, "input[0]: ends too early"),
        ({"when": "1 +"}, "when: ends too early"),
        ({"for_each": "inputs.x"}, "for_each: there is no inputs; did you mean input?"),
    ],
)
def test_a_text_reads_only_what_is_there_by_then(step: dict[str, Any], problem: str | None) -> None:
    assert found({**READER, "me": step}) == ([] if problem is None else [problem])


def test_the_output_of_a_workflow_reads_every_step_and_no_item() -> None:
    assert found(READER, output={"h": "${ steps.h.output }"}) == []
    assert found(READER, output="${ item } ${ steps.x.y }") == [
        "output: there is no item here",
        "output: there is no step 'x'",
    ]


def test_a_handler_of_two_steps_knows_only_what_both_have_before_them() -> None:
    steps: dict[str, Mapping[str, Any]] = {
        "x": {},
        "y": {"after": ["x"]},
        "a": {"after": ["x"], "on_error": "h"},
        "b": {"after": ["y"], "on_error": "h"},
    }
    known = certain(flow({**steps, "h": {}, "c": {"after": ["a"]}}))
    assert known["h"] == {"x"}
    assert known["c"] == {"a", "x"}  # and not the handler, which may be at work for the other


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "no spaces"}, "name: 'no spaces' is not usable as a label"),
        ({"risk": ""}, "risk: '' is not a name"),
        ({"timeout": 0}, "timeout: is out of range"),
        ({"version": -1}, "version: is negative"),
        ({"description": "x" * 5_000}, "description: is too long"),
        ({"labels": {str(n): "" for n in range(33)}}, "labels: are too many"),
        ({"inputs": {"a": "txet"}}, "inputs.a.type: 'txet' is no type; did you mean text?"),
        ({"inputs": {"a": {"type": "whole", "default": 1.5}}}, "inputs.a.default: is a number, and not whole"),
        ({"inputs": {"a": {"required": True, "default": 1}}}, "inputs.a.required: it has a default and is required"),
        ({"inputs": {str(n): "any" for n in range(101)}}, "inputs: are too many"),
    ],
)
def test_a_workflow_that_makes_no_sense_is_told_why(options: dict[str, Any], problem: str) -> None:
    assert problem in found({"a": {}}, **options)


def test_there_is_a_limit_to_the_steps_and_to_the_whole() -> None:
    chain = {f"s{n}": {"after": [f"s{n - 1}"] if n else []} for n in range(STEPS_MAX)}
    assert found(chain) == []
    assert found({}) == ["steps: there are 0"]
    assert found({**chain, "one-more": {}}) == [f"steps: there are {STEPS_MAX + 1}"]
    large = {f"s{n}": {"input": "x" * 300_000} for n in range(4)}
    assert found(large) == ["the definition is too large"]


def test_a_heap_of_problems_or_expressions_is_told_in_a_few_words() -> None:
    unknown = [f"unknown{n}" for n in range(2_000)]
    assert len(found({f"s{n}": {"after": unknown} for n in range(100)})) == PROBLEMS_MAX
    _, problems = judge_document({"name": "w", "steps": {"a": dict.fromkeys(unknown, 1)}})
    assert len(problems) == PROBLEMS_MAX
    assert found({"a": {"input": ["${ 1 }"] * 6_000}}) == ["there are too many expressions"]


def test_a_template_that_is_no_json_is_refused_however_it_was_made() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value in (circle, float("nan"), {"a": object()}, {1: 2}, "\ud800"):
        step = Step("a", StepKind.TRANSFORM, input=value)
        assert [each.path for each in check_workflow(Workflow("w", {"a": step}))] == [("steps", "a", "input")]


def test_a_definition_in_which_all_wait_for_all_before_is_judged() -> None:
    names = [f"s{n}" for n in range(200)]
    dense = {name: {"after": names[:n], **({"join": n // 2} if n > 3 else {})} for n, name in enumerate(names)}
    assert found(dense) == []


def test_every_place_is_blamed_once_and_all_of_them_together() -> None:
    _, problems = judge_document(
        {
            "name": "w",
            "steps": {"a": {"kind": "job", "topic": 5}, "b": {"kind": "jbo"}, "c": {"after": "x", "delay": 0}},
        }
    )
    assert [each.path for each in problems] == [
        ("steps", "a", "topic"),
        ("steps", "b", "kind"),
        ("steps", "b", "input"),
        ("steps", "c", "after", 0),
        ("steps", "c", "delay"),
    ]


def test_a_document_is_accepted_as_a_whole_or_not_at_all() -> None:
    assert accept_document({"name": "w", "steps": {"a": {"topic": "t"}}}).steps["a"].topic == "t"
    with pytest.raises(BadInput, match="w: step 'a': after"):
        accept_document({"name": "w", "steps": {"a": {"topic": "t", "after": "a"}}}, "w")


def test_the_limits_are_those_of_the_jobs_that_come_of_it() -> None:
    assert validation.PRIORITY_MAX == model.PRIORITY_MAX


# Which steps are certain to be over, against a model that tries every order.

GRAPHS = st.integers(1, 6).flatmap(
    lambda size: st.tuples(
        *(
            st.tuples(st.sets(st.integers(0, n - 1), max_size=3) if n else st.just(set()), st.integers(0, 2))
            for n in range(size)
        )
    )
)


def possible(graph: tuple[tuple[set[int], int], ...]) -> list[frozenset[int]]:
    """Every set of steps that can be over at some moment."""
    seen: set[frozenset[int]] = set()
    queue = [frozenset[int]()]
    while queue:
        over = queue.pop()
        if over not in seen:
            seen.add(over)
            queue += [over | {n} for n in range(len(graph)) if n not in over and _may_begin(graph, n, over)]
    return list(seen)


def _may_begin(graph: tuple[tuple[set[int], int], ...], n: int, over: frozenset[int]) -> bool:
    after, missing = graph[n]
    return len(after & over) >= (max(1, len(after) - missing) if after else 0)


@given(GRAPHS)
def test_a_step_is_certain_if_it_is_over_in_every_way_the_other_can_begin(
    graph: tuple[tuple[set[int], int], ...],
) -> None:
    steps = {
        f"s{n}": Step(
            f"s{n}",
            StepKind.TRANSFORM,
            tuple(f"s{each}" for each in after),
            max(1, len(after) - missing) if after else None,
            input=1,
        )
        for n, (after, missing) in enumerate(graph)
    }
    moments = possible(graph)
    for n in range(len(graph)):
        ways = [over for over in moments if n not in over and _may_begin(graph, n, over)]
        common = frozenset.intersection(*ways)
        assert certain(Workflow("w", steps))[f"s{n}"] == {f"s{each}" for each in common}
