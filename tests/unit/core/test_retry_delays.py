"""Which delay refused work is sent back with: contention and store trouble are two classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.backoff import Exponential, Fixed, Jittered
from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import (
    AcquireTimeout,
    BackendError,
    BadInput,
    LockBusy,
    Misconfigured,
    RetryLater,
    Timeout,
    Unavailable,
)
from holdfast.types import MS, NS


def no_draw(_n: int) -> int:
    raise AssertionError("a fixed delay draws nothing")


@pytest.mark.requires("R146", "R149", "R151")
def test_a_busy_lock_sends_the_work_back_for_exactly_500_ms() -> None:
    for busy in (LockBusy("run lock busy"), AcquireTimeout("run lock busy")):
        later = RetryDelays().later(busy, no_draw)
        assert later.delay == 0.5
        assert later.__cause__ is busy
        assert "run lock busy" in str(later)


@pytest.mark.requires("R147")
def test_store_trouble_sends_the_work_back_for_one_second() -> None:
    for kind in (BackendError, Unavailable, Timeout, Misconfigured):
        error = kind("down")
        later = RetryDelays().later(error, no_draw)
        assert later.delay == 1.0
        assert later.__cause__ is error


@given(st.integers(0, 400 * MS - 1))
@pytest.mark.requires("R152", "R160", "R165", "R166")
def test_jitter_is_one_flag_stays_in_its_range_and_keeps_the_work_retryable(offset: int) -> None:
    later = RetryDelays().with_jitter().later(LockBusy("run lock busy"), lambda n: offset)
    assert isinstance(later, RetryLater)
    assert 0.3 <= later.delay < 0.7
    assert "run lock busy" in str(later)
    assert RetryDelays().with_jitter().later(Unavailable("down"), no_draw).delay == 1.0


@pytest.mark.requires("R168")
def test_the_jitter_can_be_switched_back_immediately() -> None:
    assert RetryDelays().with_jitter().without_jitter() == RetryDelays()


def test_switching_the_jitter_on_twice_is_switching_it_on_once() -> None:
    assert RetryDelays().with_jitter().with_jitter() == RetryDelays().with_jitter()


def test_a_spread_that_is_not_below_the_base_is_refused() -> None:
    with pytest.raises(BadInput):
        RetryDelays().with_jitter(600 * MS)


def test_the_text_of_the_caller_is_used_and_the_cause_is_kept() -> None:
    busy = LockBusy("internal")
    later = RetryDelays().later(busy, no_draw, text="run lock busy")
    assert str(later) == "retry after 500ms: run lock busy"
    assert later.__cause__ is busy


def test_the_attempt_reaches_the_backoff() -> None:
    delays = RetryDelays(backend=Exponential(NS, 8 * NS))
    assert [delays.later(Timeout("x"), lambda n: n - 1, attempt=n).delay for n in range(5)] == [1, 2, 4, 8, 8]


@pytest.mark.requires("R158")
def test_delays_that_do_not_fit_the_lock_are_refused() -> None:
    RetryDelays().with_jitter().check(30 * NS, 100 * MS)
    with pytest.raises(BadInput, match="median hold"):
        RetryDelays().check(30 * NS, NS)
    with pytest.raises(BadInput, match="ttl / 3"):
        RetryDelays(busy=Jittered(500 * MS, 200 * MS)).check(NS)
    assert RetryDelays().busy == Fixed(500 * MS)
