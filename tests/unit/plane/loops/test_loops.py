"""The runner of periodic tasks, on virtual time: how often it ticks, who ticks, and who takes over."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from holdfast.plane.locks import registry as families
from holdfast.plane.loops.cadence import Mode
from support.harness.loop_fleet import FAMILY, SPREAD, TTL, P, fleet, now, virtually

SEEDS = range(5)


# Cadence.


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_sticky_loop_ticks_once_in_every_interval(replicas: int, seed: int) -> None:
    async def scenario() -> None:
        async with fleet(Mode.STICKY, replicas, seed=seed) as replica:
            await asyncio.sleep(101 * P)
            assert 100 <= len(replica.seen) <= 102  # and not the half or a third of that
            assert all(P - SPREAD <= gap <= P + SPREAD for gap in replica.gaps())
            assert len({each.replica for each in replica.seen}) == 1
            assert len({each.fence for each in replica.seen}) == 1

    virtually(scenario)


@pytest.mark.requires("R46")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_rotating_loop_ticks_once_in_every_interval_too(replicas: int, seed: int) -> None:
    async def scenario() -> None:
        async with fleet(Mode.ROTATING, replicas, seed=seed) as replica:
            await asyncio.sleep(101 * P)
            assert all(P * 0.9 <= gap <= P * 1.2 for gap in replica.gaps())
            assert len(replica.seen) >= 93
            by_fence = itertools.groupby(replica.seen, key=lambda each: each.fence)
            windows = [[each.replica for each in group] for _, group in by_fence]
            assert all(len(set(window)) == 1 and len(window) <= 2 for window in windows)
            owners = [window[0] for window in windows]
            if replicas > 1:
                assert all(before != after for before, after in itertools.pairwise(owners))
                assert set(owners) == set(range(replicas))

    virtually(scenario)


@pytest.mark.requires("R46", "R51", "R54")
def test_a_rotating_hold_lasts_for_two_intervals_and_is_not_released_by_a_tick_or_a_stop() -> None:
    async def scenario() -> None:
        async with fleet(Mode.ROTATING, 0) as replica:
            number = await replica.add(at_once=True)
            await asyncio.sleep(1)
            held = await replica.locks[number].inspect(FAMILY.key())
            assert held.remaining == pytest.approx(TTL - 1)
            await replica.loops[number].stop()
            after = await replica.locks[number].inspect(FAMILY.key())
            assert (after.held, after.fence) == (True, held.fence)
            second = await replica.add()
            await asyncio.sleep(TTL - 2)
            assert [each.replica for each in replica.seen] == [number]
            await asyncio.sleep(1 + SPREAD)
            assert replica.seen[-1].replica == second

    virtually(scenario)


def test_replicas_that_start_together_do_not_tick_or_try_together() -> None:
    async def scenario() -> None:
        firsts = []
        for seed in range(20):
            async with fleet(Mode.STICKY, 1, seed=seed) as replica:
                began = now()
                await asyncio.sleep(P)
                firsts.append(replica.seen[0].at - began)
        assert max(firsts) - min(firsts) > P / 2
        assert all(0 <= first < P for first in firsts)

    virtually(scenario)


def test_a_loop_can_begin_at_once() -> None:
    async def scenario() -> None:
        async with fleet(Mode.STICKY, 0) as replica:
            await replica.add(at_once=True)
            await asyncio.sleep(1)
            assert [each.at for each in replica.seen] == [0.0]

    virtually(scenario)


# Takeover.


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", Mode)
def test_after_a_crash_another_replica_ticks_within_the_ttl_and_one_interval(mode: Mode, seed: int) -> None:
    async def scenario() -> None:
        async with fleet(mode, 3, seed=seed) as replica:
            await asyncio.sleep(4.3 * P)
            last = replica.seen[-1]
            replica.crash(last.replica)
            crashed = now()
            await asyncio.sleep(TTL + P)
            after = [each for each in replica.seen if each.at > crashed]
            assert after
            assert all(each.replica != last.replica for each in after)
            assert after[0].at - crashed <= TTL + SPREAD
            assert after[0].fence > last.fence

    virtually(scenario)


@pytest.mark.requires("R53")
@pytest.mark.parametrize("seed", SEEDS)
def test_snapshots_are_written_every_five_seconds_and_fifteen_after_a_crash_at_the_latest(seed: int) -> None:
    async def scenario() -> None:
        family = families.SNAPSHOT_WRITER
        async with fleet(Mode.STICKY, 3, seed=seed, family=family, interval=5.0) as replica:
            await asyncio.sleep(60)
            assert all(4.5 <= gap <= 5.5 for gap in replica.gaps())
            writer = replica.seen[-1].replica
            held = await replica.locks[writer].inspect(family.key())
            assert 0 < (held.remaining or 0) <= 10
            replica.crash(writer)
            crashed = now()
            await asyncio.sleep(15)
            assert replica.seen[-1].replica != writer
            assert next(each.at for each in replica.seen if each.at > crashed) - crashed <= 15

    virtually(scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_clean_stop_another_replica_leads_and_ticks_at_once(seed: int) -> None:
    async def scenario() -> None:
        async with fleet(Mode.STICKY, 3, seed=seed) as replica:
            await asyncio.sleep(4.3 * P)
            (leader,) = replica.leaders
            await replica.loops[leader].stop()
            stopped = now()
            await asyncio.sleep(0.5)
            (successor,) = replica.leaders
            assert successor != leader
            assert replica.seen[-1].replica == successor
            assert replica.seen[-1].at - stopped < 0.1
            assert replica.loops[leader].statistics().lost == 0
            await asyncio.sleep(10 * P)
            assert all(each.replica == successor for each in replica.seen if each.at > stopped)

    virtually(scenario)


def test_those_who_wait_count_the_ticks_that_they_skipped() -> None:
    async def scenario() -> None:
        async with fleet(Mode.STICKY, 2) as replica:
            await asyncio.sleep(20 * P)
            (leader,) = replica.leaders
            (other,) = set(replica.loops) - {leader}
            waited, led = replica.loops[other].statistics(), replica.loops[leader].statistics()
            assert 18 <= waited.skipped_busy <= 22
            assert (waited.ticks, waited.took_over, waited.leader, waited.fence) == (0, 0, False, None)
            assert (led.skipped_busy, led.took_over, led.lost, led.late) == (0, 1, 0, 0)
            assert led.ticks == len(replica.seen)
            assert led.fence == replica.seen[-1].fence
            assert led.last_tick_ns is not None

    virtually(scenario)
