"""When a loop ticks: on a grid, jittered, never catching up; and which settings would make a replay come too late."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.plane.jobs.rules import StateLimits
from holdfast.plane.loops.cadence import Cadence, replay_problems
from holdfast.types import NS

INTERVALS = st.integers(min_value=25_000_000, max_value=3_600 * NS)


def least(_: int) -> int:
    return 0


def most(n: int) -> int:
    return n - 1


@given(INTERVALS, st.integers(0, 2**32))
def test_ticks_stay_on_the_grid_however_often_they_are_moved(interval_ns: int, seed: int) -> None:
    cadence, draw = Cadence(interval_ns), random.Random(seed).randrange
    now, number = 5 * NS, 0
    began = now
    for expected in range(1, 50):
        due = cadence.next_due(began, number, now, draw)
        assert due.number == expected
        assert due.missed == 0
        assert 0 <= due.at_ns - (began + expected * interval_ns) <= cadence.spread_ns
        assert due.at_ns - now <= cadence.longest_wait_ns
        now, number = due.at_ns, due.number


@given(INTERVALS, st.integers(0, 500 * NS), st.integers(0, 2**32))
def test_a_tick_that_overran_is_followed_without_catching_up(interval_ns: int, took_ns: int, seed: int) -> None:
    cadence, draw = Cadence(interval_ns), random.Random(seed).randrange
    due = cadence.next_due(0, 0, took_ns, draw)
    assert due.at_ns >= took_ns
    assert due.at_ns - took_ns <= cadence.longest_wait_ns
    assert due.missed == due.number - 1
    assert due.missed <= took_ns // interval_ns
    after = cadence.next_due(0, due.number, due.at_ns, draw)
    assert after.number > due.number


def test_a_tick_that_takes_nearly_an_interval_misses_nothing() -> None:
    cadence = Cadence(10 * NS)
    assert cadence.next_due(0, 0, 10_500_000_000, least) == (1, 10_500_000_000, 0)
    assert cadence.next_due(0, 0, 35 * NS, least) == (4, 40 * NS, 3)


@given(INTERVALS)
def test_those_who_do_not_lead_try_at_least_once_in_an_interval(interval_ns: int) -> None:
    cadence = Cadence(interval_ns)
    assert cadence.retry_ns(least) == interval_ns
    assert cadence.retry_ns(most) == interval_ns - cadence.spread_ns
    assert (cadence.phase_ns(least), cadence.phase_ns(most)) == (0, interval_ns - 1)


@given(INTERVALS, st.integers(0, 100 * NS))
def test_whoever_had_the_window_comes_after_all_others(interval_ns: int, left_ns: int) -> None:
    cadence = Cadence(interval_ns)
    others = cadence.after_window_ns(left_ns, most, own=False)
    assert left_ns <= others <= cadence.after_window_ns(left_ns, least, own=True)
    assert cadence.after_window_ns(left_ns, most, own=True) <= left_ns + cadence.spread_ns


def test_the_defaults_replay_before_they_time_out() -> None:
    limits = StateLimits()
    assert replay_problems(limits, 30 * NS, limits.dispatched_ns // 2) == []


@pytest.mark.parametrize(
    ("limits", "redispatch_s", "names"),
    [
        (replace(StateLimits(), scheduled_ns=30 * NS), 150, "SCHEDULED is timed out after 30 s but replayed only"),
        (replace(StateLimits(), scheduled_ns=60 * NS), 150, "SCHEDULED is timed out after 60 s, but may be replayed"),
        (replace(StateLimits(), pending_ns=20 * NS), 150, "PENDING is timed out after 20 s but replayed only"),
        (replace(StateLimits(), retrying_ns=40 * NS), 150, "RETRYING is timed out after 40 s, but may be replayed"),
        (StateLimits(), 290, "DISPATCHED is timed out after 300 s, but may be replayed only after 323 s"),
        (StateLimits(), 300, "DISPATCHED is timed out after 300 s, but replayed only after 300 s"),
        (replace(StateLimits(), running_ns=0), 150, "the limit of RUNNING is not above zero"),
    ],
)
def test_a_replay_that_would_come_after_the_time_limit_is_a_problem(
    limits: StateLimits, redispatch_s: int, names: str
) -> None:
    (problem,) = replay_problems(limits, 30 * NS, redispatch_s * NS)
    assert problem.startswith(names)
