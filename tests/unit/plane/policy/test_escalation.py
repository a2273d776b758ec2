"""The escalation rule speaks when both signs are there, and only then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease.error_policy import OnError
from holdfast.plane.policy.escalation_rules import EscalationEvidence, EscalationRule, due, judge
from holdfast.types import NS

RULE = EscalationRule()
COUNTS = st.integers(0, 10_000)


@pytest.mark.parametrize(
    ("fallbacks", "duplicates", "before", "escalate"),
    [
        (31, 1, 0, True),
        (30, 1, 0, False),  # exactly 0.1 a second is not more than that
        (31, 0, 0, False),
        (31, 5, 5, False),  # many, and not rising
        (31, 6, 5, True),
        (31, 4, 5, False),
        (0, 100, 0, False),  # duplicates without an outage have another cause
    ],
)
@pytest.mark.requires("R96", "R106")
def test_it_takes_a_high_rate_of_fallbacks_and_rising_duplicates(
    fallbacks: int, duplicates: int, before: int, *, escalate: bool
) -> None:
    verdict = judge(RULE, EscalationEvidence(fallbacks, duplicates, before))
    assert verdict.escalate is escalate
    assert verdict.rate == pytest.approx(fallbacks / 300)


@pytest.mark.requires("R106")
def test_the_verdict_says_what_it_was_decided_by() -> None:
    assert judge(RULE, EscalationEvidence(60, 7, 2)).because == (
        "0.2 fallbacks a second over 300 s (limit 0.1), and 7 duplicates after 2 in the 300 s before"
    )
    assert "not more than 0.1" in judge(RULE, EscalationEvidence(1, 7, 2)).because
    assert "not rising" in judge(RULE, EscalationEvidence(60, 2, 2)).because


@given(COUNTS, COUNTS, COUNTS, st.integers(0, 100), st.integers(0, 100))
@pytest.mark.requires("R96")
def test_more_fallbacks_and_more_duplicates_never_calm_it(
    fallbacks: int, duplicates: int, before: int, more: int, doubled: int
) -> None:
    if judge(RULE, EscalationEvidence(fallbacks, duplicates, before)).escalate:
        assert judge(RULE, EscalationEvidence(fallbacks + more, duplicates + doubled, before)).escalate


@pytest.mark.requires("R96")
def test_a_class_is_judged_after_a_whole_window_of_doing_what_it_does() -> None:
    since = 1_000 * NS
    assert not due(RULE, OnError.FAIL_OPEN, since, since + RULE.window_ns - 1)
    assert due(RULE, OnError.FAIL_OPEN, since, since + RULE.window_ns)
    assert due(RULE, OnError.WAIT, since, since + RULE.window_ns)
    assert not due(RULE, OnError.FAIL_CLOSED, since, since + RULE.window_ns)
