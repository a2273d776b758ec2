"""JSON of users has one meaning, or is refused with the reason and the position."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.strict_parsers import NotJson, json_of

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        ('{"a": 1, "a": 2}', "a", "is given 2 times"),
        ('{"a": 1, "a": 1, "a": 1}', "a", "is given 3 times"),
        ('{"a": {"b": [0, {"c": 1, "d": 2, "c": 3}]}}', "a.b.1.c", "is given 2 times"),
        ('{"a": {"b": 1, "b": 2}, "a": 1}', "a", "is given 2 times"),
        ('{"\\u0061": 1, "a": 2}', "a", "is given 2 times"),
        ('{"a": [1, NaN]}', "a.1", "is NaN, which is not a number in JSON"),
        ('{"a": -Infinity}', "a", "is -Infinity, which is not a number in JSON"),
        ("NaN", "", "is NaN, which is not a number in JSON"),
        ('{"a": ' + "9" * 5000 + "}", "", "has a number of too many digits"),
        (DEEP, "", "is nested too deeply"),
        (DEEP + "]" * len(DEEP), "", "is nested too deeply"),
        ("{", "", "is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
        ("", "", "is not JSON (Expecting value: line 1 column 1 (char 0))"),
    ],
)
def test_what_does_not_mean_one_thing_is_refused_and_found(text: str, field: str, problem: str) -> None:
    with pytest.raises(NotJson) as refused:
        json_of(text)
    assert (refused.value.field, refused.value.problem) == (field, problem)
    assert refused.value.fix


def test_a_name_that_stands_twice_among_many_is_found_in_time_that_grows_with_the_text_alone() -> None:
    names = ",".join(f'"{number}":{{"x":[]}}' for number in range(100_000))
    with pytest.raises(NotJson, match="last is given 2 times"):
        json_of("[" * 500 + "{" + names + ',"last":1,"last":2}' + "]" * 500)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
)


@given(VALUES)
def test_what_means_one_thing_is_read_as_it_is(value: object) -> None:
    assert json_of(json.dumps(value)) == value


def test_a_number_that_is_too_large_for_a_float_is_read_as_the_standard_library_does() -> None:
    assert math.isinf(json_of("1e400"))
