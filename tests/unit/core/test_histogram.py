"""Histograms: everything observed is in one bucket, sums are exact, and a quantile is off by one bucket at the most."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.histogram import LADDER_NS, NOTHING, Distribution, Histogram
from holdfast.types import NS

DURATIONS = st.lists(st.integers(0, 2 * LADDER_NS[-1]) | st.sampled_from(LADDER_NS), max_size=60)


def test_the_ladder_rises_from_a_millisecond_to_an_hour_and_passes_the_limits_that_locks_are_waited_for() -> None:
    assert list(LADDER_NS) == sorted(set(LADDER_NS))
    assert (LADDER_NS[0], LADDER_NS[-1]) == (NS // 1000, 3600 * NS)
    for limit_s in (2, 30, 60):  # of a job lock's wait, and of the usual leases
        assert limit_s * NS in LADDER_NS
        assert any(bound > limit_s * NS for bound in LADDER_NS)


@given(DURATIONS)
def test_each_is_in_the_first_bucket_whose_bound_it_does_not_exceed(durations: list[int]) -> None:
    found = Histogram.of(durations)
    wanted = [0] * (len(LADDER_NS) + 1)
    for each in durations:
        wanted[bisect_left(LADDER_NS, each)] += 1
    assert found.counts == tuple(wanted)
    assert (found.number, found.total_ns) == (len(durations), sum(durations))


@given(DURATIONS, DURATIONS)
def test_two_together_are_what_was_observed_in_either(one: list[int], other: list[int]) -> None:
    assert Histogram.of(one).plus(Histogram.of(other)) == Histogram.of(one + other)
    assert Histogram.of(one).plus(NOTHING) == Histogram.of(one)


@given(DURATIONS, st.floats(0.001, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(durations: list[int], share: float) -> None:
    found = Histogram.of(durations).quantile_ns(share)
    if not durations:
        assert found is None
        return
    assert found is not None
    true = sorted(durations)[max(0, math.ceil(share * len(durations) - 1e-9) - 1)]
    place = bisect_left(LADDER_NS, true)
    if place == len(LADDER_NS):
        assert found == LADDER_NS[-1], "beyond the ladder only its end is known"
        return
    assert (LADDER_NS[place - 1] if place else 0) <= found <= LADDER_NS[place]


@given(DURATIONS)
def test_quantiles_never_fall(durations: list[int]) -> None:
    found = Histogram.of(durations)
    quantiles = [found.quantile_ns(share / 20) or 0 for share in range(1, 21)]
    assert quantiles == sorted(quantiles)


def test_concurrent_observations_lose_no_counts() -> None:
    made, threads = Distribution(), 4

    def observe() -> None:
        for _ in range(5_000):
            made.observe(3 * NS)

    crowd = [threading.Thread(target=observe) for _ in range(threads)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join()
    assert made.read().number == threads * 5_000
    assert made.read().quantile_ns(0.5) == pytest.approx(2.5 * NS)
