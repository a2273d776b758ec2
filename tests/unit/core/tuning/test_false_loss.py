"""The chance of losing a lease for nothing: the attempts are the library's own, the figure is what a replay gives."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease import states as lease
from holdfast.core.lease.timing import Timing, settle
from holdfast.core.tuning.false_loss import attempts, false_loss
from holdfast.core.tuning.percentiles import of_durations
from holdfast.types import MS, NS, Instant


def lived(made: Timing, chance: random.Random, latencies: list[int]) -> bool:
    """One period of the real state table, with latencies drawn from what was seen. Whether the lease was lost."""
    state = lease.granted(Instant(0, 0, 0))
    age = made.renew_every_ns
    while age < made.loss_age_ns():
        now = Instant(age, age, age)
        allowed, took = lease.renew_timeout_ns(state, made, now), chance.choice(latencies)
        if took <= allowed:
            return False
        age += allowed
        over = Instant(age, age, age)
        state = lease.unknown(state, made, over)
        if not lease.judge(state, made, over).live:
            return True
        age += lease.renewal_in_ns(state, made, over, chance.randrange(1 << 16))
    return True


@given(ttl=st.integers(100, 60_000), parts=st.integers(3, 10))
def test_every_attempt_is_sent_and_over_before_the_loss_age(ttl: int, parts: int) -> None:
    made = settle(ttl=ttl / 1000, renew_every=ttl / 1000 / parts, failures=100)
    planned = attempts(made)
    assert planned[0][0] == made.renew_every_ns
    for sent, allowed in planned:
        assert sent < made.loss_age_ns()
        assert allowed == lease.renew_timeout_ns(lease.granted(Instant(0, 0, 0)), made, Instant(sent, sent, sent))


def test_the_failure_budget_ends_the_attempts() -> None:
    many = settle(ttl=30, renew_every=3, failures=100)
    few = settle(ttl=30, renew_every=3, failures=2)
    assert len(attempts(few)) < len(attempts(many))


@pytest.mark.requires("R112", "R117")
def test_the_figure_is_what_a_replay_of_the_state_table_gives() -> None:
    made = settle(ttl=3)
    latencies = [5 * MS] * 650 + [10 * NS] * 350
    found = false_loss(made, 0, of_durations(latencies, "renewals"))
    assert found is not None
    assert not found.bound
    chance = random.Random(7)
    rounds = 60_000
    seen = sum(lived(made, chance, latencies) for _ in range(rounds)) / rounds
    assert found.apart / 3 < seen < found.apart * 3, (found, seen)
    assert seen < found.together


def test_where_nothing_slow_was_seen_it_is_an_upper_bound_and_more_requests_make_it_smaller() -> None:
    made = settle(ttl=30)
    few, many = (false_loss(made, 0, of_durations([MS] * number, "renewals")) for number in (100, 10_000))
    assert few is not None
    assert many is not None
    assert (few.bound, few.together) == (True, 0.03)
    assert many.apart < few.apart < few.together
    assert few.per_hour_together == min(1.0, 0.03 * 360)


def test_renewals_without_an_answer_count_against_it() -> None:
    made = settle(ttl=30)
    found = false_loss(made, 0, of_durations([MS] * 900, "renewals"), unanswered=100)
    assert found is not None
    assert (found.together, found.bound) == (0.1, False)


@pytest.mark.parametrize("number", [0, 12, 99])
def test_too_few_requests_give_no_figure(number: int) -> None:
    assert false_loss(settle(ttl=30), 0, of_durations([MS] * number, "renewals")) is None
    assert false_loss(settle(ttl=30), 0, None) is None
    assert false_loss(settle(ttl=30, auto_renew=False), 0, of_durations([MS] * 500, "renewals")) is None
