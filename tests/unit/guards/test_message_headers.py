"""The fence in the headers of a message: read the quick way or the thorough one, it is the same."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.guards.bearer import CarriedFence
from holdfast.guards.http.headers import FENCE_HEADER, KEY_HEADER, decode_key, encode_key
from holdfast.guards.messaging.headers import carried_in

NAMES = st.sampled_from(
    [KEY_HEADER, FENCE_HEADER, KEY_HEADER.lower(), FENCE_HEADER.upper(), "Nats-Msg-Id", "", "holdfast-key "]
)
VALUES = st.one_of(
    st.sampled_from(["17", " 17\t", "017", "-1", "1_7", "invoice:42", "a%2Cb", "a,b", "%", "%zz", "é", "{x}", "", "٣"]),
    st.text(max_size=6),
    st.integers(0, 99).map(str),
)


def read(headers: object) -> CarriedFence | str | None:
    """What is found, or which header makes no sense and why."""
    try:
        return carried_in(headers)  # type: ignore[arg-type]  # whatever it is
    except BadInput as error:
        return f"{error.field}: {error.problem}"


@given(st.dictionaries(NAMES, VALUES, max_size=5))
@example({KEY_HEADER: "invoice:42", FENCE_HEADER: "17"})
@example({KEY_HEADER: "a%2Cb", FENCE_HEADER: " 17\t", "Nats-Msg-Id": "1"})
@example({KEY_HEADER: "invoice:42", FENCE_HEADER: "17", KEY_HEADER.lower(): "invoice:43"})
def test_headers_of_a_client_are_read_as_pairs_are(headers: dict[str, str]) -> None:
    assert read(headers) == read(list(headers.items()))


def test_a_plain_pair_is_read() -> None:
    assert carried_in({KEY_HEADER: "invoice:42", FENCE_HEADER: "17"}) == CarriedFence("invoice:42", 17)


@pytest.mark.parametrize("headers", [{KEY_HEADER: 7, FENCE_HEADER: "17"}, {KEY_HEADER: ["a", "b"], FENCE_HEADER: "17"}])
def test_what_is_no_text_is_refused(headers: dict[str, object]) -> None:
    assert isinstance(read(headers), str)


@given(st.text(st.characters(exclude_characters="{}"), min_size=1, max_size=40))
def test_every_name_survives_its_way_through_a_header(key: str) -> None:
    try:
        carried = CarriedFence(key, 1)
    except BadInput:
        return  # no lock can have that name
    text = encode_key(carried.key)
    assert text.isascii()
    assert "," not in text
    assert decode_key(text) == key
