"""Leases of a majority in simulated worlds: one holder and rising fences, whatever a minority does; and the limit.

The limit is the same as that of every lock of this kind: a node that forgets while a lease stands that exactly a
majority has granted. It is shown here, with what is left of the promises then, and with what repairs it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from holdfast.aio.lease import Lease
from holdfast.testing.sim.campaign.totals import replay_command
from holdfast.testing.sim.environment.host import SimHost
from holdfast.testing.sim.environment.network import Weather
from holdfast.testing.sim.worlds.faults import Fault, Profile, Swarm, draw_swarm
from holdfast.testing.sim.worlds.world import SimWorld, run_seed
from holdfast.types import MS, NS
from simulation import mutants_quorums as mutants
from support.harness.small_world import played

SEEDS = 60
OUTCOMES = {
    *("granted", "busy", "promoted", "forced", "node forgot", "node extended", "refused write"),
    *("lost expired", "lost stolen", "lost unconfirmed", "release_refused"),
}
ALL_FAULTS = {f"fault {fault}" for fault in Fault}


@pytest.mark.requires("R28")
def test_a_majority_grants_one_at_a_time_with_rising_fences_whatever_happens_to_a_minority() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        outcome = run_seed(seed, profile=Profile.QUORUM)
        found = "\n".join([*map(str, outcome.violations), replay_command(seed, Profile.QUORUM)])
        assert not outcome.violations, found
        counts.update({str(what): number for what, number in outcome.counts.items()})
    assert sorted((OUTCOMES | ALL_FAULTS) - counts.keys()) == []
    assert counts["handed"] > 10 * SEEDS


@pytest.mark.parametrize(
    ("plant", "rule", "seeds"),
    [
        (mutants.half_of_the_nodes_are_a_majority, "C4", [4, 9, 10]),
        (mutants.a_grant_counts_from_its_last_answer, "C4", [5, 7, 10, 13]),
        (mutants.votes_of_a_lost_election_are_kept, "C0", [3, 5, 10]),
        (mutants.the_highest_fence_is_told_at_once, "C2", [2, 3, 9]),
    ],
)
def test_a_planted_bug_of_a_quorum_is_found_in_one_of_these_worlds(
    plant: Callable[[pytest.MonkeyPatch], None], rule: str, seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all of them, when this was written; what a seed draws changes with the simulator."""
    plant(monkeypatch)
    assert any(each.rule == rule for seed in seeds for each in run_seed(seed, profile=Profile.QUORUM).violations)


def crowded(seed: int, faults: list[Fault], *, stays_away: bool = True) -> Swarm:
    """Five nodes in good weather, and four hosts that want one key for a few seconds each."""
    return replace(
        draw_swarm(seed, Profile.QUORUM),
        nodes=5,
        hosts=4,
        clients=1,
        keys=1,
        ttls_ns=[3 * NS],
        phase_ns=20 * NS,
        weather=Weather(),
        faults=faults,
        every_ns=200 * MS,
        drift_ppb=0,
        failpoints=0,
        cancels=0,
        apart_ns=0,
        stays_away=stays_away,
    )


def slow(seed: int) -> Swarm:
    """The same, and some requests take their time: more than a quorum waits for, and less than gives one up."""
    weather = Weather(slow=300, slowest_ns=200 * MS)
    return replace(
        crowded(seed, []),
        ttls_ns=[9 * NS],
        weather=weather,
        hedge_ns=5 * MS,
        phase_ns=60 * NS,
        request_timeout_ns=10 * NS,
    )


SLOW_SEEDS = range(70, 79)


def test_what_was_given_back_is_gone_from_every_node_however_slow_the_way_to_it_was() -> None:
    outcomes = [run_seed(seed, slow(seed)) for seed in SLOW_SEEDS]
    assert [each for outcome in outcomes for each in outcome.violations] == []
    assert sum(outcome.counts["handed"] for outcome in outcomes) > 50


def test_votes_that_come_late_and_are_kept_are_found_in_one_of_these_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.votes_that_come_late_are_kept(monkeypatch)
    assert any("was left behind" in str(each) for seed in SLOW_SEEDS for each in run_seed(seed, slow(seed)).violations)


def forgetful(seed: int, *, stays_away: bool) -> Swarm:
    """The nodes restart without their memory, one after the other, and hosts are cut off from some."""
    faults = [Fault.SERVER_FORGETS, Fault.SERVER_FORGETS, Fault.PARTITION]
    return crowded(seed, faults, stays_away=stays_away)


FORGETFUL_SEEDS = range(6)


def test_nodes_that_forget_and_answer_at_once_let_two_hold_a_lock_and_only_the_fence_tells_them_apart() -> None:
    found = [each for seed in FORGETFUL_SEEDS for each in run_seed(seed, forgetful(seed, stays_away=False)).violations]
    assert {each.rule for each in found} == {"C4"}  # two believe to hold it; no fence goes back and no write is lost


def test_nodes_that_stay_away_for_a_ttl_after_they_forgot_break_no_rule() -> None:
    for seed in FORGETFUL_SEEDS:
        assert run_seed(seed, forgetful(seed, stays_away=True)).violations == []


class CalmWorld(SimWorld):
    """Five nodes without random faults; the test controls every action."""

    def __init__(self) -> None:
        super().__init__(0, Swarm(profile=Profile.QUORUM, nodes=5, keys=1, hedge_ns=NS))

    def play(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run it to its end, and let nothing of it live on."""
        return played(self.loop, self.hosts, main)

    async def lease_on_three(self, host: SimHost) -> Lease:
        """A lease of the first three nodes alone; the host cannot reach the others."""
        for node in self.servers[3:]:
            self.network.block(host.name, node.name)
        lease = await host.locks.lock("key-0", ttl=10, auto_renew=False).acquire()
        assert isinstance(lease, Lease)
        assert [node.table.inspect("key-0") is not None for node in self.servers] == [True] * 3 + [False] * 2
        return lease


def restarted(forgotten: int, *, away_s: float) -> tuple[Lease | None, Lease, bool]:
    """One node of exactly a majority loses its memory; who gets the lock then, and does the first holder believe?"""
    world = CalmWorld()

    async def scenario() -> tuple[Lease | None, Lease, bool]:
        first, second = world.add_host(), world.add_host()
        old = await world.lease_on_three(first)
        node = world.servers[forgotten]
        node.forget(to_backup=False)
        node.down = away_s > 0
        if away_s:
            await asyncio.sleep(away_s)
            node.down = False
        new = await second.locks.lock("key-0", ttl=10).try_acquire()
        assert new is None or isinstance(new, Lease)
        return new, old, old.held

    result: tuple[Lease | None, Lease, bool] = world.play(scenario())
    return result


def test_the_first_node_of_exactly_a_majority_that_forgets_lets_another_in_with_a_higher_fence() -> None:
    new, old, believed = restarted(0, away_s=0)
    assert believed
    assert new is not None
    assert new.fence > old.fence


@pytest.mark.parametrize("forgotten", [1, 2])
def test_while_the_first_node_remembers_another_that_forgets_lets_nobody_in(forgotten: int) -> None:
    new, _, believed = restarted(forgotten, away_s=0)
    assert believed
    assert new is None


def test_a_node_that_stays_away_for_a_ttl_lets_nobody_in_before_the_old_holder_knows() -> None:
    new, old, believed = restarted(0, away_s=10)
    assert not believed
    assert new is not None
    assert new.fence > old.fence


@pytest.mark.parametrize("planted_bug", [False, True])
def test_a_holder_that_reaches_one_node_of_five_knows_that_it_has_lost(
    planted_bug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted, a renewal counts when any node has confirmed it: then two believe to hold the lock."""
    if planted_bug:
        mutants.one_node_renews_a_lease(monkeypatch)
    world = CalmWorld()

    async def scenario() -> tuple[bool, bool]:
        first, second = world.add_host(), world.add_host()
        old = await first.locks.lock("key-0", ttl=2).acquire()
        for node in world.servers[:4]:
            world.network.block(first.name, node.name)
        await asyncio.sleep(4)
        new = await second.locks.lock("key-0", ttl=2).try_acquire()
        seen = new is not None, old.held
        if new is not None:
            await new.release()
        await old.release()
        return seen

    assert world.play(scenario()) == (True, planted_bug)


def test_a_renewal_brings_a_lease_back_to_the_nodes_that_lost_it() -> None:
    world = CalmWorld()

    async def scenario() -> None:
        host = world.add_host()
        lease = await world.lease_on_three(host)
        world.network.heal()
        await lease.renew()
        await asyncio.sleep(1)
        assert [node.table.inspect("key-0") is not None for node in world.servers] == [True] * 5
        for node in world.servers[:2]:  # a minority again, and others than before
            node.forget(to_backup=False)
        await lease.renew()
        assert await lease.release()

    world.play(scenario())


def test_an_expired_lease_is_not_brought_back() -> None:
    world = CalmWorld()

    async def scenario() -> None:
        host = world.add_host()
        ports = host.locks.ports
        lease = await host.locks.lock("key-0", ttl=1, auto_renew=False).acquire()
        renewal = lease._lease_record.renewal
        await asyncio.sleep(2)
        assert await ports.store.renew_many([renewal], NS) == [False]
        await asyncio.sleep(1)
        assert [node.table.inspect("key-0") for node in world.servers] == [None] * 5

    world.play(scenario())
