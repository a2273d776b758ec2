"""Which texts can be stored: all but those with a zero character or half a surrogate pair, whatever their JSON is."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.strict_parsers import Unstorable, json_size, unstorable
from holdfast.errors import BadInput
from holdfast.plane.model.records import encoded

# The parts of which the look-alikes of an escape are made, among everything else that text can be.
PARTS = st.sampled_from(["\\", "\\\\", "u0000", "\\u0000", '"', "\\ud800", "ü", "\U0001f512"])
STORABLE = st.lists(PARTS | st.text(st.characters(exclude_characters="\0")), max_size=8).map("".join)
WHOLE = st.text() | STORABLE
UNSTORABLE = st.sampled_from("\0\ud800\udbff\udc00\udfff")


@given(STORABLE)
@example("\\u0000")
@example("x = '\\u0000'")
@example("\\\\u0000")
@example("\\ud800")
def test_text_without_a_zero_character_and_half_a_pair_is_accepted_and_comes_back_unchanged(text: str) -> None:
    for value in (text, {text: [text]}):
        assert json.loads(encoded("payload", value)) == value
        assert json_size(value) == len(encoded("payload", value).encode())


@given(WHOLE, UNSTORABLE, WHOLE)
@example("\\", "\0", "")
@example("\\\\", "\0", "u0000")
@example("\\u0000", "\ud800", "\\u0000")
def test_text_with_one_is_refused_wherever_it_stands(before: str, bad: str, after: str) -> None:
    text = before + bad + after
    for value in (text, {text: 1}, [[text]]):
        with pytest.raises(BadInput, match="zero character or half a surrogate pair"):
            encoded("payload", value)
        with pytest.raises(Unstorable):
            json_size(value)


def test_many_backslashes_are_scanned_in_one_pass() -> None:
    """A pattern that started again at each of them would take minutes."""
    assert not unstorable("\\\\" * 500_000 + "u0000" + "\\\\u0000")
