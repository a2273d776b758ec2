"""When workers are sent more than they can run: only while all that is heard of their pool is over at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.pace import AHEAD, BRIEF_NS, IN_A_ROW, Pace


def heard(*took_ns: int | None, pool: str = "default") -> Pace:
    pace = Pace()
    for each in took_ns:
        pace.heard(pool, each)
    return pace


def test_nothing_is_sent_ahead_before_enough_brief_attempts_were_heard_of() -> None:
    assert heard().ahead("default", 8) == 0
    assert heard(*[1] * (IN_A_ROW - 1)).ahead("default", 8) == 0
    assert heard(*[BRIEF_NS - 1] * IN_A_ROW).ahead("default", 8) == AHEAD * 8
    assert heard(*[1] * IN_A_ROW).ahead("default", 0) == 0


@pytest.mark.parametrize("slow", [BRIEF_NS, 10**12, None, -1])
def test_one_that_was_not_over_at_once_ends_it_until_as_many_were_again(slow: int | None) -> None:
    pace = heard(*[1] * 100, slow)
    assert pace.ahead("default", 8) == 0
    for _ in range(IN_A_ROW):
        assert pace.ahead("default", 8) == 0
        pace.heard("default", 1)
    assert pace.ahead("default", 8) == AHEAD * 8


def test_pools_are_told_apart() -> None:
    pace = heard(*[1] * IN_A_ROW)
    assert pace.ahead("slow", 8) == 0
    pace.heard("slow", None)
    assert pace.ahead("default", 8) == AHEAD * 8


@given(st.lists(st.one_of(st.none(), st.integers(-1, 2 * BRIEF_NS)), max_size=200))
def test_it_is_the_last_ones_in_a_row_that_count(said: list[int | None]) -> None:
    brief = [each is not None and 0 <= each < BRIEF_NS for each in said]
    expected = len(said) >= IN_A_ROW and all(brief[-IN_A_ROW:])
    assert (heard(*said).ahead("default", 1) > 0) == expected
