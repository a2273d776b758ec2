"""Every delay is bounded, whatever the attempt, the previous delay and the draw."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import backoff
from holdfast.core.backoff import Backoff, Exponential, Grpc, Jittered, check_against, for_ttl
from holdfast.core.lease.timing import TTL_MAX_NS, TTL_MIN_NS
from holdfast.errors import BadInput
from holdfast.types import MS, NS

seconds = st.floats(1e-6, 3600)


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    low, high = sorted((draw(seconds), draw(seconds)))
    shape = draw(st.sampled_from(["fixed", "jittered", "exponential", "decorrelated", "grpc"]))
    if shape == "fixed":
        return backoff.fixed(low)
    if shape == "jittered":
        return backoff.jittered(high, low * 0.99)
    if shape == "exponential":
        return backoff.exponential(low, high, draw(st.floats(1.01, 10)))
    if shape == "decorrelated":
        return backoff.decorrelated(low, high)
    return backoff.grpc(low, high, draw(st.floats(1.01, 10)), draw(st.floats(0, 0.99)))


def lowest(_n: int) -> int:
    return 0


def highest(n: int) -> int:
    return n - 1


@given(backoffs(), st.integers(0, 10**9), st.data())
@pytest.mark.requires("R158", "R163", "R164")
def test_a_delay_stays_between_its_shortest_and_its_longest(shape: Backoff, attempt: int, data: st.DataObject) -> None:
    previous = data.draw(st.integers(0, shape.longest_ns()))
    for draw in (lowest, highest, random.Random(attempt).randrange):
        delay = shape.delay_ns(attempt, previous, draw)
        assert isinstance(delay, int)
        assert 0 <= shape.shortest_ns() <= delay <= shape.longest_ns()


@given(backoffs(), st.integers(0, 100))
def test_a_description_keeps_no_state_and_can_be_shared(shape: Backoff, attempt: int) -> None:
    first = shape.delay_ns(attempt, MS, random.Random(7).randrange)
    shape.delay_ns(attempt + 1, 5 * MS, random.Random(8).randrange)
    assert shape.delay_ns(attempt, MS, random.Random(7).randrange) == first
    assert hash(shape) == hash(shape)


@pytest.mark.requires("R149", "R159")
def test_a_fixed_delay_is_always_the_same() -> None:
    assert {backoff.fixed(0.5).delay_ns(n, n, highest) for n in range(100)} == {500 * MS}


@pytest.mark.requires("R152", "R164", "R166")
def test_bounded_jitter_is_500_ms_with_an_offset_from_minus_200_up_to_but_not_including_200() -> None:
    shape = backoff.jittered()
    assert shape == Jittered(500 * MS, 200 * MS)
    assert shape.delay_ns(0, 0, lowest) == 300 * MS
    assert shape.delay_ns(0, 0, highest) == 700 * MS - 1
    assert shape.delay_ns(0, 0, lambda n: n // 2) == 500 * MS


def test_a_spread_of_nothing_is_a_fixed_delay_and_draws_nothing() -> None:
    def no_draw(_n: int) -> int:
        raise AssertionError("drawn")

    assert backoff.jittered(0.5, 0).delay_ns(3, 0, no_draw) == 500 * MS


@pytest.mark.requires("R161")
def test_full_jitter_doubles_its_ceiling_up_to_the_cap_and_begins_at_zero() -> None:
    shape = backoff.exponential(0.1, 1.0)
    assert [shape.delay_ns(n, 0, highest) // MS for n in range(6)] == [100, 200, 400, 800, 1000, 1000]
    assert {shape.delay_ns(n, 0, lowest) for n in range(6)} == {0}


def test_decorrelated_jitter_grows_from_the_previous_delay() -> None:
    shape = backoff.decorrelated(0.1, 1.0)
    assert shape.delay_ns(0, 0, highest) == 100 * MS
    assert shape.delay_ns(1, 200 * MS, highest) == 600 * MS
    assert shape.delay_ns(2, 600 * MS, highest) == 1000 * MS
    assert shape.delay_ns(2, 600 * MS, lowest) == 100 * MS


def test_the_grpc_shape_grows_by_its_multiplier_with_twenty_percent_either_way() -> None:
    shape = backoff.grpc()
    assert shape == Grpc(NS, 120 * NS, 1.6, 0.2)
    assert shape.delay_ns(0, 0, lowest) == 800 * MS
    assert shape.delay_ns(0, 0, highest) == 1200 * MS
    assert shape.delay_ns(1, 0, lowest) == 1280 * MS
    assert shape.delay_ns(50, 0, highest) == 120 * NS


@given(st.integers(TTL_MIN_NS, TTL_MAX_NS))
@pytest.mark.requires("R158")
def test_the_default_for_a_lock_fits_its_ttl(ttl_ns: int) -> None:
    shape = for_ttl(ttl_ns)
    assert isinstance(shape, Exponential)
    assert 0 < shape.base_ns <= shape.cap_ns <= min(NS, ttl_ns // 3)
    check_against(shape, ttl_ns)


@pytest.mark.requires("R158")
def test_jitter_above_the_safety_budget_of_the_ttl_is_refused_with_the_sum() -> None:
    check_against(backoff.jittered(0.5, 0.2), int(1.2 * NS))
    with pytest.raises(BadInput, match=r"ttl / 3 = 0\.3 s"):
        check_against(backoff.jittered(0.5, 0.2), int(0.9 * NS))


@pytest.mark.requires("R158")
def test_a_delay_that_is_not_above_the_median_hold_is_refused() -> None:
    shape = backoff.fixed(0.5)
    check_against(shape, 30 * NS, 499 * MS)
    for median_ns in (500 * MS, 2 * NS):
        with pytest.raises(BadInput, match="median hold"):
            check_against(shape, 30 * NS, median_ns)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: backoff.fixed(0), "delay"),
        (lambda: backoff.fixed(-1), "delay"),
        (lambda: backoff.jittered(0.2, 0.2), "spread"),
        (lambda: backoff.jittered(0.2, 0.3), "spread"),
        (lambda: backoff.jittered(0.2, -0.1), "spread"),
        (lambda: backoff.exponential(0, 1), "base"),
        (lambda: backoff.exponential(1, 0.5), "cap"),
        (lambda: backoff.exponential(1, 2, factor=1.0), "factor"),
        (lambda: backoff.exponential(1, 2, factor=float("nan")), "factor"),
        (lambda: backoff.decorrelated(1, 0.5), "cap"),
        (lambda: backoff.grpc(1, 0.5), "cap"),
        (lambda: backoff.grpc(multiplier=0.5), "multiplier"),
        (lambda: backoff.grpc(jitter=1.0), "jitter"),
        (lambda: backoff.grpc(jitter=-0.1), "jitter"),
    ],
)
def test_shapes_that_make_no_sense_are_refused(make: object, field: str) -> None:
    assert callable(make)
    with pytest.raises(BadInput) as caught:
        make()
    assert caught.value.field == field
