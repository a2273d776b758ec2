"""Giving back: idempotent, bounded, honest about what the store said, and never in the way of the work's own result."""

from __future__ import annotations

import logging

import pytest

from support.harness.leases import Stage


async def test_release_is_idempotent_and_true_only_once(stage: Stage) -> None:
    locks = stage.locks()
    lease = await locks.lock("k", ttl=5).acquire()
    assert await lease.release() is True
    assert await lease.release() is False
    assert stage.plan.calls["release"] == 1
    assert locks.statistics().released == 1


@pytest.mark.requires("R1", "R4", "R26", "R27")
async def test_a_stale_owner_cannot_release_the_new_owners_lease(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.stop_time()
    locks, others = stage.locks(), stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    await others.force_release("k", reason="drill")
    newer = await others.lock("k", ttl=30).acquire()
    assert await lease.release() is False
    assert newer.held
    assert (await others.inspect("k")).fence == newer.fence
    assert "lock release skipped: token mismatch" in caplog.text
    assert locks.statistics().not_owned == 1


@pytest.mark.requires("R6", "R75", "R83")
@pytest.mark.parametrize("trouble", ["down", "silent"])
async def test_a_release_that_fails_is_a_warning_and_finished_work_stays_finished(
    stage: Stage, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage.stop_time()
    locks = stage.locks()
    result = None
    async with locks.lock("run:1", ttl=30, family="workflow.run"):
        result = "done"
        getattr(stage.plan, trouble)("release")
    assert result == "done"
    assert "run lock release failed" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert locks.statistics().release_failures == 1
    assert locks.statistics().held == 0


@pytest.mark.requires("R83")
async def test_a_release_that_fails_does_not_mask_the_bodys_exception(stage: Stage) -> None:
    locks = stage.locks()
    with pytest.raises(KeyError, match="own"):
        async with locks.lock("k", ttl=5):
            stage.plan.down("release")
            raise KeyError("the body's own")
    assert locks.statistics().release_failures == 1


async def test_what_could_not_be_released_is_given_back_when_the_store_is_well(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=300).acquire()
    stage.plan.down("release")
    assert await lease.release() is False
    assert (await locks.inspect("k")).held
    stage.plan.well()
    stage.pass_time(2)
    assert not (await locks.inspect("k")).held


async def test_what_cannot_be_released_is_not_tried_for_ever(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.lock("k", ttl=10).acquire()
    stage.plan.down("release")
    await lease.release()
    stage.pass_time(60)
    asked = stage.plan.calls["release"]
    stage.pass_time(600)
    assert stage.plan.calls["release"] == asked
    assert not (await locks.inspect("k")).held


@pytest.mark.requires("R46")
async def test_at_least_keeps_the_key_for_its_time_after_a_quick_release(stage: Stage) -> None:
    stage.stop_time()
    locks, others = stage.locks(), stage.locks()
    lock = locks.lock("tick", ttl=30, at_least=20)
    lease = await lock.acquire()
    stage.pass_time(5)
    assert await lease.release()
    assert not lease.held
    stage.pass_time(14)
    assert await others.lock("tick", ttl=30).try_acquire() is None
    assert await lock.try_acquire() is None
    stage.pass_time(1.1)
    again = await others.lock("tick", ttl=30).try_acquire()
    assert again is not None
    assert again.fence > lease.fence


async def test_at_least_is_over_when_the_work_took_longer(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    async with locks.lock("tick", ttl=30, at_least=20):
        stage.pass_time(25)
    assert not await locks.lock("tick").locked()


async def test_after_a_release_the_keeper_asks_for_nothing_more(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    for number in range(10):
        lease = await locks.lock(f"k{number}", ttl=30).acquire()
        stage.pass_time(16)
        await lease.release()
    asked = stage.plan.calls["renew_many"]
    stage.pass_time(600)
    assert stage.plan.calls["renew_many"] == asked
    assert locks.statistics().held == 0


async def test_acquire_with_an_unknown_outcome_is_undone(stage: Stage) -> None:
    from holdfast import Timeout

    stage.stop_time()
    locks = stage.locks()
    stage.plan.silent("acquire")
    with pytest.raises(Timeout):
        await locks.lock("k", ttl=300).acquire()
    assert not (await locks.inspect("k")).held
    assert locks.statistics().compensated == 1
    stage.plan.well()
    stage.plan.silent("acquire")
    stage.plan.down("release")  # nor can it be undone immediately
    with pytest.raises(Timeout):
        await locks.lock("k", ttl=300).acquire()
    assert (await locks.inspect("k")).held
    stage.plan.well()
    stage.pass_time(2)
    assert not (await locks.inspect("k")).held
