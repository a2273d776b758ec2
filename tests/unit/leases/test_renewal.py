"""Renewal in manual time: three outcomes, one failure a period, and letting go before the store may."""

from __future__ import annotations

import pytest

from holdfast import BackendError, LeaseLost, NotOwner
from holdfast.core.lease.timing import settle
from holdfast.errors import Unavailable
from holdfast.types import NS
from support.harness.leases import Stage


@pytest.mark.requires("R15", "R45", "R52", "R78", "R82", "R89", "R114")
async def test_renewal_keeps_a_lease_for_as_long_as_the_work_takes(stage: Stage) -> None:
    """TestDistributedRunLock_Renewal: the key still exists after advancing past the first TTL."""
    stage.stop_time()
    locks, others = stage.locks(), stage.locks()
    lease = await locks.lock("run:1", ttl=30, family="workflow.run").acquire()
    stage.pass_time(300)
    assert lease.held
    assert (await locks.inspect("run:1")).fence == lease.fence
    assert stage.plan.calls["renew_many"] == 30  # every ttl / 3 = 10 s
    assert stage.plan.calls["acquire"] == 1
    assert await others.lock("run:1", ttl=30, family="workflow.run").try_acquire() is None
    assert await lease.release()


@pytest.mark.requires("R50", "R121", "R122")
async def test_a_job_lock_is_sixty_twenty_three(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lock = locks.lock("job:1", ttl=60, family="scheduler.job")
    lease = await lock.acquire()
    stage.pass_time(61)
    assert stage.plan.calls["renew_many"] == 3
    assert lease.held
    timing = settle(ttl=60)
    assert (timing.ttl_ns, timing.renew_every_ns, timing.failures_max) == (60 * NS, 20 * NS, 3)
    assert (timing.renew_timeout_ns, timing.auto_renew) == (2 * NS, True)


async def test_many_leases_are_renewed_with_one_request(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lock = [locks.lock(f"k{number}", ttl=30) for number in range(50)]
    leases = [await each.acquire() for each in lock]
    stage.pass_time(31)
    assert all(lease.held for lease in leases)
    assert stage.plan.calls["renew_many"] == 3
    assert locks.statistics().held == 50


@pytest.mark.requires("R4", "R119")
async def test_not_owned_at_renewal_is_a_loss_at_once_and_not_one_strike_of_three(stage: Stage) -> None:
    stage.stop_time()
    locks, thief = stage.locks(), stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    await thief.force_release("k", reason="drill")
    assert lease.held  # the store was not asked yet
    stage.pass_time(10.1)
    assert lease.lost.reason == "stolen"
    assert stage.plan.calls["renew_many"] == 1
    with pytest.raises(LeaseLost, match="lost: k"):
        lease.ensure_held()


@pytest.mark.requires("R118", "R119", "R127")
async def test_a_blip_makes_the_lease_doubtful_and_an_answer_makes_it_whole_again(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    stage.plan.down("renew_many")
    stage.pass_time(10.5)
    assert lease.state == "doubtful"
    assert lease.held
    stage.plan.well()
    stage.pass_time(3)
    assert lease.state == "held"
    stage.plan.down("renew_many")
    stage.pass_time(11)
    assert lease.state == "doubtful"  # the count has restarted
    stage.plan.well()
    stage.pass_time(60)
    assert lease.state == "held"
    assert locks.statistics().lost == 0


@pytest.mark.requires("R45", "R119", "R123", "R127", "R135")
async def test_three_failed_periods_abandon_the_lease_though_many_attempts_failed_before(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=60, renew_every=5, failures=3).acquire()
    stage.plan.down("renew_many")
    stage.pass_time(14.9)  # the periods that begin at 5 and 10 s have failed, each several times
    assert lease.state == "doubtful"
    assert stage.plan.calls["renew_many"] > 6
    stage.pass_time(0.9)
    assert lease.lost.reason == "unconfirmed"
    with pytest.raises(LeaseLost, match="lock abandoned: renewal failed"):
        lease.ensure_held()
    assert stage.notes.kinds().count("lost") == 1


@pytest.mark.requires("R108", "R117", "R119")
async def test_the_deadline_ends_a_lease_before_the_failure_budget_and_before_the_store_may(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    stage.plan.down("renew_many")
    # valid for 30 - 0.3 - 0.002 s, and the guard is 3 s before that
    stage.pass_time(26.69)
    assert lease.held
    stage.pass_time(0.01)
    assert lease.state == "lost"
    assert lease.lost.reason == "unconfirmed"
    assert (await locks.inspect("k")).remaining == pytest.approx(3.3)


async def test_an_explicit_renew_deadline_is_kept(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=15, renew_deadline=10, renew_every=2).acquire()
    stage.plan.down("renew_many")
    stage.pass_time(5.9)
    assert lease.held
    stage.pass_time(4.2)
    assert lease.lost.reason == "unconfirmed"


@pytest.mark.requires("R124")
async def test_an_abandoned_lease_is_not_released(stage: Stage) -> None:
    stage.stop_time()
    locks, others = stage.locks(), stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    stage.plan.down("renew_many")
    stage.pass_time(31)
    stage.plan.well()
    newer = await others.lock("k", ttl=30).acquire()
    assert not await lease.release()
    assert stage.plan.calls["release"] == 0
    assert newer.held
    assert (await locks.inspect("k")).fence == newer.fence


@pytest.mark.requires("R124")
async def test_the_answer_of_a_renewal_that_comes_after_the_loss_changes_nothing(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=10).acquire()
    stage.plan.once("after", "renew_many", lambda: stage.clock.move(6 * NS))  # the answer hangs on its way
    stage.pass_time(4)
    assert lease.lost.reason == "expired"
    stage.pass_time(4)
    assert not lease.held


@pytest.mark.requires("R1", "R65")
async def test_a_holder_that_wakes_from_a_pause_learns_of_the_loss_from_its_first_question(stage: Stage) -> None:
    stage.stop_time()
    locks, others = stage.locks(), stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    stage.stand_still(31)  # nothing ran: no keeper, no alarm
    newer = await others.lock("k", ttl=30).acquire()
    with pytest.raises(LeaseLost) as raised:
        lease.ensure_held()
    assert raised.value.reason == "expired"
    assert raised.value.fence == lease.fence < newer.fence
    assert not await lease.release()
    assert newer.held


@pytest.mark.parametrize("clock", ["boot", "wall"])
async def test_a_suspended_host_and_a_step_of_the_wall_clock_count_as_time(stage: Stage, clock: str) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    setattr(stage.clock, clock, getattr(stage.clock, clock) + 31 * NS)
    assert not lease.held


async def test_a_wall_clock_that_is_set_back_neither_ends_nor_prolongs_a_lease(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30, auto_renew=False).acquire()
    stage.clock.wall -= 3600 * NS
    stage.pass_time(29)
    assert lease.held
    stage.pass_time(1)
    assert not lease.held


async def test_renew_on_demand_confirms_the_lease_now(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30, auto_renew=False).acquire()
    stage.pass_time(20)
    await lease.renew()
    assert lease.remaining() > 29
    stage.pass_time(20)
    assert lease.held
    stage.plan.down("renew_many")
    with pytest.raises(Unavailable):
        await lease.renew()
    assert lease.state == "doubtful"
    stage.plan.well()
    await lease.renew()
    assert lease.state == "held"


@pytest.mark.requires("R7")
async def test_renew_on_demand_of_a_lease_that_is_not_ours_is_a_loss(stage: Stage) -> None:
    stage.stop_time()
    locks, others = stage.locks(), stage.locks()
    lease = await locks.lock("k", ttl=30, auto_renew=False).acquire()
    await others.force_release("k", reason="drill")
    newer = await others.lock("k", ttl=30).acquire()
    before = (await others.inspect("k")).remaining
    with pytest.raises(LeaseLost) as raised:
        await lease.renew()
    assert raised.value.reason == "stolen"
    assert isinstance(raised.value.__cause__, NotOwner)
    assert (await others.inspect("k")).remaining == before
    assert newer.held
    with pytest.raises(LeaseLost):
        await lease.renew()


async def test_a_renewal_without_an_answer_says_so(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30, auto_renew=False).acquire()
    stage.plan.silent("renew_many")
    with pytest.raises(BackendError):
        await lease.renew()
    assert lease.state == "doubtful"


@pytest.mark.requires("R16")
async def test_without_auto_renew_nobody_renews_and_the_whole_validity_can_be_used(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=10, auto_renew=False).acquire()
    stage.pass_time(9.89)
    assert lease.held
    stage.pass_time(0.01)
    assert lease.lost.reason == "expired"
    assert stage.plan.calls["renew_many"] == 0


@pytest.mark.requires("R134")
async def test_renewing_more_often_costs_requests_in_proportion(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    await locks.lock("k", ttl=60, renew_every=2).acquire()
    stage.pass_time(61)
    assert stage.plan.calls["renew_many"] == 30


async def test_a_slow_store_widens_the_guard(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    stage.plan.before["renew_many"] = lambda: stage.clock.move(1_900_000_000)
    lease = await locks.lock("k", ttl=30).acquire()
    stage.pass_time(13)
    stage.plan.well()
    assert locks.statistics().renew_tail == pytest.approx(1.9)
    stage.plan.down("renew_many")
    stage.pass_time(25.7)  # the guard is now 2 x 1.9 s instead of 3 s
    assert not lease.held
