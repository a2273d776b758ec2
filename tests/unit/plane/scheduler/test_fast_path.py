"""When the short way is tried: until it was in vain, and then less and less often until it works again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.plane.scheduler.fast_path import FIRST_NS, LONGEST_NS, POOLS_MAX, Shortcut


def test_it_is_tried_until_it_was_in_vain_and_again_after_a_while() -> None:
    shortcut = Shortcut()
    assert shortcut.open("p", 0)
    shortcut.in_vain("p", 100)
    assert not shortcut.open("p", 100 + FIRST_NS - 1)
    assert shortcut.open("p", 100 + FIRST_NS)
    assert shortcut.open("q", 100)


def test_each_try_in_vain_doubles_the_while_up_to_a_second_and_one_that_works_ends_it() -> None:
    shortcut, now, pauses = Shortcut(), 0, []
    for _ in range(12):
        shortcut.in_vain("p", now)
        low, high = now, now + 2 * LONGEST_NS
        while high - low > 1:  # where it opens
            middle = (low + high) // 2
            low, high = (low, middle) if shortcut.open("p", middle) else (middle, high)
        pauses.append(high - now)
        now = high
    assert pauses[:3] == [FIRST_NS, 2 * FIRST_NS, 4 * FIRST_NS]
    assert pauses[-1] == LONGEST_NS
    shortcut.worked("p")
    assert shortcut.open("p", now)
    shortcut.in_vain("p", now)
    assert shortcut.open("p", now + FIRST_NS)


def test_several_that_were_under_way_together_are_one_finding() -> None:
    shortcut = Shortcut()
    for _ in range(50):
        shortcut.in_vain("p", 7)
    assert shortcut.open("p", 7 + FIRST_NS)


@given(st.lists(st.integers(0, 3 * POOLS_MAX), max_size=50))
def test_no_more_pools_are_remembered_than_there_is_room_for(names: list[int]) -> None:
    shortcut = Shortcut()
    for name in range(POOLS_MAX):
        shortcut.in_vain(f"p{name}", 0)
    for name in names:
        shortcut.in_vain(f"p{name}", 0)
        assert not shortcut.open(f"p{name}", 0)
    assert len(shortcut._vain) <= POOLS_MAX
