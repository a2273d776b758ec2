"""How the end of an attempt is said: always JSON, always bounded, whatever a function returned or raised."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError, RetryLater
from holdfast.plane.model.outcome import DELAY_NS_MAX, ERROR_CHARS_MAX, Fatal, Status, raised, returned
from holdfast.plane.model.records import PAYLOAD_BYTES_MAX, encoded


class Broken(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such account"), "ValueError: no such account"),
        (ValueError(), "ValueError"),
        (ValueError("a\nb\x1b[1m\ud800c"), "ValueError: a b [1m c"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 487 + "…"),
        (Broken(), "Broken: (it cannot be described)"),
    ],
    ids=["message", "none", "control characters", "long", "broken"],
)
def test_an_error_is_its_type_and_message_on_one_bounded_line(error: Exception, text: str) -> None:
    said = raised(error)
    assert (said.status, said.error, said.retryable, said.retry_after_ns) == (Status.FAILED, text, True, None)


@pytest.mark.parametrize(
    ("delay", "delay_ns"),
    [(0, 0), (2.5, 2_500_000_000), (0.1, 100_000_000), (float("inf"), DELAY_NS_MAX), (1e30, DELAY_NS_MAX)],
)
def test_a_function_that_asks_for_a_delay_gets_exactly_that(delay: float, delay_ns: int) -> None:
    said = raised(RetryLater(delay, "quota"))
    assert (said.retryable, said.retry_after_ns) == (True, delay_ns)


def test_a_fatal_error_is_not_retried_and_its_reason_is_kept() -> None:
    said = raised(Fatal("the account\nis closed"))
    assert (said.status, said.error, said.retryable) == (Status.FAILED, "the account is closed", False)
    assert isinstance(Fatal("x"), HoldfastError)


@given(st.text(max_size=2000))
def test_whatever_an_error_says_can_be_stored(text: str) -> None:
    for said in (raised(ValueError(text)), raised(Fatal(text)), raised(RetryLater(1, text))):
        assert said.error is not None
        assert len(said.error) <= ERROR_CHARS_MAX
        encoded("outcome", dict(said.body()))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(_JSON)
def test_a_result_is_kept_as_its_readers_will_see_it_or_refused_for_good(value: object) -> None:
    said = returned(value)
    if said.status is Status.SUCCEEDED:
        assert said.result == json.loads(json.dumps(value))
        assert said.size == len(encoded("result", value))
    else:
        assert "zero character" in (said.error or "") or "surrogate" in (said.error or "")
        assert not said.retryable


def test_a_result_is_a_copy() -> None:
    value = {"items": [1]}
    said = returned(value)
    value["items"].append(2)
    assert said.result == {"items": [1]}


def test_a_result_may_be_as_large_as_a_payload_and_no_larger() -> None:
    assert returned("x" * (PAYLOAD_BYTES_MAX - 2)).status is Status.SUCCEEDED
    assert returned("x" * (PAYLOAD_BYTES_MAX - 1)).status is Status.FAILED
