"""When the short way is tried: until it was in vain, and then less and less often until it works again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.plane.scheduler.fast_path import FIRST_NS, LONGEST_NS, POOLS_MAX, FastPathState


def test_it_is_tried_until_it_was_in_vain_and_again_after_a_while() -> None:
    shortcut = FastPathState()
    assert shortcut.allows("p", 0)
    shortcut.failed("p", 100)
    assert not shortcut.allows("p", 100 + FIRST_NS - 1)
    assert shortcut.allows("p", 100 + FIRST_NS)
    assert shortcut.allows("q", 100)


def test_each_try_in_vain_doubles_the_while_up_to_a_second_and_one_that_works_ends_it() -> None:
    shortcut, now, pauses = FastPathState(), 0, []
    for _ in range(12):
        shortcut.failed("p", now)
        low, high = now, now + 2 * LONGEST_NS
        while high - low > 1:  # where it opens
            middle = (low + high) // 2
            low, high = (low, middle) if shortcut.allows("p", middle) else (middle, high)
        pauses.append(high - now)
        now = high
    assert pauses[:3] == [FIRST_NS, 2 * FIRST_NS, 4 * FIRST_NS]
    assert pauses[-1] == LONGEST_NS
    shortcut.succeeded("p")
    assert shortcut.allows("p", now)
    shortcut.failed("p", now)
    assert shortcut.allows("p", now + FIRST_NS)


def test_several_that_were_under_way_together_are_one_finding() -> None:
    shortcut = FastPathState()
    for _ in range(50):
        shortcut.failed("p", 7)
    assert shortcut.allows("p", 7 + FIRST_NS)


@given(st.lists(st.integers(0, 3 * POOLS_MAX), max_size=50))
def test_no_more_pools_are_remembered_than_there_is_room_for(names: list[int]) -> None:
    shortcut = FastPathState()
    for name in range(POOLS_MAX):
        shortcut.failed(f"p{name}", 0)
    for name in names:
        shortcut.failed(f"p{name}", 0)
        assert not shortcut.allows(f"p{name}", 0)
    assert len(shortcut._pauses) <= POOLS_MAX
