"""What can be seen: records, counts, health. And that looking never gets in the way."""

from __future__ import annotations

import threading

import pytest

from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.holds import HoldEnd, holds
from holdfast.core.history.invariants import check
from support.harness.leases import LIMIT_S, Notebook, Stage


async def test_an_observer_is_told_what_happened_in_order(stage: Stage) -> None:
    notebook = Notebook()
    stage.stop_time()
    locks = stage.locks(observers=[notebook])
    before = stage.clock.wall
    async with locks.lock("k", ttl=30, family="billing", risk="money") as lease:
        stage.pass_time(5)
    assert notebook.kinds() == ["granted", "released"]
    granted = notebook.records[0]
    assert (granted.key, granted.family, granted.fence, granted.risk) == ("k", "billing", lease.fence, "money")
    assert granted.owner == lease.owner
    assert granted.began_ns == before
    assert granted.until_ns is not None
    assert before < granted.until_ns < before + 30 * 10**9


async def test_a_loss_is_recorded_with_its_reason(stage: Stage) -> None:
    stage.stop_time()
    locks, operator = stage.locks(), stage.locks()
    lease = await locks.lock("k", ttl=30).acquire()
    await operator.force_release("k", reason="drill")
    stage.pass_time(11)
    lost = [record for record in stage.notes.records if record.kind is EventKind.LOST]
    assert [(record.reason, record.fence, record.ok) for record in lost] == [("stolen", lease.fence, False)]
    assert [record.detail for record in stage.notes.records if record.kind is EventKind.FORCED] == ["drill"]


async def test_an_observer_that_raises_is_logged_once_and_harms_nobody(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def note(self, record: Record) -> None:
            raise ZeroDivisionError("the observer's own")

    notebook = Notebook()
    locks = stage.locks(observers=[Broken(), notebook])
    for _ in range(3):
        async with locks.lock("k", ttl=5) as lease:
            assert lease.held
    assert notebook.kinds() == ["granted", "released"] * 3
    assert caplog.text.count("an observer failed") == 1


async def test_the_counts_add_up(stage: Stage) -> None:
    locks, others = stage.locks(), stage.locks()
    held = await others.lock("busy", ttl=30).acquire()
    for number in range(5):
        async with locks.lock(f"k{number}", ttl=30):
            assert locks.statistics().held == 1
    for _ in range(3):
        assert await locks.lock("busy", ttl=30).try_acquire() is None
    statistics = locks.statistics()
    assert (statistics.granted, statistics.released, statistics.busy, statistics.held) == (5, 5, 3, 0)
    assert (statistics.lost, statistics.store_errors, statistics.degraded, statistics.breaker_open) == (0, 0, 0, False)
    assert statistics.keeper_lag == 0.0
    await held.release()


async def test_the_counts_add_up_under_many_threads(threads: Stage) -> None:
    locks = threads.locks()

    async def work(number: int) -> None:
        for _ in range(200):
            async with locks.lock(f"k{number}", ttl=30):
                pass

    company = [threads.start(work(number)) for number in range(8)]
    for each in company:
        await each.result()
    statistics = locks.statistics()
    assert (statistics.granted, statistics.released) == (1600, 1600)


async def test_health_is_good_until_renewal_is_stuck(stage: Stage) -> None:
    locks = stage.locks()
    stuck = threading.Event()
    assert locks.health()
    assert locks.health().problems == ()
    await locks.lock("k", ttl=0.6).acquire()
    await stage.until(lambda: locks.statistics().renewed >= 1, "it is renewed")
    assert locks.health()
    stage.plan.before["renew_many"] = lambda: (stuck.wait(3 * LIMIT_S), None)[1]
    others = [await locks.lock(f"o{number}", ttl=30).acquire() for number in range(2)]
    try:
        await stage.until(lambda: stage.plan.calls["renew_many"] >= 2, "the keeper hangs")
        short = await locks.lock("short", ttl=3, renew_every=0.1).acquire()
        await stage.until(lambda: not locks.health(), "the probe fails")
        assert "behind" in locks.health().problems[0]
        assert locks.statistics().keeper_lag > 0
        assert short.held
    finally:
        stuck.set()
    for each in others:
        await each.release()


async def test_a_lease_that_was_broken_is_recorded_with_its_family_and_whose_it_was(stage: Stage) -> None:
    locks, operator = stage.locks(), stage.locks()
    lease = await locks.lock("k", ttl=30, family="billing").acquire()
    await operator.force_release("k", reason="drill", actor="ada")
    assert await operator.force_release("k", reason="it is not held") is None
    [forced] = [record for record in stage.notes.records if record.kind is EventKind.FORCED]
    assert (forced.family, forced.owner, forced.detail) == ("billing", "ada", "drill")
    assert forced.fence is not None
    assert forced.fence > lease.fence
    assert forced.facts == {"holder": lease.owner, "holder_fence": lease.fence}


async def test_the_end_of_a_degraded_lease_is_recorded_too(stage: Stage) -> None:
    locks = stage.locks(policy={"low": "fail_open"})
    stage.plan.down("acquire")
    async with locks.lock("k", ttl=5, family="f", risk="low"):
        pass
    assert stage.notes.kinds()[-2:] == ["fell_back", "let_go"]
    began, ended = stage.notes.records[-2:]
    assert (ended.key, ended.family, ended.owner, ended.fence) == ("k", "f", began.owner, None)
    assert [(hold.fence, hold.end) for hold in holds(stage.notes.records)] == [(None, HoldEnd.RELEASED)]
    assert check(stage.notes.records) == []
    assert locks.statistics().released == 0  # nothing was released at the store
