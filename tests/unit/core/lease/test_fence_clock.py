"""How stores count fences: they rise, no failover gives one out twice, and the count comes back to the clock."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease.fencing import STEP_MAX_US, Count, apart

US = 1_000_000
NOW = 1_790_000_000 * US
CHANCE = 2**20

clocks = st.integers(0, 4 * NOW)
ahead = st.builds(
    lambda clock, by: Count(clock + by, clock), st.integers(1, 2 * NOW), st.integers(0, 100 * STEP_MAX_US)
)
gaps = st.lists(st.integers(2, 60 * US), min_size=1, max_size=30)  # no server gives out two fences in a microsecond
secrets = st.text("0123456789abcdef", min_size=32, max_size=32)


def played(count: Count, times: list[int], secret: str = "s") -> list[Count]:
    return list(accumulate(times, lambda last, now: last.next(now, secret), initial=count))


@given(st.lists(clocks, max_size=50), secrets)
def test_fences_rise_whatever_the_clock_says_and_are_never_below_it(times: list[int], secret: str) -> None:
    counts = played(Count(), times, secret)
    assert all(first.fence < second.fence for first, second in pairwise(counts))
    assert all(count.fence >= count.clock for count in counts)
    assert [count.clock for count in counts[1:]] == times


@given(st.integers(1, 2 * NOW), gaps)
def test_a_count_that_is_not_ahead_is_the_clock(start: int, gaps: list[int]) -> None:
    times = list(accumulate(gaps, initial=start))
    assert [count.fence for count in played(Count(), times)[1:]] == times


@given(ahead, gaps, st.integers(2, 60 * US), secrets, secrets)
def test_a_replica_that_missed_grants_is_above_all_of_them_however_far_ahead_the_count_is(
    known: Count, gaps: list[int], later: int, lost: str, new: str
) -> None:
    times = list(accumulate(gaps, initial=known.clock))[1:]
    missed = played(known, times, lost)[-1]
    assert known.next(times[-1] + later, new).fence > missed.fence


@given(ahead, st.integers(1, STEP_MAX_US))
def test_two_sides_whose_clock_was_set_back_go_on_from_one_count_with_different_fences(known: Count, back: int) -> None:
    """The worst case: what both know of is later than both clocks, which even tell the same microsecond."""
    now = known.clock - back
    ada, ben = known.next(now, "ada"), known.next(now, "ben")
    assert len({known.fence, ada.fence, ben.fence}) == 3
    assert max(ada.fence, ben.fence) <= known.fence + CHANCE


@pytest.mark.parametrize("back", [True, False], ids=["set back while they are parted", "set back before"])
def test_the_fences_of_two_sides_that_are_parted_while_the_count_is_ahead_are_all_different(back: bool) -> None:
    """Two hundred splits, each with forty grants. Counted one by one, all would be the same."""
    chance = random.Random(7)
    for split in range(200):
        known = Count(NOW + chance.randrange(STEP_MAX_US), NOW + (US if back else -US))
        sides = []
        for side in range(2):
            times = sorted(NOW + chance.randrange(20 * US) - (20 * US if back else 0) for _ in range(20))
            sides.append({count.fence for count in played(known, times, f"{split}/{side}")[1:]})
        assert sides[0].isdisjoint(sides[1]), f"split {split}"


def test_the_chance_of_a_secret_is_spread_over_a_second() -> None:
    known = Count(NOW + US, NOW)
    steps = [known.next(NOW - 1, f"{number:032x}").fence - known.fence for number in range(2000)]
    assert all(1 <= step <= CHANCE for step in steps)
    assert len(set(steps)) >= 1990
    assert max(steps) - min(steps) > 0.99 * CHANCE


@given(st.integers(1, 24 * STEP_MAX_US), gaps)
def test_a_count_that_is_ahead_is_the_clock_again_after_four_times_that(by: int, gaps: list[int]) -> None:
    known = Count(NOW + by, NOW)
    times = list(accumulate(gaps, initial=NOW))[1:]
    last = played(known, times)[-1]
    end = max(NOW + 4 * by + 4 * len(gaps), times[-1] + 2)
    missed_at_once = min((end - times[-1]) * 3 // 4, STEP_MAX_US)
    assert last.next(end, "s").fence == max(end, last.fence + missed_at_once) == end


@given(st.integers(0, NOW), secrets)
def test_a_clock_that_is_set_right_after_years_takes_the_count_ahead_by_an_hour_at_most(
    wrong: int, secret: str
) -> None:
    """A board without a battery counts from 1970, until its clock is set."""
    known = Count(NOW, NOW).next(wrong, secret)
    right = known.next(NOW + US, secret)
    assert right.fence - (NOW + US) <= STEP_MAX_US + CHANCE


@given(
    st.integers(0, 10**16),
    st.integers(0, 10**16),
    st.lists(st.integers(0, 10**7), min_size=1, max_size=20),
    st.integers(0, 10**10),
)
def test_two_fences_show_that_they_are_far_apart_despite_grants_between_them(
    fence: int, clock: int, steps: list[int], ns: int
) -> None:
    """However far the count is ahead of the clock, as long as that does not go back."""
    first = last = Count(fence, clock).next(clock, "first")
    for number, step in enumerate(steps):
        last = last.next(last.clock + step, str(number))
    if sum(steps) * 1000 * 3 > ns * 4 + 4000 * len(steps):  # each step may be rounded down by a microsecond
        assert apart(first.fence, last.fence, ns)


def test_two_fences_of_a_count_that_follows_its_clock_are_as_far_apart_as_they_were_given_out() -> None:
    first = Count().next(1_700_000_000_000_000, "a")
    for passed_us, far in ((500_000, False), (500_001, True)):
        assert apart(first.fence, first.next(first.clock + passed_us, "b").fence, 500_000_000) is far
    assert not apart(first.fence, first.fence, 0)
    assert not apart(first.fence, 7, 0)
