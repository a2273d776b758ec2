"""The runner of periodic tasks, on virtual time: long ticks, lost leases, errors, stops, and bad settings."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import BadInput, Closed, FencedOut, Unavailable
from holdfast.plane.locks import registry as families
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.loops.loop import Loop, Tick
from holdfast.testing.sim.environment.host import virtual_locks
from holdfast.testing.sim.environment.loop import running_sim_loop
from support.harness.loop_fleet import FAMILY, SPREAD, TTL, P, fleet, now, virtually

# Long ticks.


@pytest.mark.parametrize("mode", Mode)
def test_a_tick_that_is_longer_than_the_ttl_keeps_its_lease_and_overlaps_no_other(mode: Mode) -> None:
    async def long(tick: Tick) -> None:
        for _ in range(15):
            await asyncio.sleep(TTL / 5)
            assert tick.more()

    async def scenario() -> None:
        async with fleet(mode, 0) as replica:
            for _ in range(3):
                await replica.add(long)
            await asyncio.sleep(20 * TTL)
            done = [each for each in replica.seen if each.ended is not None]
            assert len(done) >= 5
            for before, after in itertools.pairwise(replica.seen):
                assert before.ended is not None
                assert before.ended <= after.at
                assert before.ended - before.at == pytest.approx(3 * TTL)
            statistics = [loop.statistics() for loop in replica.loops.values()]
            assert sum(each.lost for each in statistics) == 0
            assert sum(each.late for each in statistics) > 0
            assert max(each.longest_ns for each in statistics) == pytest.approx(3 * TTL * 1e9)

    virtually(scenario)


@pytest.mark.parametrize("mode", Mode)
def test_a_tick_is_cut_short_when_its_lease_is_lost_and_the_loop_goes_on(mode: Mode) -> None:
    ends: list[BaseException | None] = []

    async def long(_: Tick) -> None:
        try:
            await asyncio.sleep(10 * TTL)
        except BaseException as error:
            ends.append(error)
            raise

    async def scenario() -> None:
        async with fleet(mode, 0) as replica:
            number = await replica.add(long, at_once=True)
            await asyncio.sleep(1)
            await replica.locks[number].force_release(FAMILY.key(), reason="a test")
            await asyncio.sleep(TTL / 3 + 5)  # the next renewal says that it is not ours
            assert isinstance(ends[0], asyncio.CancelledError)
            statistics = replica.loops[number].statistics()
            assert (statistics.lost, statistics.ticks, statistics.failed, statistics.interrupted) == (1, 0, 0, 0)
            await asyncio.sleep(P)
            assert replica.loops[number].statistics().took_over == 2
            assert len({each.fence for each in replica.seen}) == 2
            replica.loops[number]._grace_ns = 0  # the tick runs on, and the fleet is about to end

    virtually(scenario)


def test_a_paused_leader_begins_no_batch_after_another_has_taken_over() -> None:
    batches: list[tuple[float, int]] = []

    async def batch(tick: Tick) -> None:
        for _ in range(1000):
            if not tick.more():
                return
            batches.append((now(), tick.fence))
            await asyncio.sleep(0.1)

    async def scenario() -> None:
        async with fleet(Mode.STICKY, 0) as replica:
            first = await replica.add(batch, at_once=True)
            await asyncio.sleep(5)
            await replica.add(batch)
            replica.crash(first)
            await asyncio.sleep(TTL + P + 5)
            fence = batches[-1][1]
            assert fence > batches[0][1]
            replica.domains[first].resume(running_sim_loop())
            await asyncio.sleep(5)
            assert all(each == fence for at, each in batches if at > 5 + TTL)
            assert replica.loops[first].statistics().lost == 1

    virtually(scenario)


def test_a_window_that_runs_out_between_two_ticks_was_not_lost() -> None:
    async def scenario() -> None:
        async with fleet(Mode.ROTATING, 0) as replica:
            first = await replica.add(at_once=True)
            await asyncio.sleep(5)
            second = await replica.add()
            replica.crash(first)
            await asyncio.sleep(TTL + SPREAD)
            assert replica.seen[-1].replica == second
            replica.domains[first].resume(running_sim_loop())
            await asyncio.sleep(10 * P)
            assert all(gap >= P * 0.9 for gap in replica.gaps())
            assert {each.replica for each in replica.seen if each.at > 2 * TTL} == {first, second}
            assert [loop.statistics().lost for loop in replica.loops.values()] == [0, 0]

    virtually(scenario)


def test_a_lease_that_comes_together_with_the_stop_is_given_back_without_a_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with fleet(Mode.STICKY, 0) as replica:
            number = await replica.add()
            loop, locks = replica.loops[number], replica.locks[number]
            take = loop._leadership.take
            stopping: list[asyncio.Task[None]] = []

            async def taken() -> Any:
                lease = await take()
                stopping.append(asyncio.create_task(loop.stop()))
                return lease

            monkeypatch.setattr(loop._leadership, "take", taken)
            await asyncio.sleep(2 * P)
            await stopping[0]
            assert replica.seen == []
            assert loop.statistics().took_over == 1
            assert not (await locks.inspect(FAMILY.key())).held

    virtually(scenario)


# Trouble.


def test_a_tick_that_raises_is_counted_and_logged_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    errors = iter([ValueError("broken"), Unavailable("away"), FencedOut("stale", fence=1, seen=2)])

    async def failing(_: Tick) -> None:
        error = next(errors, None)
        if error is not None:
            raise error

    async def scenario() -> None:
        async with fleet(Mode.STICKY, 0) as replica:
            number = await replica.add(failing, at_once=True)
            await asyncio.sleep(5 * P + SPREAD)
            statistics = replica.loops[number].statistics()
            assert (statistics.failed, statistics.ticks, statistics.lost) == (3, 3, 0)

    with caplog.at_level(logging.ERROR, "holdfast.plane.loops"):
        virtually(scenario)
    failures = [record for record in caplog.records if "a tick failed" in record.message]
    assert [each.message.rpartition(": ")[2] for each in failures] == ["broken", "away", "stale"]
    assert [each.exc_info is not None for each in failures] == [True, False, True]


@pytest.mark.parametrize("mode", Mode)
def test_a_store_that_does_not_answer_costs_ticks_and_nothing_else(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with fleet(mode, 0) as replica:
            number = await replica.add()
            store = replica.locks[number].ports.store
            asked = 0

            async def away(*_: Any) -> Any:
                nonlocal asked
                asked += 1
                raise Unavailable("no store")

            with monkeypatch.context() as patched:
                patched.setattr(store, "acquire", away)
                await asyncio.sleep(5 * P)
            statistics = replica.loops[number].statistics()
            assert 4 <= statistics.skipped_error <= 6
            assert asked <= statistics.skipped_error
            assert statistics.skipped_busy == 0
            assert replica.seen == []
            await asyncio.sleep(P + SPREAD)
            assert replica.loops[number].statistics().ticks >= 1

    virtually(scenario)


def test_a_loop_whose_locks_were_closed_ends_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with fleet(Mode.STICKY, 2) as replica:
            await asyncio.sleep(2 * P)
            (leader,) = replica.leaders
            (waiting,) = set(replica.loops) - {leader}
            await replica.locks[waiting].close()
            await asyncio.sleep(2 * P)
            with pytest.raises(Closed):
                await replica.locks[waiting].hold("x", ttl=1)

    with caplog.at_level(logging.ERROR, "holdfast.plane.loops"):
        virtually(scenario)
    assert "stop loops first" in caplog.text


# Stopping.


@pytest.mark.parametrize("mode", Mode)
def test_a_stop_lets_a_tick_finish_within_the_grace_period_and_then_interrupts_it(mode: Mode) -> None:
    async def scenario() -> None:
        for takes, grace, whole in ((4.0, 5.0, True), (60.0, 5.0, False)):
            async with fleet(mode, 0) as replica:
                number = await replica.add(lambda _, takes=takes: asyncio.sleep(takes), at_once=True)  # type: ignore[misc]  # bound now
                await asyncio.sleep(1)
                began = now()
                await replica.loops[number].stop(grace=grace)
                assert now() - began == pytest.approx(3.0 if whole else grace, abs=0.01)
                statistics = replica.loops[number].statistics()
                assert (statistics.ticks, statistics.interrupted) == ((1, 0) if whole else (0, 1))
                assert not statistics.leader
                assert (await replica.locks[number].inspect(FAMILY.key())).held is (mode is Mode.ROTATING)

    virtually(scenario)


def test_a_long_tick_hears_that_the_loop_is_stopping() -> None:
    async def scenario() -> None:
        async def work(tick: Tick) -> None:
            while tick.more():  # noqa: ASYNC110 - this is what a tick does between its batches
                await asyncio.sleep(0.1)

        async with fleet(Mode.STICKY, 0) as replica:
            number = await replica.add(work, at_once=True)
            await asyncio.sleep(10)
            began = now()
            await replica.loops[number].stop(grace=60)
            assert now() - began <= 0.2
            assert replica.loops[number].statistics().ticks == 1

    virtually(scenario)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("after", [0.0, 3.0, 40.0, 95.0])
def test_a_loop_stops_at_once_whatever_it_waits_for(mode: Mode, after: float) -> None:
    async def scenario() -> None:
        async with fleet(mode, 3, seed=int(after)) as replica:
            await asyncio.sleep(after)
            began = now()
            for loop in replica.loops.values():
                await loop.stop()
            assert now() - began < 0.1

    virtually(scenario)


# Bad input.


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"family": families.SCHEDULER_JOB}, "family"),
        ({"family": replace(FAMILY, pattern="holdfast:{shard}")}, "family"),
        ({"interval": 0.001}, "interval"),
        ({"interval": -1}, "interval"),
        ({"interval": 1e9}, "interval"),
        ({"name": "two words"}, "name"),
        ({"mode": "both"}, "mode"),
        ({"grace": float("nan")}, "grace"),
    ],
)
def test_a_loop_that_cannot_be_is_refused(settings: dict[str, Any], field: str) -> None:
    async def nothing(_: Tick) -> None:
        """Do nothing."""

    async def scenario() -> None:
        locks = virtual_locks()
        given = {"name": "x", "family": FAMILY, "interval": P, "tick": nothing, "locks": locks, **settings}
        with pytest.raises(BadInput) as refused:
            Loop(**given)
        assert refused.value.field == field
        await locks.close()

    virtually(scenario)


def test_a_loop_is_started_once() -> None:
    async def scenario() -> None:
        async with fleet(Mode.STICKY, 1) as replica:
            with pytest.raises(BadInput, match="started before"):
                await replica.loops[0].start()
            await Loop("never", FAMILY, P, lambda _: asyncio.sleep(0), locks=replica.locks[0]).stop()

    virtually(scenario)
