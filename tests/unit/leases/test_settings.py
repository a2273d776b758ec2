"""Settings that cannot be safe are refused when a lock is described, with the sum that shows why."""

from __future__ import annotations

import pytest

from holdfast import BadInput, backoff
from holdfast.core.lease.timing import settle, takeover_bound_ns, ttl_from_data_ns
from holdfast.types import MS, NS
from support.harness.leases import Stage


@pytest.mark.requires("R113", "R114", "R132", "R133")
def test_a_ttl_is_computed_from_data() -> None:
    assert ttl_from_data_ns(18 * NS, 4 * NS, 2 * NS) == 24 * NS
    assert settle(ttl=24).renew_every_ns == 8 * NS
    assert takeover_bound_ns(60 * NS, NS) == 61 * NS
    assert takeover_bound_ns(10 * NS, NS) < takeover_bound_ns(60 * NS, NS)


@pytest.mark.requires("R115", "R116", "R120", "R136")
async def test_a_takeover_slo_that_the_ttl_cannot_meet_is_refused_with_the_sum(stage: Stage) -> None:
    locks = stage.locks()
    with pytest.raises(BadInput) as raised:
        locks.lock("k", ttl=60, takeover_slo=30)
    assert raised.value.field == "takeover_slo"
    assert "ttl + one retry = 60 s + 1 s = 61 s" in str(raised.value)
    assert "30 s cannot be met" in str(raised.value)
    assert locks.lock("k", ttl=22, takeover_slo=30).ttl == 22
    assert locks.lock("k", ttl=60, takeover_slo=61).ttl == 60


@pytest.mark.requires("R117", "R118")
async def test_a_renewal_that_leaves_no_room_is_refused_with_the_sum(stage: Stage) -> None:
    locks = stage.locks()
    with pytest.raises(BadInput) as raised:
        locks.lock("k", ttl=30, renew_every=25)
    assert raised.value.field == "renew_every"
    assert "1.2 x 25 s = 30 s and the deadline is 26.698 s (ttl 30 s)" in str(raised.value)
    with pytest.raises(BadInput) as late:
        locks.lock("k", ttl=30, renew_deadline=29)
    assert late.value.field == "renew_deadline"
    assert "ttl - drift - guard = 30 s - 0.302 s - 3 s = 26.698 s" in str(late.value)
    assert locks.lock("k", ttl=30, renew_every=25, auto_renew=False).ttl == 30


async def test_at_least_cannot_outlast_the_ttl(stage: Stage) -> None:
    with pytest.raises(BadInput) as raised:
        stage.locks().lock("k", ttl=10, at_least=11)
    assert raised.value.field == "at_least"
    assert "11 s is longer than the ttl of 10 s" in str(raised.value)


@pytest.mark.requires("R158", "R163")
async def test_a_retry_that_does_not_fit_the_lock_is_refused_with_the_sum(stage: Stage) -> None:
    locks = stage.locks()
    with pytest.raises(BadInput, match=r"more than the safety budget ttl / 3 = 0\.1 s"):
        locks.lock("k", ttl=0.3, retry=backoff.jittered(0.5, 0.2))
    with pytest.raises(BadInput, match="not above the median hold"):
        locks.lock("k", ttl=30, retry=backoff.fixed(0.5), median_hold=0.5)
    assert locks.lock("k", ttl=30, retry=backoff.fixed(0.5), median_hold=0.4).name == "k"
    assert locks.lock("k", ttl=30, retry=backoff.jittered()).name == "k"


@pytest.mark.parametrize("ttl", [0.05, 0.1, 0.5, 1, 10, 60, 3600, 7 * 86400])
async def test_every_ttl_in_range_has_defaults_that_are_safe(stage: Stage, ttl: float) -> None:
    lock = stage.locks().lock("k", ttl=ttl)
    timing = settle(ttl=ttl)
    assert lock.ttl == ttl
    assert timing.renew_every_ns * 12 // 10 < timing.loss_age_ns() < timing.valid_ns() < timing.ttl_ns
    assert timing.ttl_ns - timing.valid_ns() >= 2 * MS
