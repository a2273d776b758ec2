"""Whom an exercise of the fallback path may touch, and how often."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.core.lease.error_policy import OnError
from holdfast.core.lease.policy_exercise import WHOLE, Exercise, parse_exercise, refusal
from holdfast.errors import BadInput

OPEN, CLOSED, WAIT = OnError.FAIL_OPEN, OnError.FAIL_CLOSED, OnError.WAIT


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan"), float("inf"), True, "0.5", None, 1e-9])
def test_a_share_that_cannot_be_drawn_is_refused(share: Any) -> None:
    with pytest.raises(BadInput, match="share"):
        parse_exercise("workflow.run", share)


@pytest.mark.requires("R103")
def test_a_share_is_kept_to_the_millionth() -> None:
    assert parse_exercise("f", 0.01).parts == 10_000
    assert parse_exercise("f", 1).parts == WHOLE
    assert parse_exercise("f", 0.000001).share == 0.000001
    with pytest.raises(BadInput, match="family"):
        parse_exercise("not a family", 0.1)


@pytest.mark.parametrize(
    ("plan", "risk", "mode", "concerned"),
    [
        (Exercise("f", 1), "low", OPEN, True),
        (Exercise("f", 1), "low", CLOSED, False),
        (Exercise("f", 1), "low", WAIT, False),
        (Exercise("f", 1), None, CLOSED, False),
        (Exercise("f", 1, risk="low"), "low", OPEN, True),
        (Exercise("f", 1, risk="low"), "other", OPEN, False),
        (Exercise("f", 1, forced=True), "high", CLOSED, True),
        (Exercise("f", 1, forced=True), "high", WAIT, True),
        (Exercise("f", 1, forced=True, risk="low"), "high", CLOSED, False),
        (Exercise("f", 1, forced=True), None, CLOSED, False),  # without a class there is no policy to exercise
    ],
)
@pytest.mark.requires("R103")
def test_only_work_that_would_go_on_is_touched_unless_forced(
    plan: Exercise, risk: str | None, mode: OnError, *, concerned: bool
) -> None:
    assert plan.concerns(risk, mode) is concerned


@pytest.mark.requires("R103")
def test_the_whole_draws_always_and_a_share_as_often_as_chance_says() -> None:
    assert all(Exercise("f", WHOLE).draws(random.Random(1).randrange) for _ in range(100))
    seeded, again = random.Random(5), random.Random(5)
    plan = parse_exercise("f", 0.2)
    drawn = sum(plan.draws(seeded.randrange) for _ in range(1000))
    assert drawn == sum(again.randrange(WHOLE) < 200_000 for _ in range(1000))
    assert 150 < drawn < 250


def test_where_it_would_be_an_outage_or_nothing_it_is_refused_with_a_way_out() -> None:
    modes = {"low": OPEN, "high": CLOSED}
    assert refusal(parse_exercise("f", 0.1), modes) is None
    assert refusal(parse_exercise("f", 0.1, risk="low"), modes) is None
    assert "class high is fail_closed" in str(refusal(parse_exercise("f", 0.1, risk="high"), modes))
    assert "class new is fail_closed" in str(refusal(parse_exercise("f", 0.1, risk="new"), modes))
    assert "no risk class is fail_open" in str(refusal(parse_exercise("f", 0.1), {"high": CLOSED}))
    assert refusal(parse_exercise("f", 0.1, risk="high", forced=True), modes) is None


def test_it_is_over_when_its_end_has_come_and_never_without_one() -> None:
    assert not Exercise("f", 1, until_ns=10).over(9)
    assert Exercise("f", 1, until_ns=10).over(10)
    assert not Exercise("f", 1).over(2**62)
