"""The arithmetic of a lease: one-sided, and refusing what cannot be safe."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease.timing import (
    GUARD_MIN_NS,
    TTL_MAX_NS,
    TTL_MIN_NS,
    drift_ns,
    guard_ns,
    settle,
    takeover_bound_ns,
    ttl_from_data_ns,
)
from holdfast.errors import BadInput
from holdfast.types import MS, NS

ttls = st.integers(TTL_MIN_NS, TTL_MAX_NS)
tails = st.integers(0, 10 * NS)


@pytest.mark.requires("R114", "R122")
def test_the_defaults_are_thirty_seconds_renewed_every_ten() -> None:
    timing = settle()
    assert timing.ttl_ns == 30 * NS
    assert timing.renew_every_ns == 10 * NS
    assert timing.failures_max == 3
    assert timing.renew_timeout_ns == 2 * NS
    assert timing.valid_ns() == 30 * NS - 302 * MS
    assert timing.loss_age_ns() == 30 * NS - 302 * MS - 3 * NS


@pytest.mark.requires("R121", "R122", "R123")
def test_the_scheduler_lock_of_sixty_seconds_is_renewed_every_twenty() -> None:
    timing = settle(ttl=60)
    assert timing.renew_every_ns == 20 * NS
    assert timing.failures_max == 3


@given(ttls, tails)
def test_every_lease_ends_for_its_holder_before_it_ends_in_the_store(ttl_ns: int, tail_ns: int) -> None:
    timing = settle(ttl=ttl_ns / NS)
    assert 0 < timing.loss_age_ns(tail_ns) < timing.valid_ns() < timing.ttl_ns
    assert timing.valid_ns() == timing.ttl_ns - drift_ns(timing.ttl_ns)
    assert timing.loss_age_ns(tail_ns) <= timing.loss_age_ns()


@given(ttls, tails)
def test_a_guard_is_at_least_a_tenth_and_twice_the_tail_but_never_more_than_a_third(ttl_ns: int, tail_ns: int) -> None:
    guard = guard_ns(ttl_ns, tail_ns)
    assert guard <= ttl_ns // 3
    assert guard == ttl_ns // 3 or guard >= max(ttl_ns // 10, GUARD_MIN_NS, 2 * tail_ns)


@given(ttls, tails)
@pytest.mark.requires("R114", "R118")
def test_with_the_default_interval_a_renewal_and_a_retry_fit_before_the_loss(ttl_ns: int, tail_ns: int) -> None:
    timing = settle(ttl=ttl_ns / NS)
    assert timing.renew_every_ns == timing.ttl_ns // 3
    assert timing.loss_age_ns(tail_ns) * 10 > timing.renew_every_ns * 12
    assert timing.renew_every_ns <= timing.warn_age_ns(tail_ns) <= timing.loss_age_ns(tail_ns)


@given(ttls, tails)
def test_an_unrenewed_lease_uses_its_whole_validity_and_warns_only_when_told_to(ttl_ns: int, tail_ns: int) -> None:
    timing = settle(ttl=ttl_ns / NS, auto_renew=False)
    assert timing.loss_age_ns(tail_ns) == timing.warn_age_ns(tail_ns) == timing.valid_ns()
    told = settle(ttl=ttl_ns / NS, auto_renew=False, early_warning=0.01)
    assert told.warn_age_ns(tail_ns) == timing.valid_ns() - 10 * MS


def _settings() -> st.SearchStrategy[dict[str, Any]]:
    seconds = st.floats(0.001, 100, allow_nan=False)
    return st.fixed_dictionaries(
        {"ttl": st.floats(0.05, 100)},
        optional={
            "auto_renew": st.booleans(),
            "renew_every": seconds,
            "renew_deadline": seconds,
            "failures": st.integers(1, 100),
            "max_hold": seconds,
            "stall_after": seconds,
            "early_warning": seconds,
            "at_least": seconds,
            "takeover_slo": seconds,
        },
    )


@given(_settings())
def test_whatever_is_accepted_is_safe(settings: dict[str, Any]) -> None:
    try:
        timing = settle(**settings)
    except BadInput:
        return
    assert timing.loss_age_ns() <= timing.valid_ns() < timing.ttl_ns
    assert 0 <= timing.warn_age_ns() <= timing.loss_age_ns()
    assert timing.at_least_ns <= timing.ttl_ns
    if timing.auto_renew:
        assert timing.ttl_ns > timing.loss_age_ns() > timing.renew_every_ns * 12 // 10
        assert timing.deadline_ns is None or timing.loss_age_ns() == timing.deadline_ns


@pytest.mark.parametrize("tail_ns", [2 * NS, 10 * NS])
def test_a_slow_store_does_not_push_the_loss_before_the_first_renewal(tail_ns: int) -> None:
    timing = settle(ttl=10, renew_every=7)
    assert timing.renew_every_ns < timing.loss_age_ns(tail_ns)
    assert timing.warn_age_ns(tail_ns) <= timing.loss_age_ns(tail_ns)


def test_an_early_warning_counts_back_from_the_loss_and_not_before_the_grant() -> None:
    timing = settle(ttl=10, early_warning=2)
    assert timing.warn_age_ns() == timing.loss_age_ns() - 2 * NS
    assert settle(ttl=10, early_warning=60).warn_age_ns() == 0


def test_an_explicit_deadline_is_used() -> None:
    assert settle(ttl=15, renew_every=2, renew_deadline=10).loss_age_ns() == 10 * NS


@pytest.mark.parametrize(
    ("settings", "field", "sums"),
    [
        ({"ttl": 10, "renew_deadline": 9.5}, "renew_deadline", ["10 s - 0.102 s - 1 s = 8.898 s"]),
        ({"ttl": 10, "renew_every": 8}, "renew_every", ["1.2 x 8 s = 9.6 s", "8.898 s"]),
        ({"ttl": 15, "renew_every": 9, "renew_deadline": 10}, "renew_every", ["1.2 x 9 s = 10.8 s", "10 s"]),
        ({"ttl": 5, "at_least": 6}, "at_least", ["6 s", "5 s"]),
        ({"ttl": 60, "takeover_slo": 30}, "takeover_slo", ["60 s + 1 s = 61 s", "30 s"]),
        ({"ttl": 30, "takeover_slo": 30}, "takeover_slo", ["30 s + 1 s = 31 s"]),
    ],
)
@pytest.mark.requires("R116", "R117", "R118", "R120", "R136")
def test_unsafe_settings_are_refused_with_the_sum(settings: dict[str, Any], field: str, sums: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        settle(**settings)
    assert caught.value.field == field
    for part in sums:
        assert part in str(caught.value)


@given(st.floats(0.1, 1000))
@pytest.mark.requires("R116")
def test_the_ttl_that_a_refused_takeover_slo_suggests_is_accepted(slo: float) -> None:
    with pytest.raises(BadInput, match="at most") as caught:
        settle(ttl=slo, takeover_slo=slo)
    shown = caught.value.fix.split("at most ")[1].split(" s")[0]
    suggested = float(shown) * (1 - 1e-5)  # it is shown with six digits
    assert settle(ttl=suggested, takeover_slo=slo).ttl_ns < slo * NS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ttl", 0), ("ttl", -1), ("ttl", float("nan")), ("ttl", float("inf")),
        ("ttl", 0.049), ("ttl", 8 * 86_400), ("ttl", "30"),
        ("renew_every", 0), ("renew_deadline", 0), ("max_hold", 0), ("stall_after", -1), ("early_warning", -1),
        ("at_least", -0.1), ("takeover_slo", 0),
        ("failures", 0), ("failures", 101), ("failures", True), ("failures", 1.5), ("failures", None),
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_the_name_of_its_field(name: str, value: object) -> None:
    with pytest.raises(BadInput) as caught:
        settle(**{name: value})
    assert caught.value.field == name


@pytest.mark.requires("R115", "R121")
def test_the_takeover_bound_is_the_ttl_and_one_retry() -> None:
    assert takeover_bound_ns(60 * NS, NS) == 61 * NS


@pytest.mark.requires("R113")
def test_a_ttl_comes_from_data_as_in_the_worked_example() -> None:
    assert ttl_from_data_ns(18 * NS, 4 * NS, 2 * NS) == 24 * NS
    assert settle(ttl=24).renew_every_ns == 8 * NS
