"""An outage costs one timeout in a while, and not one per attempt."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease.circuit_breaker import (
    COOL_MAX_NS,
    COOL_MIN_NS,
    FAILURES_MAX,
    Breaker,
    admit,
    failed,
    succeeded,
)
from holdfast.types import NS

PATIENCE = 2 * NS


def middle(n: int) -> int:
    return n // 2


def opened(now_ns: int = 0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_MAX):
        breaker = failed(breaker, now_ns, middle)
    return breaker


def test_a_closed_breaker_lets_all_callers_pass() -> None:
    assert admit(Breaker(), 0, PATIENCE) == (Breaker(), True)
    almost = failed(failed(Breaker(), 0, middle), 0, middle)
    assert not almost.open
    assert admit(almost, 0, PATIENCE) == (almost, True)


def test_failures_in_a_row_open_it_and_a_success_between_them_does_not_count() -> None:
    breaker = failed(failed(Breaker(), 0, middle), 0, middle)
    breaker = failed(succeeded(breaker), 0, middle)
    assert breaker == Breaker(failures=1)
    assert opened().open


def test_an_open_breaker_refuses_until_it_has_cooled_and_then_lets_one_probe_out() -> None:
    breaker = opened()
    assert breaker.open_until_ns == COOL_MIN_NS
    assert admit(breaker, COOL_MIN_NS - 1, PATIENCE) == (breaker, False)
    probing, admitted = admit(breaker, COOL_MIN_NS, PATIENCE)
    assert admitted
    for moment in (COOL_MIN_NS, COOL_MIN_NS + PATIENCE - 1):
        assert admit(probing, moment, PATIENCE) == (probing, False)


def test_a_probe_that_never_came_back_is_forgotten_after_its_patience() -> None:
    probing, _ = admit(opened(), COOL_MIN_NS, PATIENCE)
    assert admit(probing, COOL_MIN_NS + PATIENCE, PATIENCE)[1]


def test_a_good_probe_closes_it_and_a_bad_one_doubles_the_cool_down_up_to_a_cap() -> None:
    breaker, now, cools = opened(), 0, []
    for _ in range(8):
        now = breaker.open_until_ns
        breaker, admitted = admit(breaker, now, PATIENCE)
        assert admitted
        breaker = failed(breaker, now, middle)
        cools.append(breaker.cool_ns)
    assert cools[:3] == [2 * COOL_MIN_NS, 4 * COOL_MIN_NS, 8 * COOL_MIN_NS]
    assert cools[-1] == COOL_MAX_NS
    assert succeeded(breaker) == Breaker()


def test_callers_that_were_under_way_when_it_opened_do_not_lengthen_the_cool_down() -> None:
    breaker = opened()
    for _ in range(10):
        breaker = failed(breaker, 1, middle)
    assert breaker.cool_ns == COOL_MIN_NS


@given(st.lists(st.tuples(st.sampled_from(["ok", "fail"]), st.integers(0, 20 * NS)), max_size=60), st.integers())
def test_in_every_history_it_is_open_exactly_after_failures_in_a_row_and_never_for_good(
    history: list[tuple[str, int]], seed: int
) -> None:
    draw = random.Random(seed).randrange
    breaker, now, row = Breaker(), 0, 0
    for outcome, gap in history:
        now += gap
        breaker, admitted = admit(breaker, now, PATIENCE)
        if admitted:
            row = 0 if outcome == "ok" else row + 1
            breaker = succeeded(breaker) if outcome == "ok" else failed(breaker, now, draw)
        assert breaker.open == (row >= FAILURES_MAX)
        longest = COOL_MAX_NS + COOL_MAX_NS // 5 + PATIENCE
        assert admit(breaker, now + longest, PATIENCE)[1]
