"""Why a lease can be lost, and how its holder learns of it: the event, the question, the callback, the warning."""

from __future__ import annotations

import threading

import pytest

from holdfast import LeaseLost
from support.harness.leases import LIMIT_S, Stage


async def test_max_hold_ends_a_lease_that_is_still_being_renewed(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30, max_hold=100).acquire()
    stage.pass_time(99.9)
    assert lease.held
    stage.pass_time(0.1)
    assert lease.lost.reason == "max_hold"
    asked = stage.plan.calls["renew_many"]
    stage.pass_time(30)
    assert stage.plan.calls["renew_many"] == asked  # and so it runs out in the store
    assert not (await locks.inspect("k")).held


async def test_renewal_stops_when_the_work_stops_reporting_progress(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30, stall_after=15).acquire()
    for _ in range(20):
        stage.pass_time(14)
        lease.progress()
    assert lease.held
    stage.pass_time(15)
    assert lease.lost.reason == "stalled"
    lease.progress()
    assert lease.state == "lost"
    stage.pass_time(31)
    assert not (await locks.inspect("k")).held


async def test_closing_the_locks_revokes_its_leases(stage: Stage) -> None:
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    await locks.close()
    assert lease.lost.reason == "revoked"
    with pytest.raises(LeaseLost):
        lease.ensure_held()


async def test_a_broken_lock_is_lost_as_stolen_and_the_act_is_on_record(stage: Stage) -> None:
    stage.stop_time()
    locks, operator = stage.locks(), stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    act = await operator.force_release("k", reason="stuck deploy", actor="ada")
    assert act is not None
    assert act.fence > lease.fence
    assert (act.actor, act.reason, act.previous_fence) == ("ada", "stuck deploy", lease.fence)
    stage.pass_time(10.1)
    assert await lease.lost.wait(0)
    assert lease.lost.reason == "stolen"
    assert [each.reason for each in await operator.audit()] == ["stuck deploy"]
    assert await operator.force_release("k", reason="again") is None
    assert (await operator.lock("k", ttl=5).acquire()).fence > act.fence


async def test_the_event_is_set_once_and_knows_why(stage: Stage) -> None:
    locks = stage.locks()
    lease = await locks.lock("k", ttl=0.1, auto_renew=False).acquire()
    assert (lease.lost.is_set(), bool(lease.lost), lease.lost.reason) == (False, False, None)
    assert not await lease.lost.wait(0)
    assert await lease.lost.wait(LIMIT_S)
    assert (lease.lost.is_set(), bool(lease.lost), lease.lost.reason) == (True, True, "expired")
    assert await lease.lost.wait(0)


async def test_a_released_lease_is_not_lost_and_those_who_wait_for_the_loss_are_told(stage: Stage) -> None:
    locks = stage.locks()
    lease = await locks.lock("k", ttl=5).acquire()
    waiting = stage.start(lease.lost.wait(LIMIT_S))
    await lease.release()
    assert await waiting.result() is False
    assert not lease.lost.is_set()
    assert lease.lost.reason is None
    with pytest.raises(LeaseLost, match="was released"):
        lease.ensure_held()


async def test_ensure_held_can_ask_for_time_to_spare(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=10, auto_renew=False).acquire()
    lease.ensure_held(min_remaining=9)
    stage.pass_time(8)
    lease.ensure_held(min_remaining=1)
    with pytest.raises(LeaseLost, match="about to be lost") as raised:
        lease.ensure_held(min_remaining=2)
    assert raised.value.key == "k"
    assert lease.held  # it was a question, not a loss


async def test_on_lost_is_called_once_with_the_lease(stage: Stage) -> None:
    called: list[tuple[int, str | None]] = []
    locks = stage.locks()
    lease = await locks.lock(
        "k", ttl=0.1, auto_renew=False, on_lost=lambda each: called.append((each.fence, each.lost.reason))
    ).acquire()
    await stage.until(lambda: called, "the callback")
    assert called == [(lease.fence, "expired")]
    again = await locks.lock("k", ttl=5, on_lost=lambda each: called.append((each.fence, "released"))).acquire()
    await again.release()
    assert len(called) == 1


async def test_a_callback_that_raises_is_logged_and_changes_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(_: object) -> None:
        raise ZeroDivisionError("the user's own")

    locks = stage.locks()
    steady = await locks.lock("steady", ttl=0.5).acquire()
    lease = await locks.lock("k", ttl=0.1, auto_renew=False, on_lost=explode, on_warning=explode).acquire()
    assert await lease.lost.wait(LIMIT_S)
    await stage.until(lambda: "the user's own" in caplog.text, "the log line")
    assert "a callback of the user raised" in caplog.text
    await stage.until(lambda: locks.statistics().renewed >= 2, "the keeper goes on")
    assert steady.held
    await steady.release()


async def test_a_callback_that_blocks_delays_no_other_loss(threads: Stage) -> None:
    """Losses are announced, and other callbacks called, while one of them does not come back."""
    gate = threading.Event()
    called: list[str] = []
    locks = threads.locks()

    def block(lease: object) -> None:
        called.append("blocked")
        gate.wait(3 * LIMIT_S)

    try:
        await locks.lock("a", ttl=0.06, auto_renew=False, on_lost=block).acquire()
        await threads.until(lambda: called, "the first callback")
        other = await locks.lock("b", ttl=0.06, auto_renew=False, on_lost=lambda _: called.append("b")).acquire()
        assert await other.lost.wait(LIMIT_S)
        await threads.until(lambda: "b" in called, "the second callback")
    finally:
        gate.set()


async def test_the_early_warning_comes_before_the_loss_and_again_only_after_a_recovery(stage: Stage) -> None:
    warned: list[float] = []
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30, early_warning=5, on_warning=lambda each: warned.append(each.fence)).acquire()
    stage.pass_time(100)
    assert warned == []
    stage.plan.down("renew_many")
    stage.pass_time(21.8)
    assert "warned" in stage.notes.kinds()
    await stage.until(lambda: len(warned) == 1, "the warning")
    assert lease.held
    stage.pass_time(3)
    assert lease.held
    stage.plan.well()
    stage.pass_time(2)
    assert lease.state == "held"
    stage.plan.down("renew_many")
    stage.pass_time(25)
    await stage.until(lambda: len(warned) == 2, "the second warning")
    assert not lease.lost.is_set()


async def test_without_a_setting_the_warning_comes_between_the_missed_renewal_and_the_loss(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30, on_warning=lambda _: None).acquire()
    stage.plan.down("renew_many")
    stage.pass_time(18)
    assert "warned" not in stage.notes.kinds()
    stage.pass_time(1)
    assert "warned" in stage.notes.kinds()
    assert lease.held


async def test_a_lease_that_is_dropped_is_left_to_expire_and_says_so(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    stage.pass_time(60)
    assert lease.held
    del lease
    with pytest.warns(ResourceWarning, match="dropped without release"):
        stage.leases.clear()
    stage.pass_time(31)
    assert not (await locks.inspect("k")).held
    assert await locks.lock("k", ttl=30).try_acquire() is not None


async def test_the_loss_is_announced_while_a_renewal_hangs(stage: Stage) -> None:
    """The alarm is a timer of its own: what hangs in the renewer cannot hold it up."""
    locks = stage.locks()
    hanging = threading.Event()
    stage.plan.before["renew_many"] = lambda: (hanging.wait(3 * LIMIT_S), None)[1]
    try:
        lease = await locks.lock("k", ttl=0.3).acquire()
        assert await lease.lost.wait(LIMIT_S / 2)
        assert not hanging.is_set()
        assert lease.lost.reason == "expired"
        assert stage.plan.calls["renew_many"] == 1
    finally:
        hanging.set()


async def test_a_thread_and_a_task_can_both_wait_for_the_same_loss(stage: Stage) -> None:
    locks = stage.locks()
    lease = await locks.lock("k", ttl=0.15, auto_renew=False).acquire()
    company = [stage.start(lease.lost.wait(LIMIT_S)) for _ in range(5)]
    assert [await each.result() for each in company] == [True] * 5
