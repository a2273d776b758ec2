"""The fallback path, walked on purpose: through the real path, in both colors, and told apart from a real outage."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import PolicyDenied
from holdfast.core.history.events import EventKind
from holdfast.core.lease.policy_exercise import WHOLE
from holdfast.errors import BadInput
from support.harness.leases import Stage

POLICY = {"low": "fail_open", "high": "fail_closed", "patient": "wait"}


def run_lock(locks: Any, number: int = 1, risk: str = "low") -> Any:
    return locks.lock(f"run:{number}", ttl=30, family="workflow.run", risk=risk)


@pytest.mark.requires("R103")
async def test_the_share_is_exactly_what_was_drawn_and_the_store_is_not_asked_for_those(stage: Stage) -> None:
    stage.stop_time()
    drawn: list[int] = []
    chance = stage.entropy.below

    def noted(n: int) -> int:
        value = chance(n)
        if n == WHOLE:  # only this draw is out of a million
            drawn.append(value)
        return value

    stage.entropy.below = noted  # type: ignore[method-assign]  # the same seeded chance, watched
    locks = stage.locks(policy=POLICY)
    locks.exercise.begin("workflow.run", 0.2)
    degraded = []
    for number in range(200):
        async with run_lock(locks, number) as lease:
            degraded.append(lease.guaranteed is False)
    assert degraded == [value < 200_000 for value in drawn]  # one draw for each acquisition, and no other
    assert 20 < sum(degraded) < 60
    assert locks.statistics().exercised == sum(degraded)
    assert stage.plan.calls["acquire"] == 200 - sum(degraded)


@pytest.mark.requires("R85", "R95", "R103")
async def test_what_is_exercised_is_counted_and_logged_apart_from_what_fell_back(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    locks = stage.locks(policy=POLICY)
    locks.manager.recorder.name_items({"workflow.run": "run:{run}"})
    locks.exercise.begin("workflow.run", 1)
    async with run_lock(locks, 42) as lease:
        assert (lease.guaranteed, lease.fence, lease.held) == (False, None, True)
    statistics = locks.statistics()
    assert (statistics.exercised, statistics.fallbacks, statistics.store_errors) == (1, 0, 0)
    assert not statistics.breaker_open
    assert locks.manager.recorder.by_risk(EventKind.EXERCISED) == {("workflow.run", "low"): 1}
    assert locks.manager.recorder.by_risk(EventKind.FELL_BACK) == {}
    assert "distributed lock failed" not in caplog.text  # a search for an outage finds none
    (line,) = [record for record in caplog.records if "runs under the local lock only" in record.message]
    assert line.__dict__["holdfast"]["run"] == "42"
    assert "exercise" in line.message


@pytest.mark.requires("R103")
async def test_only_a_class_that_fails_open_and_only_the_family_is_touched(stage: Stage) -> None:
    locks = stage.locks(policy=POLICY)
    locks.exercise.begin("workflow.run", 1)
    wanted = [
        run_lock(locks, 1, "high"),
        run_lock(locks, 2, "patient"),
        run_lock(locks, 3, "unknown"),
        locks.lock("run:4", ttl=30, family="workflow.run"),
        locks.lock("run:5", ttl=30, family="other", risk="low"),
    ]
    for lock in wanted:
        async with lock as lease:
            assert lease.guaranteed is True
    assert locks.statistics().exercised == 0
    locks.policy.set("high", "fail_open")  # it follows the policy of the moment
    async with run_lock(locks, 1, "high") as lease:
        assert lease.guaranteed is False


async def test_try_acquire_takes_the_same_path(stage: Stage) -> None:
    locks = stage.locks(policy=POLICY)
    locks.exercise.begin("workflow.run", 1)
    lease = await run_lock(locks).try_acquire()
    assert lease is not None
    assert lease.guaranteed is False
    assert await run_lock(locks).try_acquire() is None  # the local lock is held, as in an outage
    await lease.release()


@pytest.mark.requires("R103")
async def test_a_lease_of_an_exercise_is_promoted_as_after_an_outage(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks(policy=POLICY)
    locks.exercise.begin("workflow.run", 1)
    lease = await run_lock(locks).acquire()
    assert (lease.guaranteed, lease.fence) == (False, None)
    stage.pass_time(30)
    assert lease.guaranteed is True
    assert isinstance(lease.fence, int)
    await lease.release()


@pytest.mark.requires("R103")
async def test_where_the_lock_is_held_elsewhere_the_exercise_finds_out_as_after_an_outage(stage: Stage) -> None:
    stage.stop_time()
    locks, others = stage.locks(policy=POLICY), stage.locks()
    theirs = await others.lock("run:1", ttl=300).acquire()
    locks.exercise.begin("workflow.run", 1)
    lease = await run_lock(locks).acquire()
    stage.pass_time(30)
    assert lease.lost.is_set()
    assert theirs.held


async def test_an_exercise_where_it_is_an_outage_is_refused_unless_forced(stage: Stage) -> None:
    locks = stage.locks(policy=POLICY)
    with pytest.raises(BadInput, match="class high is fail_closed"):
        locks.exercise.begin("workflow.run", 0.5, risk="high")
    with pytest.raises(BadInput, match="no risk class is fail_open"):
        stage.locks().exercise.begin("workflow.run", 0.5)
    locks.exercise.begin("workflow.run", 1, risk="high", force=True)
    with pytest.raises(PolicyDenied, match="an exercise of the error policy"):
        await run_lock(locks, 1, "high").acquire()
    assert stage.plan.calls["acquire"] == 0
    async with run_lock(locks, 1, "low") as lease:
        assert lease.guaranteed is True


async def test_a_forced_exercise_of_a_waiting_class_costs_one_wait_and_no_more(stage: Stage) -> None:
    locks = stage.locks(policy=POLICY)
    locks.exercise.begin("workflow.run", 1, risk="patient", force=True)
    async with locks.lock("run:1", ttl=30, family="workflow.run", risk="patient") as lease:
        assert lease.guaranteed is True
    assert stage.plan.calls["acquire"] == 1


async def test_it_ends_by_itself_and_by_hand_and_says_so(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.stop_time()
    locks = stage.locks(policy=POLICY)
    locks.exercise.begin("workflow.run", 1, duration=60)
    assert [each.share for each in locks.exercise.current()] == [1.0]
    stage.pass_time(59)
    async with run_lock(locks) as lease:
        assert lease.guaranteed is False
    stage.pass_time(1)
    assert locks.exercise.current() == []
    async with run_lock(locks) as lease:
        assert lease.guaranteed is True
    assert not locks.exercise.running
    locks.exercise.begin("workflow.run", 1)
    assert locks.exercise.end("workflow.run")
    assert not locks.exercise.end("workflow.run")
    assert caplog.text.count("exercise of the error policy begun") == 2
    assert caplog.text.count("exercise of the error policy ended") == 2
