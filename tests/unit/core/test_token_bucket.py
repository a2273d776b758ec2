"""How often a caller may ask, decided on numbers alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.token_bucket import TokenBucket

TEN_A_SECOND = TokenBucket(every_ns=100, burst=5)


def test_a_burst_is_allowed_and_then_one_for_each_period() -> None:
    full, allowed = None, []
    for now in (0, 0, 0, 0, 0, 0, 50, 100, 100, 200):
        full, wait = TEN_A_SECOND.decide(full, now)
        allowed.append(wait)
    assert allowed == [0, 0, 0, 0, 0, 100, 50, 0, 100, 0]


def test_a_refused_request_does_not_count_against_the_limit() -> None:
    full, _ = TEN_A_SECOND.decide(500, 0)
    for _ in range(100):
        full, wait = TEN_A_SECOND.decide(full, 0)
        assert wait == 100
    assert TEN_A_SECOND.decide(full, 100).allowed


def test_after_a_quiet_time_it_is_as_if_nothing_were_known() -> None:
    assert TEN_A_SECOND.decide(500, 10_000) == TEN_A_SECOND.decide(None, 10_000)


@given(st.lists(st.integers(0, 300), max_size=200), st.integers(1, 10), st.integers(1, 200))
def test_never_more_than_the_burst_and_the_rate_in_any_window(gaps: list[int], burst: int, every: int) -> None:
    ration, full, now = TokenBucket(every, burst), None, 0
    times: list[int] = []
    for gap in gaps:
        now += gap
        full, wait = ration.decide(full, now)
        if not wait:
            times.append(now)
        else:
            assert ration.decide(full, now + wait).allowed
    for first, begin in enumerate(times):
        for last, end in enumerate(times[first:], first):
            assert last - first + 1 <= burst + (end - begin) // every
