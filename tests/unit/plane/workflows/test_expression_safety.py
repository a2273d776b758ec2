"""Nothing gets out of the expression language, nothing grows in it without end, and any text has a defined answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import BadExpression, ExpressionFailed
from holdfast.plane.workflows.expressions import check_expression, evaluate, problems_in, render, truth
from holdfast.plane.workflows.expressions.builtins import RANGE_MAX, SIZE_MAX, STEPS_MAX
from holdfast.plane.workflows.expressions.parser import DEPTH_MAX, FUNCTIONS, TEXT_MAX

NAMES: dict[str, Any] = {"input": {"items": [3, 1, 2], "long": "x" * 300_000}}

ESCAPES = [
    "__import__('os').system('true')",
    "().__class__.__bases__[0].__subclasses__()",
    "input.__class__",
    "input['__class__'].__mro__",
    "[].append(1)",
    "''.join([])",
    "'{0.__class__}'.format(input)",
    "f'{input.__class__}'",
    "(lambda: 1)()",
    "[c for c in ().__class__.__base__.__subclasses__()]",
    "eval('1')",
    "exec('import os')",
    "open('/etc/passwd')",
    "getattr(input, 'keys')",
    "globals()",
    "len.__self__",
    "print",
    "(x := 1)",
    "await input",
    "(yield 1)",
    "input if True else __builtins__",
    "{}.__init__.__globals__",
    "[x async for x in input]",
    "len(*input)",
    "len(x=1)",
    "max(input, key=len)",
    "...",
    "b'a'",
    "1 if 1 else (2).real.__class__",
    "input.a\u2024__class__",
    "ｌｅｎ(1)",
    "1;2",
    "import os",
    "\\\n1",
    "'\\N{BULLET}'",
    "''''''",
    "r'\\'",
    "  (1",
    "1 2",
    "else",
]


@pytest.mark.threat("X16")
@pytest.mark.parametrize("text", ESCAPES)
def test_no_way_leads_out_of_the_language(text: str) -> None:
    with pytest.raises(BadExpression):
        check_expression(text)


class Spy:
    """What must never be touched."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            raise AssertionError(f"{name} was read")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("text", ["input.secret", "input['secret']", "input", "[input]", "text(input)", "len(input)"])
def test_an_object_is_never_looked_into(text: str) -> None:
    with pytest.raises(ExpressionFailed):
        evaluate(text, {"input": Spy()})


def test_keys_are_never_attributes_of_the_table() -> None:
    assert evaluate("[input.keys, input.items, input.get, input.pop]", {"input": {"get": 1}}) == [None, None, 1, None]


@pytest.mark.threat("X16")
@pytest.mark.parametrize(
    "text",
    [
        "[1 for a in range(9999) for b in range(9999)]",
        "[[y for y in range(1000)] for x in range(1000)]",
        "range(10000000)",
        f"range({RANGE_MAX + 1})",
        "[input.long + 'x' for x in range(100)]",
        "[upper(input.long) for x in range(100)]",
        "join([input.long for x in range(10)])",
        "[input.long for x in range(10)]",
        "[1 for x in range(500) if input.long in input.long + 'y']",
        "[1 for x in range(500) if input.long == join([input.long])]",
        "split(input.long, 'x') + split(input.long, 'x')",
        "text([input.long, input.long, input.long, input.long])",
        "[input.items for x in range(9000)] == [input.items for x in range(9000)]",
    ],
)
def test_a_bomb_is_defused(text: str) -> None:
    check_expression(text)
    with pytest.raises(ExpressionFailed):
        evaluate(text, NAMES)


def test_writing_a_list_as_text_is_charged_by_its_items() -> None:
    with pytest.raises(ExpressionFailed, match="steps"):
        evaluate("[len(text(input)) for i in range(20)]", {"input": [None] * 10_000})


def test_the_expressions_of_a_template_share_what_they_may_do() -> None:
    names = {"input": {"rows": [{"n": n} for n in range(2_000)], "long": "x" * 1_000}}
    for template in (
        ["${ input.rows }"] * 1_000,
        ["${ input.long } and more"] * 5_000,
        "${ input.long } " * 5_000,
        ["${ 1 + 1 + 1 + 1 }"] * 5_000,
        {f"key {n}": "${ sum([row.n for row in input.rows]) }" for n in range(100)},
        [{"x" * 400_000: 1}] * 3,
    ):
        with pytest.raises(ExpressionFailed):
            render(template, names)
    assert render(["${ input.long }"] * 500, names) == ["x" * 1_000] * 500


@pytest.mark.parametrize(
    "text",
    [
        "(" * 3_000,
        "[" * 150 + "]" * 150,
        "-" * 3_000 + "1",
        "not " * 900 + "1",
        "input" + ".a" * 1_500,
        "input" + "[0]" * 1_000,
        "1" + "+1" * 1_500,
        "1" + "<1" * 1_500,
        "[" + "1," * 1_500 + "]",
        "1 if 1 else " * 300 + "1",
        "9" * 3_999,
        "'" + "a" * TEXT_MAX + "'",
    ],
    ids=lambda text: text[:12],
)
def test_a_text_that_is_too_large_or_too_deep_is_refused(text: str) -> None:
    with pytest.raises(BadExpression):
        check_expression(text)


def test_the_limits_leave_room_for_honest_work() -> None:
    names = {"input": {"rows": [{"n": n, "name": f"row {n}"} for n in range(1_000)]}}
    assert evaluate("sum([row.n for row in input.rows if row.n % 2 == 0])", names) == 249_500
    assert evaluate("input" + ".a" * (DEPTH_MAX - 2), {"input": {}}) is None
    assert STEPS_MAX >= 10_000


def test_a_value_that_is_not_json_fails() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    circle: list[Any] = []
    circle.append(circle)
    for value in (float("nan"), float("inf"), b"bytes", {1: 2}, object(), deep, circle, "\ud800", "x" * (SIZE_MAX + 1)):
        with pytest.raises(ExpressionFailed):
            evaluate("input", {"input": value})
        with pytest.raises(ExpressionFailed):
            render({"a": "${ input }"}, {"input": value})
        with pytest.raises(ExpressionFailed):
            render({"a": [value]}, {})


# Whatever is written.

WORDS = st.sampled_from(
    [
        *("input", "steps", "steps.a", "item", "x", "_", "null", "true", "1", "0", "2.5", "1e9", "'a'", '"b"', "''"),
        *("+", "-", "*", "**", "/", "//", "%", "<", ">", "==", "!=", "<=", "in", "not", "and", "or", "if", "else"),
        *("(", ")", "[", "]", "{", "}", ",", ":", ".", ".a", "[0]", " ", "\n", "${", "}", "$${", "\\", "'", '"', "is"),
        *(f"{name}(" for name in FUNCTIONS),
        *("lambda", "await", "__class__", ":=", "=", "@", "#", "f'", "é", "\x00", "\ud800", "_a", "for", "*x", "0x1"),
    ]
)
TEXTS = st.text(max_size=60) | st.lists(WORDS, max_size=25).map("".join) | st.lists(WORDS, max_size=15).map(" ".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "from"]), inner, max_size=3),
    max_leaves=8,
)


def attempt(act: Callable[[str, Mapping[str, Any]], Any], text: str, names: Mapping[str, Any]) -> Any:
    """The value, or one of the two errors that there may be."""
    try:
        return act(text, names)
    except (BadExpression, ExpressionFailed) as error:
        return error


@given(TEXTS, VALUES)
@example("(" * 200, None)
@example("'" * 7, None)
def test_any_text_gives_a_value_or_one_of_two_errors(text: str, value: Any) -> None:
    names = {"input": value, "item": value, "steps": {"a": {"output": value}}}
    for act in (evaluate, truth, render):
        first, again = attempt(act, text, names), attempt(act, text, names)
        if isinstance(first, BadExpression | ExpressionFailed):
            assert 0 <= first.position <= len(first.text)
            assert (type(first), str(first)) == (type(again), str(again))
        else:
            assert first == again
            json.dumps(first, allow_nan=False)
    assert all(path == (0,) for path, _ in problems_in([text]))


def bracketed(words: tuple[str, ...]) -> str:
    return f"({' '.join(words)})"


SUMS = st.recursive(
    st.integers(0, 9).map(str),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "<", "<=", ">", "and", "or"]), inner).map(bracketed)
        | st.tuples(inner, st.just("if"), inner, st.just("else"), inner).map(bracketed)
        | st.tuples(st.sampled_from(["not", "-"]), inner).map(bracketed)
    ),
    max_leaves=12,
)


@given(SUMS)
def test_where_a_text_is_python_too_it_means_the_same(text: str) -> None:
    found = attempt(evaluate, text, {})
    if isinstance(found, ExpressionFailed):
        assert "a flag" in found.problem  # a flag is no number here; it is the one difference
    else:
        assert found == eval(text, {"__builtins__": {}})


@given(VALUES)
def test_a_value_comes_out_as_it_went_in(value: Any) -> None:
    assert evaluate("input", {"input": value}) == value
    assert render({"deep": ["${ input }"]}, {"input": value}) == {"deep": [value]}
    assert truth("input == input", {"input": value}) is True


@given(st.text(max_size=40))
def test_a_text_without_an_opening_is_left_alone_and_one_can_be_escaped(text: str) -> None:
    if "${" not in text:
        assert render(text, {}) == text
    if "$" not in text:
        assert render("$${" + text, {}) == "${" + text
