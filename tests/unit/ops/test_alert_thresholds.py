"""Thresholds of alerts: each lies where its reason says, for every setting that is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast.core.histogram import LADDER_NS
from holdfast.core.lease.timing import guard_ns, settle
from holdfast.core.tuning.burstiness import BUCKET_NS, Burstiness
from holdfast.ops.alerts.thresholds import (
    BUDGET,
    VOLUME,
    WAVE,
    EvaluationWindows,
    overdue_s,
    slow_renewal_ns,
    thin_ns,
    wave_fano,
)
from holdfast.types import MS, NS

TTLS = some.integers(200, 3600 * 1000).map(lambda ms: ms / 1000)


@pytest.mark.requires("R33")
@given(some.floats(1.0, 120.0))
def test_no_single_burst_can_hold_for_as_long_as_an_alert_must(scrape: float) -> None:
    pace = EvaluationWindows(scrape)
    for burn in (pace.fast, pace.slow):
        assert burn.hold_s > burn.short_s
        assert burn.short_s < burn.long_s
    assert pace.hold_s > pace.window_s
    assert pace.window_s >= 5 * scrape


@pytest.mark.requires("R33")
def test_with_fewer_than_are_looked_at_one_event_would_be_too_much() -> None:
    assert 1 / VOLUME <= BUDGET < 1 / (VOLUME - 1)


@given(TTLS)
def test_a_thin_margin_lies_between_a_renewal_in_time_and_the_loss(ttl: float) -> None:
    timing = settle(ttl=ttl)
    in_time_ns = timing.valid_ns() - timing.renew_every_ns
    lost_ns = timing.valid_ns() - timing.usual_loss_ns
    assert thin_ns(timing) in LADDER_NS
    assert thin_ns(timing) < in_time_ns * 3 // 4
    assert ttl < 1 or thin_ns(timing) > lost_ns


@given(TTLS)
def test_a_renewal_is_slow_from_where_the_guard_begins_to_grow(ttl: float) -> None:
    ttl_ns = round(ttl * NS)
    limit = slow_renewal_ns(ttl_ns)
    assert guard_ns(ttl_ns, limit) == guard_ns(ttl_ns)
    assert guard_ns(ttl_ns, 2 * limit + 2) > guard_ns(ttl_ns) or guard_ns(ttl_ns) == ttl_ns // 3


@pytest.mark.requires("R115", "R120")
def test_a_loop_is_overdue_only_after_all_that_a_takeover_may_take() -> None:
    assert overdue_s(5.0, 15.0, 60.0) == pytest.approx(5.5 + 15 + 5 + 60)


@pytest.mark.requires("R154")
@pytest.mark.parametrize("contenders", [WAVE, 3 * WAVE])
def test_waves_that_are_measured_have_the_fano_factor_that_is_computed(contenders: int) -> None:
    counted = Burstiness()
    for wave in range(120):
        for _ in range(contenders):
            counted.note(wave * 500 * MS)
    expected = wave_fano(0.5, BUCKET_NS / NS)
    assert expected is not None
    assert counted.read(119 * 500 * MS + 450 * MS).fano == pytest.approx(expected * contenders / WAVE, rel=0.02)


def test_waves_that_fill_every_bucket_are_not_looked_for() -> None:
    assert wave_fano(0.05, 0.05) is None
    assert wave_fano(0.1, 0.05) == WAVE / 2
