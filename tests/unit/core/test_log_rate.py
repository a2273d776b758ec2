"""How many lines of one kind are written: the first ones, then fewer and fewer, and none is lost count of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.log_rate import LINES_MAX, LONGEST_NS, WINDOW_NS, LogRate
from holdfast.types import NS


def test_the_first_lines_are_written_and_the_next_window_says_how_many_were_not() -> None:
    rate = LogRate()
    assert [rate.enter(number).written for number in range(100)] == [True] * LINES_MAX + [False] * (100 - LINES_MAX)
    assert rate.left_out == 95
    assert rate.enter(WINDOW_NS) == (True, 95, False)
    assert rate.left_out == 0


def test_an_outage_of_an_hour_costs_a_few_dozen_lines_and_not_thousands() -> None:
    rate = LogRate(lines=1)
    written = sum(rate.enter(tenth * NS // 10).written for tenth in range(36_000))
    assert 15 <= written <= 20
    many = LogRate(lines=50)
    assert sum(many.enter(tenth * NS // 10).written for tenth in range(36_000)) <= 20 * 50


def test_after_a_quiet_window_all_is_as_at_the_start() -> None:
    rate = LogRate(lines=1)
    for second in range(1000):
        rate.enter(second * NS)
    later = 1000 * NS + 2 * LONGEST_NS
    assert rate.enter(later).written
    assert not rate.enter(later + WINDOW_NS - 1).written
    assert rate.enter(later + WINDOW_NS) == (True, 1, False)


def test_what_comes_seldom_is_always_written() -> None:
    rate = LogRate()
    assert all(rate.enter(number * WINDOW_NS // LINES_MAX) == (True, 0, False) for number in range(1000))


def test_a_traceback_is_written_once_in_a_window() -> None:
    rate = LogRate()
    assert [rate.enter(number, traced=True).traced for number in range(3)] == [True, False, False]
    assert rate.enter(WINDOW_NS, traced=True).traced


def test_a_clock_that_goes_back_begins_a_new_window() -> None:
    rate = LogRate(lines=1)
    assert rate.enter(1000 * NS).written
    assert not rate.enter(1001 * NS).written
    assert rate.enter(5 * NS) == (True, 1, False)


@given(st.lists(st.integers(0, 40 * NS), max_size=200), st.integers(1, 5))
def test_every_line_is_written_or_told_of_or_still_counted(steps: list[int], lines: int) -> None:
    rate, now, entries = LogRate(lines), 0, []
    for step in steps:
        now += step
        entries.append(rate.enter(now))
    written = sum(each.written for each in entries)
    assert written + sum(each.left_out for each in entries) + rate.left_out == len(steps)
    assert written <= lines * (now // WINDOW_NS + 1)
