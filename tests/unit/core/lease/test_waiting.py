"""How a waiter spends the time until its next attempt, and the tail of renewal latency."""

from __future__ import annotations

import random
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.backoff import fixed, for_ttl
from holdfast.core.lease.latency import WINDOW, Tail
from holdfast.core.lease.timing import TTL_MAX_NS, TTL_MIN_NS
from holdfast.core.lease.waiting import EXPIRY_SPREAD_NS, Waiter, pause
from holdfast.types import MS

ttls = st.integers(TTL_MIN_NS, TTL_MAX_NS)
lefts = st.none() | st.integers(0, 10**12)


@given(ttls, st.integers(0, 1000), lefts, lefts, st.booleans(), st.integers())
def test_no_waiter_sleeps_past_the_holders_expiry_or_its_own_deadline(
    ttl_ns: int, attempt: int, holder_ns: int | None, left_ns: int | None, listening: bool, seed: int
) -> None:
    backoff = for_ttl(ttl_ns)
    waiter, asleep = pause(Waiter(attempt, 0), backoff, holder_ns, left_ns, listening, random.Random(seed).randrange)
    assert waiter.attempt == attempt + 1
    assert asleep >= 0
    if left_ns is not None:
        assert asleep <= left_ns
    if holder_ns is not None:
        assert asleep <= holder_ns + MS + EXPIRY_SPREAD_NS or asleep <= backoff.longest_ns()
        assert asleep <= max(holder_ns + MS + EXPIRY_SPREAD_NS, 0)
    else:
        assert asleep <= backoff.longest_ns()


@given(ttls, st.integers())
def test_who_listens_polls_at_the_slow_end_from_the_start(ttl_ns: int, seed: int) -> None:
    backoff = for_ttl(ttl_ns)
    _, asleep = pause(Waiter(), backoff, None, None, True, random.Random(seed).randrange)
    assert backoff.longest_ns() // 2 - 1 <= asleep <= backoff.longest_ns()


@given(lefts, st.booleans(), st.integers())
def test_a_fixed_delay_is_exact_unless_the_holder_or_the_waiter_ends_before(
    holder_ns: int | None, listening: bool, seed: int
) -> None:
    _, asleep = pause(Waiter(), fixed(0.025), holder_ns, None, listening, random.Random(seed).randrange)
    assert asleep <= 25 * MS
    if holder_ns is None or holder_ns >= 25 * MS:
        assert asleep == 25 * MS


def test_those_who_wake_at_the_holders_end_are_spread() -> None:
    backoff = for_ttl(TTL_MAX_NS)
    draw = random.Random(1).randrange
    moments = {pause(Waiter(9), backoff, 100 * MS, None, True, draw)[1] for _ in range(50)}
    assert len(moments) > 40
    assert all(101 * MS <= each < 101 * MS + EXPIRY_SPREAD_NS for each in moments)


@given(st.lists(st.integers(0, 10**9), max_size=3 * WINDOW))
def test_the_tail_is_the_slowest_of_at_least_the_last_window_and_forgets_after_two(samples: list[int]) -> None:
    tail = Tail()
    recent: deque[int] = deque(maxlen=2 * WINDOW)
    for sample in samples:
        tail.observe(sample)
        recent.append(sample)
        assert max(list(recent)[-WINDOW:]) <= tail.value_ns <= max(recent)
    assert samples or tail.value_ns == 0
