"""Prefetch: workers get more jobs than slots only while all attempts of their pool are brief."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.plane.model.records import BRIEF_NS
from holdfast.plane.scheduler.prefetch import AHEAD, FRESH_NS, IN_A_ROW, TOPICS_MAX, Prefetch

NOW = 10**12


def heard(*took_ns: int | None, pool: str = "default", topic: str = "t") -> Prefetch:
    prefetch = Prefetch()
    for each in took_ns:
        prefetch.finished(pool, topic, each, NOW)
    return prefetch


def test_nothing_is_sent_ahead_before_enough_brief_attempts_were_heard_of() -> None:
    assert heard().ahead("default", 8, NOW) == 0
    assert heard(*[1] * (IN_A_ROW - 1)).ahead("default", 8, NOW) == 0
    assert heard(*[BRIEF_NS - 1] * IN_A_ROW).ahead("default", 8, NOW) == AHEAD * 8
    assert heard(*[1] * IN_A_ROW).ahead("default", 0, NOW) == 0


def test_nothing_is_sent_ahead_if_prefetch_is_switched_off() -> None:
    prefetch = Prefetch(enabled=False)
    for _ in range(IN_A_ROW):
        prefetch.finished("default", "t", 1, NOW)
    assert prefetch.ahead("default", 8, NOW) == 0


@pytest.mark.parametrize("slow", [BRIEF_NS, 10**12, None, -1])
def test_one_that_was_not_over_at_once_ends_it_until_as_many_were_again(slow: int | None) -> None:
    prefetch = heard(*[1] * 100, slow)
    assert prefetch.ahead("default", 8, NOW) == 0
    for _ in range(IN_A_ROW):
        assert prefetch.ahead("default", 8, NOW) == 0
        prefetch.finished("default", "t", 1, NOW)
    assert prefetch.ahead("default", 8, NOW) == AHEAD * 8


def test_it_ends_when_nothing_is_heard_for_a_while_and_goes_on_with_the_next_word() -> None:
    """A job may keep its slot for hours, and no report arrives before its end."""
    prefetch = heard(*[1] * IN_A_ROW)
    assert prefetch.ahead("default", 8, NOW + FRESH_NS) == AHEAD * 8
    assert prefetch.ahead("default", 8, NOW + FRESH_NS + 1) == 0
    prefetch.finished("default", "t", 1, NOW + 2 * FRESH_NS)
    assert prefetch.ahead("default", 8, NOW + 2 * FRESH_NS) == AHEAD * 8


@pytest.mark.parametrize("last", ["never heard of", "slow"])
def test_one_of_a_topic_that_is_not_known_to_be_brief_ends_it_when_it_is_sent(last: str) -> None:
    prefetch = heard(BRIEF_NS, topic="slow")
    for _ in range(IN_A_ROW):
        prefetch.finished("default", "t", 1, NOW)
    prefetch.dispatched("default", "t")
    assert prefetch.ahead("default", 8, NOW) == AHEAD * 8
    prefetch.dispatched("default", last)
    assert prefetch.ahead("default", 8, NOW) == 0


def test_what_is_brief_in_one_pool_is_not_known_to_be_in_another() -> None:
    prefetch = heard(*[1] * IN_A_ROW)
    for _ in range(IN_A_ROW):
        prefetch.finished("gpu", "other", 1, NOW)
    prefetch.dispatched("gpu", "t")
    assert (prefetch.ahead("gpu", 8, NOW), prefetch.ahead("default", 8, NOW)) == (0, AHEAD * 8)


def test_topics_are_remembered_up_to_a_number_and_those_beyond_it_are_taken_for_slow() -> None:
    prefetch = Prefetch()
    for number in range(TOPICS_MAX + 1):
        prefetch.finished("default", f"t{number}", 1, NOW)
    prefetch.dispatched("default", "t0")
    assert prefetch.ahead("default", 8, NOW) == AHEAD * 8
    prefetch.dispatched("default", f"t{TOPICS_MAX}")
    assert prefetch.ahead("default", 8, NOW) == 0


def test_pools_are_told_apart() -> None:
    prefetch = heard(*[1] * IN_A_ROW)
    assert prefetch.ahead("slow", 8, NOW) == 0
    prefetch.finished("slow", "t", None, NOW)
    assert prefetch.ahead("default", 8, NOW) == AHEAD * 8


@given(st.lists(st.one_of(st.none(), st.integers(-1, 2 * BRIEF_NS)), max_size=200))
def test_it_is_the_last_ones_in_a_row_that_count(said: list[int | None]) -> None:
    brief = [each is not None and 0 <= each < BRIEF_NS for each in said]
    expected = len(said) >= IN_A_ROW and all(brief[-IN_A_ROW:])
    assert (heard(*said).ahead("default", 1, NOW) > 0) == expected
