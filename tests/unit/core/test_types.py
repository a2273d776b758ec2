"""Durations, names, labels and elapsed time."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.types import (
    KEY_BYTES_MAX,
    LABEL_CHARS_MAX,
    MS,
    NS,
    Guarantee,
    Instant,
    Owner,
    check_key,
    check_label,
    duration_ns,
    elapsed_ns,
)

YEAR_NS = 366 * 86_400 * NS
instants = st.builds(Instant, *[st.integers(0, 10**18)] * 3)


# Durations.


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0, 0),
        (1, NS),
        (0.5, NS // 2),
        (1e-9, 1),
        (timedelta(seconds=2), 2 * NS),
        (timedelta(milliseconds=1), MS),
        (-0.0, 0),
    ],
)
def test_seconds_and_timedeltas_become_nanoseconds(value: float | timedelta, wanted: int) -> None:
    result = duration_ns("ttl", value)
    assert result == wanted
    assert type(result) is int


@given(st.integers(0, 366 * 86_400))
def test_whole_seconds_are_exact(seconds: int) -> None:
    assert duration_ns("x", seconds) == seconds * NS
    assert duration_ns("x", timedelta(seconds=seconds)) == seconds * NS


@given(st.floats(0, 366 * 86_400, allow_nan=False))
def test_a_float_is_off_by_no_more_than_its_own_precision(seconds: float) -> None:
    assert abs(duration_ns("x", seconds) - seconds * NS) <= 0.5 + math.ulp(seconds * NS)


@pytest.mark.parametrize(
    "value",
    [
        None, "5", b"5", True, False, [], {}, object(), 1j,
        math.nan, math.inf, -math.inf, -1, -1e-9, 1e308, -1e308, 367 * 86_400, timedelta(days=-1), timedelta.max,
    ],
)  # fmt: skip
def test_what_cannot_be_a_duration_is_refused_by_the_name_of_its_field(value: object) -> None:
    with pytest.raises(BadInput) as caught:
        duration_ns("renew_every", value)  # type: ignore[arg-type]  # the point of the test
    assert caught.value.field == "renew_every"
    assert caught.value.fix


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["huge", "hugely negative"])
def test_a_number_too_large_for_a_float_is_refused_like_any_other(value: int) -> None:
    with pytest.raises(BadInput):
        duration_ns("ttl", value)


@given(st.integers(0, 10), st.integers(0, 10), st.integers(-5, 15))
def test_the_limits_are_inclusive(low: int, extra: int, value: int) -> None:
    high = low + extra
    if low <= value <= high:
        assert duration_ns("x", value, low_ns=low * NS, high_ns=high * NS) == value * NS
    else:
        with pytest.raises(BadInput, match=f"give between {low} and {high} seconds"):
            duration_ns("x", value, low_ns=low * NS, high_ns=high * NS)


# Elapsed time.


@given(instants, instants)
def test_elapsed_time_is_the_most_pessimistic_of_the_three_clocks(since: Instant, now: Instant) -> None:
    assert elapsed_ns(since, now) == max(now.mono - since.mono, now.boot - since.boot, now.wall - since.wall)


def test_a_suspended_host_and_a_forward_step_count_and_a_backward_step_does_not() -> None:
    since = Instant(100, 100, 100)
    assert elapsed_ns(since, Instant(110, 160, 110)) == 60
    assert elapsed_ns(since, Instant(110, 110, 900)) == 800
    assert elapsed_ns(since, Instant(110, 110, 5)) == 10


# Names.


@pytest.mark.parametrize(
    "key", ["a", "invoice:42", "ключ", "日本語", "a b", "🔒", "x" * KEY_BYTES_MAX, "é" * (KEY_BYTES_MAX // 2)]
)
def test_a_good_name_is_returned_as_it_is(key: str) -> None:
    assert check_key("name", key) is key


@pytest.mark.parametrize(
    "key",
    [
        "", "a\nb", "a\0", "\t", "\x7f", "a\u200bb", "\u2028", "\ud800", "\ufeff", "tenant:{id}", "a{", "}b",
        "x" * (KEY_BYTES_MAX + 1), "é" * (KEY_BYTES_MAX // 2 + 1), "x" * 10_000_000, b"bytes", None, 5, ["a"],
    ],
    ids=lambda key: repr(key)[:20],
)  # fmt: skip
def test_a_bad_name_is_refused_with_a_short_text_that_names_field_and_fix(key: object) -> None:
    with pytest.raises(BadInput) as caught:
        check_key("name", key)
    assert caught.value.field == "name"
    assert caught.value.fix
    assert len(str(caught.value)) < 250
    assert str(caught.value).isprintable()


@given(st.text())
def test_any_text_is_either_a_name_or_refused_and_a_name_fits_on_every_store(text: str) -> None:
    try:
        check_key("name", text)
    except BadInput:
        return
    assert text.isprintable()
    assert 0 < len(text.encode()) <= KEY_BYTES_MAX
    assert not set("{}") & set(text)


@pytest.mark.parametrize("label", ["default", "scheduler.job", "a-b_c:d/e", "0", "straße", "x" * LABEL_CHARS_MAX])
def test_a_good_label_is_returned_as_it_is(label: str) -> None:
    assert check_label("family", label) is label


@pytest.mark.parametrize(
    "label", ["", " ", "a b", "a\n", "a,b", "a{b}", 'a"b', "x" * (LABEL_CHARS_MAX + 1), None, 3, b"a"]
)
def test_a_bad_label_is_refused(label: object) -> None:
    with pytest.raises(BadInput) as caught:
        check_label("family", label)
    assert caught.value.field == "family"


@given(st.text(max_size=200))
def test_a_label_never_needs_quoting(text: str) -> None:
    try:
        check_label("family", text)
    except BadInput:
        return
    assert not set(text) & set(" \t\n\r\"'\\,{}=")


def test_guarantees_cover_the_weaker_ones() -> None:
    weakest, middle, strongest = Guarantee
    assert strongest is Guarantee.FENCED
    assert strongest.covers(weakest)
    assert strongest.covers(middle)
    assert middle.covers(middle)
    assert not weakest.covers(middle)
    assert not middle.covers(strongest)


def test_an_owner_is_readable() -> None:
    assert str(Owner("svc", "host", 12, "ab")) == "svc@host:12/ab"
