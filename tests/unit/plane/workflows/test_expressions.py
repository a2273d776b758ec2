"""The expression language: what each part is worth, what is refused and where, and how templates are filled in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.errors import BadExpression, ExpressionFailed
from holdfast.plane.workflows.expressions import (
    check_expression,
    evaluate,
    names_in,
    problems_in,
    render,
    steps_in,
    truth,
)

NAMES: dict[str, Any] = {
    "input": {
        "amount": 120,
        "from": "ada",
        "items": [3, 1, 2],
        "empty": [],
        "name": "Ünïcode",
        "on": True,
        "price": 2.5,
        "nested": {"a": [{"b": 7}]},
        "huge": 10**30,
        "long": "x" * 300_000,
    },
    "steps": {"fetch": {"output": {"id": 4}, "status": "succeeded"}, "a-b": {"output": "dash"}},
    "run": {"id": "r1", "workflow": "refund", "tenant": "acme"},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("input.amount", 120),
        ("input['amount']", 120),
        ("input.from", "ada"),
        ("input . from", "ada"),
        ("steps.fetch.output.id", 4),
        ('steps["a-b"].output', "dash"),
        ("run.id", "r1"),
        ("${ input.amount > 100 }", True),
        ("  ${input.amount > 100}\n", True),
        ("\n  input.amount\n  + 1\n", 121),
        ("input.nested.a[0].b", 7),
        ("input.items[-1]", 2),
        ("input.items[1:]", [1, 2]),
        ("input.items[:-1]", [3, 1]),
        ("input.name[0:1]", "Ü"),
        ("1 + 2 * 3 - 4", 3),
        ("7 / 2", 3.5),
        ("7 // 2", 3),
        ("7 % 4", 3),
        ("-input.amount + +1", -119),
        ("'a' + \"b\"", "ab"),
        ("[1] + [2, 3]", [1, 2, 3]),
        ("1 < 2 <= 2 < 3", True),
        ("3 > 2 > 2", False),
        ("'a' < 'b'", True),
        ("1 == 1.0", True),
        ("1 == true", False),
        ("0 != false", True),
        ("[1, {'a': 2}] == [1, {'a': 2}]", True),
        ("{'a': 1} == {'a': 1, 'b': 2}", False),
        ("2 in input.items", True),
        ("true in [1]", False),
        ("'b' not in 'abc'", False),
        ("'amount' in input", True),
        ("1 in null", False),
        ("input.on and input.amount", 120),
        ("null or 'x'", "x"),
        ("not input.empty", True),
        ("'yes' if input.on else 1 / 0", "yes"),
        ("{'a': input.amount, 'b': [true, false, null, None]}", {"a": 120, "b": [True, False, None, None]}),
        ("[x * 2 for x in input.items if x > 1]", [6, 4]),
        ("[x + y for x in ['a', 'b'] for y in ['c', x]]", ["ac", "aa", "bc", "bb"]),
        ("[[y for y in range(x)] for x in input.items]", [[0, 1, 2], [0], [0, 1]]),
        ("len(input.items) + len('ab') + len(input.nested) + len(null)", 6),
        ("min(input.items)", 1),
        ("max(1, 2.5)", 2.5),
        ("min([])", None),
        ("max('a', 'b')", "b"),
        ("sum(input.items)", 6),
        ("round(2.675, 1)", 2.7),
        ("round(2.5)", 2),
        ("abs(-3)", 3),
        ("text(1) + text('a') + text([1, null, true])", "1a[1, null, true]"),
        ("number(' 12 ')", 12),
        ("number('-1.5e2')", -150.0),
        ("number(true)", 1),
        ("whole(2.9) + whole('3.9') + whole(-1.5)", 4),
        ("[flag('no'), flag('YES'), flag(0), flag([1]), flag(null)]", [False, True, False, True, False]),
        ("lower('AB') + upper('c')", "abC"),
        ("split('a b  c')", ["a", "b", "c"]),
        ("split('a,b', ',')", ["a", "b"]),
        ("join(['a', 1, null], '-')", "a-1-null"),
        ("join(input.items)", "312"),
        ("contains(input.items, 3)", True),
        ("contains('abc', 'd')", False),
        ("keys(run)", ["id", "workflow", "tenant"]),
        ("values({'a': 1, 'b': 2})", [1, 2]),
        ("range(3)", [0, 1, 2]),
        ("range(5, 0, -2)", [5, 3, 1]),
        ("default(input.missing, 5)", 5),
        ("default(false, 5)", False),
        ('"\\u00e9\\n\\t\\\\\\""', 'é\n\t\\"'),
    ],
)
def test_an_expression_is_worth(text: str, value: Any) -> None:
    check_expression(text)
    found = evaluate(text, NAMES)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "input.missing",
        "input.missing.deeper.and_deeper",
        "input.items[3]",
        "input.items[-4]",
        "input.nested['x'].y[0]",
        "null.x",
        "steps.fetch.output.none[1:2]",
    ],
)
def test_what_is_missing_is_null(text: str) -> None:
    assert evaluate(text, NAMES) is None


@pytest.mark.parametrize(
    ("text", "problem", "position"),
    [
        ("input.amount.x", "a number has no field x", 0),
        ("1 + input.name.x", "a text has no field x", 4),
        ("input.items.x", "a list has no field x", 0),
        ("input.items['x']", "a list has no field x", 0),
        ("input.items[true]", "an item of a list has a whole number, not a flag", 0),
        ("input[0]", "a field of a table has a text for a name, not a number", 0),
        ("1 / 0", "divides by zero", 0),
        ("1 % 0.0", "divides by zero", 0),
        ("'a' + 1", "a text + a number means nothing", 0),
        ("'a' * 3", "a text * a number means nothing", 0),
        ("[1] * 3", "a list * a number means nothing", 0),
        ("'%s' % 1", "a text % a number means nothing", 0),
        ("true + 1", "a flag + a number means nothing", 0),
        ("-'a'", "a text has no sign", 0),
        ("1 < 'a'", "a number cannot be compared with a text", 0),
        ("null < 1", "null cannot be compared with a number", 0),
        ("1 in 2", "a number cannot be in a number", 0),
        ("1 in 'a'", "a number cannot be in a text", 0),
        ("item", "there is no item here", 0),
        ("[x for x in x]", "there is no x here", 12),
        ("[x for x in 5]", "for … in wants a list, not a number", 0),
        ("{1: 2}", "the key of a table is a text, not a number", 0),
        ("len(5)", "a number has no length", 0),
        ("sum(['a'])", "wants numbers, not a text", 0),
        ("max(1, 'a')", "wants numbers, or texts, and not both", 0),
        ("number('x')", "'x' is not a number", 0),
        ("number('1_0')", "'1_0' is not a number", 0),
        ("number('nan')", "gives a number that is not finite", 0),
        ("whole('inf')", "gives a number that is not finite", 0),
        ("flag('maybe')", "'maybe' is neither true nor false", 0),
        ("round(1, 99)", "wants a number, and how many digits to keep (0 to 15)", 0),
        ("split(1)", "wants a text, not a number", 0),
        ("split('a', '')", "wants a text to split at", 0),
        ("keys([])", "wants a table, not a list", 0),
        ("range(1, 2, 0)", "wants whole numbers, and a step that is not 0", 0),
        ("input.amount[1:2]", "a number has no parts", 0),
        ("input.items['a':]", "a part has whole numbers for its ends", 0),
        ("9223372036854775807 + 1", "gives too large a number", 0),
        ("input.huge + 1", "gives too large a number", 0),
        ("1e308 * 10", "gives a number that is not finite", 0),
    ],
)
def test_a_mistake_says_where_and_why(text: str, problem: str, position: int) -> None:
    check_expression(text)
    with pytest.raises(ExpressionFailed) as caught:
        evaluate(text, NAMES)
    assert (caught.value.problem, caught.value.position, caught.value.text) == (problem, position, text)


@pytest.mark.parametrize(
    ("text", "problem", "position"),
    [
        ("", "is empty", 0),
        ("  \n ", "is empty", 0),
        ("1 +", "ends too early", 3),
        ("inptu.x", "there is no inptu; did you mean input?", 0),
        ("'é' + stpes.a", "there is no stpes; did you mean steps?", 6),
        ("lenn(1)", "there is no function lenn; did you mean len?", 0),
        ("len", "len is a function; write len(…)", 0),
        ("len(1, 2)", "len takes 1 arguments, not 2", 0),
        ("range()", "range takes 1 to 3 arguments, not 0", 0),
        ("input.get('a')", "only functions can be called; values have none", 0),
        ("steps", 'steps wants the name of a step: steps.fetch, or steps["fetch"]', 0),
        ("keys(steps)", 'steps wants the name of a step: steps.fetch, or steps["fetch"]', 5),
        ("steps[input.x]", 'steps wants the name of a step: steps.fetch, or steps["fetch"]', 0),
        ("input.a = 1", "'=' means nothing here; compare with ==", 8),
        ("input && 1", "'&' means nothing here; write and", 6),
        ("1 || 2", "'|' means nothing here; write or", 2),
        ("!true", "'!' means nothing here; write not, or !=", 0),
        ("input?.a", "'?' means nothing here; a missing key is null; use default(x, y)", 5),
        ("1 # one", "'#' means nothing here; there are no comments", 2),
        ("2 ** 3", "there is no **", 0),
        ("1 is 1", "there is no `is`; compare with ==", 0),
        ("(1, 2)", "there are no tuples; write a list: [a, b]", 0),
        ("{1, 2}", "there are no sets; write a list: [a, b]", 0),
        ("{**input}", "there is no **", 0),
        ("[*input]", "there is no *", 1),
        ("f'{input}'", "a text has no prefix", 1),
        ("'a' 'b'", "two texts stand side by side; join them with +", 4),
        ("'''a'''", "two texts stand side by side; join them with +", 2),
        ("'abc", "the text that begins here does not end, or has a \\ that means nothing", 0),
        (r"'\d'", "the text that begins here does not end, or has a \\ that means nothing", 0),
        (r"'\ud800'", "this is no JSON value", 0),
        ("'\ud800'", "has half a character", 1),
        ("1or 2", "is not a number", 0),
        ("0x10", "is not a number", 0),
        ("1_000", "is not a number", 0),
        ("1j", "is not a number", 0),
        ("99999999999999999999", "is too large a number", 0),
        ("1e999", "is too large a number", 0),
        ("[input for input in []]", "input means something already; choose another name", 11),
        ("[x for x, y in []]", "write [… for x in …]", 0),
        ("input.items[::2]", "a part of a list is [from:to]", 12),
        ("ｉnput", "'ｉ' means nothing here; use plain letters, digits and operators", 0),
        ("${ input.x } and 1", "'$' means nothing here; an expression inside an expression needs no ${ }", 0),
    ],
)
def test_what_is_no_expression_is_refused_where_it_goes_wrong(text: str, problem: str, position: int) -> None:
    with pytest.raises(BadExpression) as caught:
        check_expression(text)
    assert (caught.value.problem, caught.value.position) == (problem, position)
    with pytest.raises(BadExpression):
        evaluate(text, NAMES)


# Templates.


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("plain", "plain"),
        ("", ""),
        ("$ {} $x }", "$ {} $x }"),
        ("${ input.amount }", 120),
        ("\n ${ input.items }\n", [3, 1, 2]),
        ("n=${ input.amount }", "n=120"),
        ("${ input.amount }${ input.price }", "1202.5"),
        ("${ input.items } ${ null } ${ true } ${ {'a': 'b'} }", '[3, 1, 2] null true {"a": "b"}'),
        ("$${ input.amount }", "${ input.amount }"),
        ("$${ a } ${ input.amount } $${", "${ a } 120 ${"),
        ("$$${ a }", "$${ a }"),
        ("${ '}' + \"{${\" }", "}{${"),
        ("${ {'a': {'b': 1}}.a.b }", 1),
        (r"${ 'it\'s }' }", "it's }"),
        ({"${ run.id }": ["${ run.id }", 5, None, ("x${ run.id }",)]}, {"${ run.id }": ["r1", 5, None, ["xr1"]]}),
        (None, None),
        (2.5, 2.5),
    ],
)
def test_a_template_is_filled_in(template: Any, value: Any) -> None:
    found = render(template, NAMES)
    assert found == value
    assert json.loads(json.dumps(found)) == value


def test_a_template_keeps_nothing_of_what_it_was_given() -> None:
    names = {"input": {"list": [1]}}
    template = {"a": "${ input.list }", "b": [1]}
    found = render(template, names)
    found["a"].append(2)
    found["b"].append(2)
    assert (names, template) == ({"input": {"list": [1]}}, {"a": "${ input.list }", "b": [1]})


def test_what_a_template_makes_is_bounded_as_a_whole() -> None:
    with pytest.raises(ExpressionFailed, match="is too large"):
        render(["${ input.long }"] * 4, NAMES)
    with pytest.raises(ExpressionFailed, match="is too large"):
        render("${ input.long }" * 4, NAMES)


def test_every_problem_of_a_template_has_its_path_and_its_place() -> None:
    template = {"a": ["fine", "x ${ 1 + }"], "b": "${ input.x", "c": "${ y } ${ z }", "d": "$${ y }"}
    found = [(path, error.problem, error.position) for path, error in problems_in(template)]
    assert found == [
        (("a", 1), "ends too early", 8),
        (("b",), "this ${ has no }; write $${ for a plain ${", 0),
        (("c",), "there is no y", 3),
    ]


def test_what_a_template_reads_is_known_without_running_it() -> None:
    template = {
        "a": "${ input.x + steps.fetch.output } and ${ [item for_ in [1]] }".replace("for_", "for n"),
        "b": ["${ steps['a-b'].output }", "$${ steps.missing.output }", "${ 'steps.neither' }", 5],
    }
    assert names_in(template) == {"input", "steps", "item"}
    assert steps_in(template) == {"fetch", "a-b"}
    assert names_in("input.x") == set()


def test_an_expression_may_be_told_which_names_it_can_read() -> None:
    check_expression("input.x + item", {"input", "item"})
    with pytest.raises(BadExpression, match="result means nothing here; it can read input"):
        check_expression("${ result.x }", {"input"})


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", [], {}])
def test_what_is_nothing_or_empty_is_false(value: Any) -> None:
    assert truth("input", {"input": value}) is False
    assert truth("${ not input }", {"input": value}) is True


@pytest.mark.parametrize("value", [True, 1, -0.5, "false", [0], {"a": None}])
def test_all_else_is_true(value: Any) -> None:
    assert truth("${ input }", {"input": value}) is True
