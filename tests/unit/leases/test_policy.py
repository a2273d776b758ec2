"""Contention, store trouble and release trouble take three different paths, and the risk class decides the second."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import AcquireTimeout, DegradedLease, PolicyDenied, Timeout, Unavailable, aio
from support.harness.leases import Stage, plain


@pytest.mark.requires("R74", "R99", "R100")
async def test_without_a_risk_class_a_store_error_is_raised_as_what_it_is(stage: Stage) -> None:
    locks = stage.locks(policy={"low": "fail_open"})
    stage.plan.down("acquire")
    with pytest.raises(Unavailable, match="connection refused"):
        await locks.lock("k", ttl=5).acquire()
    with pytest.raises(Unavailable):
        await locks.lock("k", ttl=5).try_acquire()
    assert locks.statistics().fallbacks == 0
    assert locks.statistics().store_errors == 2


@pytest.mark.requires("R74", "R99", "R100")
async def test_a_risk_class_that_nobody_named_fails_closed_and_says_so(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    locks = stage.locks()
    stage.plan.down("acquire")
    with pytest.raises(PolicyDenied) as raised:
        await locks.lock("pay:1", ttl=5, risk="money").acquire()
    assert (raised.value.key, raised.value.risk) == ("pay:1", "money")
    assert isinstance(raised.value.__cause__, Unavailable)
    assert "risk class money fails closed" in str(raised.value)
    assert locks.statistics().denied == 1
    assert "denied: the store is down" in caplog.text


@pytest.mark.requires("R80", "R84", "R85", "R88", "R90", "R98", "R100", "R101", "R103", "R105")
async def test_a_low_risk_class_runs_under_the_local_lock_and_is_counted_and_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    locks = stage.locks(policy={"low": "fail_open", "high": "fail_closed"})
    stage.plan.down("acquire")
    ran = False
    async with locks.lock("wf:run:1", ttl=5, family="workflow.run", risk="low") as lease:
        assert isinstance(plain(lease), DegradedLease | aio.DegradedLease)
        assert lease.guaranteed is False
        assert lease.fence is None
        assert lease.held
        lease.ensure_held()
        assert locks.statistics().degraded == 1
        ran = True
    assert ran
    assert locks.statistics().fallbacks == 1
    assert locks.statistics().degraded == 0
    assert stage.plan.calls["release"] == 0  # nothing was granted, so nothing is released
    lines = [record for record in caplog.records if "using local-only lock" in record.message]
    assert len(lines) == 1
    assert lines[0].levelno == logging.ERROR
    assert lines[0].message.startswith("distributed lock failed — using local-only lock")
    assert "cross-replica race is possible" in lines[0].message
    fields = lines[0].__dict__["holdfast"]
    assert fields["key"] == "wf:run:1"
    assert "connection refused" in fields["error"]
    with pytest.raises(PolicyDenied):
        await locks.lock("wf:run:2", ttl=5, risk="high").acquire()


@pytest.mark.requires("R75", "R79", "R80")
async def test_busy_is_never_taken_for_store_trouble(stage: Stage) -> None:
    locks, others = stage.locks(policy={"low": "fail_open"}), stage.locks()
    await others.lock("k", ttl=5).acquire()
    assert await locks.lock("k", ttl=5, risk="low").try_acquire() is None
    with pytest.raises(AcquireTimeout):
        await locks.lock("k", ttl=5, risk="low").acquire(timeout=0)
    statistics = locks.statistics()
    assert (statistics.fallbacks, statistics.denied, statistics.store_errors) == (0, 0, 0)
    assert statistics.busy >= 2


@pytest.mark.requires("R78", "R98")
async def test_a_degraded_lease_becomes_a_full_one_when_the_store_is_back(stage: Stage) -> None:
    stage.stop_time()
    locks, others = stage.locks(policy={"low": "fail_open"}), stage.locks()
    stage.plan.down("acquire")
    lease = await locks.lock("k", ttl=30, risk="low").acquire()
    stage.pass_time(100)
    assert lease.held  # there is no expiry in any store that could end it
    assert (lease.fence, lease.guaranteed) == (None, False)
    assert lease.remaining() == 30.0
    stage.plan.well()
    stage.pass_time(40)
    assert lease.guaranteed is True
    assert isinstance(lease.fence, int)
    assert (await others.inspect("k")).fence == lease.fence
    assert locks.statistics().promotions == 1
    stage.pass_time(100)
    assert lease.held
    assert await lease.release()
    assert not await others.lock("k").locked()


async def test_a_promoted_lease_without_auto_renew_is_not_renewed(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks(policy={"low": "fail_open"})
    stage.plan.down("acquire")
    lease = await locks.lock("k", ttl=30, risk="low", auto_renew=False).acquire()
    stage.plan.well()
    stage.pass_time(16)
    assert lease.guaranteed
    stage.pass_time(60)
    assert stage.plan.calls["renew_many"] == 0
    assert lease.lost.reason == "expired"


@pytest.mark.requires("R98")
async def test_a_degraded_lease_whose_key_turns_out_to_be_taken_is_lost(stage: Stage) -> None:
    stage.stop_time()
    locks, others = stage.locks(policy={"low": "fail_open"}), stage.locks()
    stage.plan.down("acquire")
    lease = await locks.lock("k", ttl=30, risk="low").acquire()
    stage.plan.well()
    newer = await others.lock("k", ttl=30).acquire()
    stage.pass_time(16)
    assert lease.lost.reason == "stolen"
    assert newer.held
    assert not await lease.release()
    assert (await others.inspect("k")).fence == newer.fence


async def test_renewing_or_releasing_a_degraded_lease_sends_nothing(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks(policy={"low": "fail_open"})
    stage.plan.down()
    lease = await locks.lock("k", ttl=30, risk="low").acquire()
    await lease.renew()
    assert await lease.release()
    assert stage.plan.calls["renew_many"] == stage.plan.calls["release"] == 0


async def test_a_degraded_lease_knows_max_hold_and_stalling_too(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks(policy={"low": "fail_open"})
    stage.plan.down()
    capped = await locks.lock("a", ttl=30, risk="low", max_hold=50).acquire()
    stalled = await locks.lock("b", ttl=30, risk="low", stall_after=20).acquire()
    stage.pass_time(49)
    assert stalled.lost.reason == "stalled"
    assert capped.held
    stage.pass_time(2)
    assert capped.lost.reason == "max_hold"


async def test_the_wait_policy_outlasts_an_outage(stage: Stage) -> None:
    locks = stage.locks(policy={"patient": "wait"})
    stage.plan.down("acquire")

    async def take() -> int | None:
        async with locks.lock("k", ttl=5, risk="patient") as lease:
            return lease.fence

    waiting = stage.start(take())
    await stage.until(lambda: stage.plan.calls["acquire"] >= 2, "it has tried")
    stage.plan.well()
    assert isinstance(await waiting.result(), int)
    assert locks.statistics().fallbacks == 0


async def test_the_wait_policy_ends_with_the_callers_patience_and_the_error_of_the_store(stage: Stage) -> None:
    locks = stage.locks(policy={"patient": "wait"})
    stage.plan.down("acquire")
    with pytest.raises(Unavailable, match=r"^(connection refused|the store has been failing)"):
        await locks.lock("k", ttl=5, risk="patient").acquire(timeout=0.05)
    assert "timed_out" in stage.notes.kinds()


@pytest.mark.requires("R74", "R104")
async def test_the_policy_is_switched_at_run_time_by_call(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    locks = stage.locks()
    lock = locks.lock("k", ttl=5, risk="low")
    stage.plan.down("acquire")
    with pytest.raises(PolicyDenied):
        await lock.acquire()
    change = locks.policy.set("low", "fail_open", reason="incident 7", actor="ada")
    assert (change.risk, change.before, change.after, change.reason) == (
        "low",
        "fail_closed",
        "fail_open",
        "incident 7",
    )
    lease = await lock.acquire()
    assert not lease.guaranteed
    await lease.release()
    locks.policy.set("low", "fail_closed", reason="over")
    with pytest.raises(PolicyDenied):
        await lock.acquire()
    assert [each.actor for each in locks.policy.history()] == ["ada", "the-stage"]
    assert locks.policy.current() == {"low": "fail_closed"}
    assert "error policy switched" in caplog.text
    assert stage.notes.kinds().count("policy") == 2


@pytest.mark.requires("R104")
async def test_the_policy_is_switched_at_run_time_by_file_and_a_bad_file_changes_nothing(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[risk]\nlow = "fail_closed"\n')
    locks = stage.locks(policy_file=file)
    lock = locks.lock("k", ttl=5, risk="low")
    stage.plan.down("acquire")
    with pytest.raises(PolicyDenied):
        await lock.acquire()
    file.write_text('[risk]\nlow = "fail_open"\nother = "wait"\n')
    lease = await lock.acquire()
    assert not lease.guaranteed
    await lease.release()
    for bad in ('[risk]\nlow = "maybe"\n', "not toml at all [", "[other]\n", ""):
        file.write_text(bad)
        lease = await lock.acquire()
        assert not lease.guaranteed
        await lease.release()
    file.unlink()
    lease = await lock.acquire()
    await lease.release()
    assert locks.policy.current() == {"low": "fail_open", "other": "wait"}
    assert caplog.text.count("the policy file was not taken over") >= 4
    assert locks.policy.problem is not None
    file.write_text('[risk]\nlow = "fail_closed"\n')
    with pytest.raises(PolicyDenied):
        await lock.acquire()
    assert locks.policy.problem is None


@pytest.mark.requires("R104")
async def test_a_class_that_is_taken_out_of_the_file_fails_closed_again(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[risk]\nlow = "fail_open"\n')
    locks = stage.locks(policy_file=file)
    stage.plan.down("acquire")
    lease = await locks.lock("k", ttl=5, risk="low").acquire()
    await lease.release()
    file.write_text('[risk]\nother = "fail_open"\n')
    with pytest.raises(PolicyDenied):
        await locks.lock("k", ttl=5, risk="low").acquire()


@pytest.mark.requires("R104")
async def test_a_waiter_follows_a_switch_that_comes_while_it_waits(stage: Stage) -> None:
    locks = stage.locks(policy={"low": "wait"})
    stage.plan.down("acquire")
    waiting = stage.start(locks.lock("k", ttl=5, risk="low").acquire())
    await stage.until(lambda: stage.plan.calls["acquire"] >= 1, "it has tried")
    locks.policy.set("low", "fail_open", reason="incident 7")
    lease = await waiting.result()
    assert not lease.guaranteed
    await lease.release()


@pytest.mark.requires("R74")
async def test_an_outage_does_not_cost_a_timeout_for_each_attempt_and_the_store_is_tried_again(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    stage.plan.before["acquire"] = _hang(stage)
    for _ in range(50):
        with pytest.raises((Unavailable, Timeout)):
            await locks.lock("k", ttl=30).acquire()
    assert stage.plan.calls["acquire"] == 3
    assert locks.statistics().breaker_open
    assert not locks.health()
    assert "breaker" in locks.health().problems[0]
    stage.plan.well()
    stage.pass_time(1)  # the cool-down is over: one may probe
    lease = await locks.lock("k", ttl=30).acquire()
    assert not locks.statistics().breaker_open
    assert locks.health()
    await lease.release()


async def test_only_one_probe_is_out_while_the_breaker_is_open_and_each_failure_doubles_the_wait(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    stage.plan.down("acquire")
    asked = []
    for _ in range(600):
        stage.pass_time(0.1)
        with pytest.raises(Unavailable):
            await locks.lock("k", ttl=30).acquire()
        asked.append(stage.plan.calls["acquire"])
    assert asked[-1] < 15  # a minute of outage, ten attempts a second


def _hang(stage: Stage) -> Callable[[], object]:
    def hang() -> None:
        stage.clock.move(2_000_000_000)
        raise Timeout("no answer within 2 s")

    return hang


async def test_a_promotion_whose_answer_was_lost_leaves_no_key_behind(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks(policy={"low": "fail_open"})
    stage.plan.down("acquire")
    lease = await locks.lock("k", ttl=300, risk="low").acquire()
    stage.plan.well()
    stage.plan.silent("acquire")
    stage.pass_time(60)
    assert not lease.guaranteed
    assert await locks.lock("k").locked()  # it was granted, but the answer was lost
    await lease.release()
    stage.plan.well()
    stage.pass_time(5)
    assert not await locks.lock("k").locked()


@pytest.mark.requires("R90")
async def test_replicas_that_both_fell_back_run_twice_and_an_idempotent_effect_still_happens_once(stage: Stage) -> None:
    """What fail-open costs: the race is real, and only what stands downstream bounds it."""
    table = sqlite3.connect(":memory:")
    table.execute("CREATE TABLE effects (id TEXT PRIMARY KEY, by TEXT)")
    replicas = [stage.locks(policy={"low": "fail_open"}) for _ in range(2)]
    stage.plan.down("acquire")
    leases = [await each.lock("run:1", ttl=30, risk="low").acquire() for each in replicas]
    assert [lease.held for lease in leases] == [True, True]  # both are inside together
    accepted = [
        table.execute("INSERT OR IGNORE INTO effects VALUES ('run:1:step@1', ?)", (lease.owner,)).rowcount
        for lease in leases
    ]
    assert accepted == [1, 0]
    assert [each.statistics().fallbacks for each in replicas] == [1, 1]
    for lease in leases:
        await lease.release()
    table.close()
