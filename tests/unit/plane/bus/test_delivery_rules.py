"""The outcome of a message: only what was handled is acknowledged, delays pass unchanged, and everything ends."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.backoff import Fixed
from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import AcquireTimeout, BackendError, LockBusy, Misconfigured, RetryLater, Timeout, Unavailable
from holdfast.plane.bus.delivery_rules import (
    LOST_MAX,
    UNREADABLE_MAX,
    Ack,
    DeadLetterCode,
    DeadLetterDecision,
    DeliveryEnd,
    DeliveryState,
    Kind,
    Limits,
    Nack,
    before,
    decide,
    end_of,
    given_up,
    lost_runs,
)
from holdfast.types import MS, NS

LIMITS = Limits(max_failures=3, max_age_ns=100 * NS, backoff=Fixed(7 * MS))
YOUNG = DeliveryState(deliveries=1, failures=0, age_ns=NS)

standings = st.builds(
    DeliveryState,
    deliveries=st.integers(1, 10_000),
    failures=st.integers(0, 20),
    age_ns=st.integers(0, 300 * NS),
    lost=st.integers(0, 20),
)
ends = st.builds(DeliveryEnd, st.sampled_from(list(Kind)), st.none() | st.integers(0, 10**18), st.text(max_size=5))


def low(n: int) -> int:
    return 0


def verdict(error: Exception | None, standing: DeliveryState = YOUNG) -> object:
    return decide(end_of(error), standing, LIMITS, low)


def because(delay: float, cause: BaseException | str) -> RetryLater:
    return RetryLater(delay, cause)


@given(ends, standings)
def test_only_what_was_handled_is_acknowledged(end: DeliveryEnd, standing: DeliveryState) -> None:
    assert isinstance(decide(end, standing, LIMITS, low), Ack) == (end.kind is Kind.HANDLED)


@pytest.mark.requires("R148", "R156")
@given(st.integers(0, 86_400 * NS), st.sampled_from([LockBusy("x"), Unavailable("x"), "not yet"]))
def test_a_delay_passes_through_to_the_nanosecond(delay_ns: int, cause: BaseException | str) -> None:
    given_back = verdict(because(delay_ns / NS, cause))

    assert isinstance(given_back, Nack)
    assert given_back.delay_ns == delay_ns


@pytest.mark.requires("R149")
def test_busy_is_500_ms_and_store_trouble_1_s_without_jitter() -> None:
    delays = RetryDelays()

    for draw in (low, lambda n: n - 1):
        assert verdict(delays.later(LockBusy("b"), draw)) == Nack(500 * MS, counts=False)
        assert verdict(delays.later(Unavailable("u"), draw)) == Nack(NS, counts=False)


@pytest.mark.requires("R165", "R166")
@given(st.integers())
def test_jitter_that_was_switched_on_passes_through_and_stays_retryable(seed: int) -> None:
    delays = RetryDelays().with_jitter()
    drawn = Random(seed).randrange

    error = delays.later(LockBusy("b"), drawn)
    expected = delays.busy.delay_ns(0, 0, Random(seed).randrange)

    assert 300 * MS <= expected < 700 * MS
    assert verdict(error) == Nack(expected, counts=False)
    assert verdict(delays.without_jitter().later(LockBusy("b"), drawn)) == Nack(500 * MS, counts=False)


@pytest.mark.parametrize(
    "cause", [LockBusy("b"), AcquireTimeout("b"), Unavailable("u"), Timeout("t"), Misconfigured("m")]
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_contention_and_store_trouble_never_use_up_the_budget(cause: LockBusy | BackendError, wrapped: bool) -> None:
    error: Exception = because(0.1, cause) if wrapped else cause
    for deliveries in (1, 10, 10_000):
        found = verdict(error, DeliveryState(deliveries, LIMITS.max_failures - 1, LIMITS.max_age_ns))

        assert isinstance(found, Nack)
        assert not found.counts


def test_a_reason_in_words_with_its_error_chained_is_of_the_class_of_the_error() -> None:
    error = RetryDelays().later(LockBusy("b"), low, text="run lock busy")

    assert str(error.cause) == "run lock busy"
    assert verdict(error) == Nack(500 * MS, counts=False)


@pytest.mark.parametrize("error", [ValueError("x"), because(0.1, "not yet"), because(0.1, ValueError("x"))])
def test_any_other_error_counts_and_too_many_are_a_dead_letter(error: Exception) -> None:
    for failures in range(LIMITS.max_failures - 1):
        found = verdict(error, DeliveryState(9, failures, 0))
        assert isinstance(found, Nack)
        assert found.counts

    last = verdict(error, DeliveryState(9, LIMITS.max_failures - 1, 0))

    assert isinstance(last, DeadLetterDecision)
    assert last.code is DeadLetterCode.FAILURES
    assert str(error) in last.reason


def test_an_error_without_a_delay_comes_again_after_the_backoff() -> None:
    assert verdict(ValueError("x")) == Nack(7 * MS, counts=True)


@given(ends, standings)
def test_what_is_too_old_and_was_not_handled_is_a_dead_letter(end: DeliveryEnd, standing: DeliveryState) -> None:
    if end.kind in {Kind.HANDLED, Kind.STOPPED} or standing.age_ns <= LIMITS.max_age_ns:
        return

    assert isinstance(decide(end, standing, LIMITS, low), DeadLetterDecision)


def test_a_consumer_that_leaves_gives_back_at_once_and_without_blame() -> None:
    old = DeliveryState(1_000, 100, 10**18)

    assert decide(DeliveryEnd(Kind.STOPPED), old, LIMITS, low) == Nack(0, counts=False)


def test_what_cannot_be_read_is_a_dead_letter_after_three_deliveries() -> None:
    end = DeliveryEnd(Kind.UNREADABLE, text="no JSON")
    limits = Limits(max_failures=99, max_age_ns=NS)

    found = [decide(end, DeliveryState(n, n - 1, 0), limits, low) for n in range(1, UNREADABLE_MAX + 1)]

    assert [isinstance(each, DeadLetterDecision) for each in found] == [False, False, True]


def test_every_message_gets_one_chance_however_old() -> None:
    assert before(DeliveryState(1, 0, 10**18), LIMITS) is None
    too_old = before(DeliveryState(2, 0, LIMITS.max_age_ns + 1), LIMITS)
    assert too_old is not None
    assert too_old.code is DeadLetterCode.TOO_OLD


def test_a_message_that_kills_whoever_takes_it_is_a_dead_letter() -> None:
    assert before(DeliveryState(LOST_MAX, 0, 0, lost=LOST_MAX - 1), LIMITS) is None
    found = before(DeliveryState(LOST_MAX + 1, 0, 0, lost=LOST_MAX), LIMITS)

    assert found is not None
    assert found.code is DeadLetterCode.LOST


def test_a_handler_that_judges_by_itself_what_was_lost_has_twice_the_number_to_live_to_it() -> None:
    limits = replace(LIMITS, judges_lost=True)
    assert before(DeliveryState(3 * LOST_MAX, 0, 0, lost=2 * LOST_MAX - 1), limits) is None
    found = before(DeliveryState(3 * LOST_MAX, 0, 0, lost=2 * LOST_MAX), limits)
    assert found is not None
    assert found.code is DeadLetterCode.LOST


@given(st.integers(0, 50), st.integers(0, 50))
def test_an_attempt_is_given_up_when_so_many_runs_were_begun_and_not_given_back(begun: int, given_back: int) -> None:
    lost = lost_runs(begun, given_back)
    assert lost >= 0
    assert (given_up(lost) is None) == (begun < LOST_MAX + given_back)


def test_runs_that_are_given_back_never_add_up() -> None:
    assert given_up(lost_runs(100 * LOST_MAX, 100 * LOST_MAX)) is None
