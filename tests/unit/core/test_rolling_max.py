"""The longest since any moment, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.rolling_max import ENTRIES_MAX, RollingMax


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50)), max_size=40), st.integers(0, 120))
def test_it_is_what_looking_at_all_of_them_would_say(steps: list[tuple[int, int]], since: int) -> None:
    longest, noted, now = RollingMax(), [], 0
    for step, took in steps:
        now += step
        longest.note(now, took)
        noted.append((now, took))
    assert longest.since(since) == max((took for over, took in noted if over > since), default=0)


def test_what_is_forgotten_is_the_oldest() -> None:
    longest = RollingMax()
    for number in range(10 * ENTRIES_MAX):
        longest.note(number, 10 * ENTRIES_MAX - number)
    assert longest.since(-1) == ENTRIES_MAX
    assert longest.since(10 * ENTRIES_MAX - 2) == 1
