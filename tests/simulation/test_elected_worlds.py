"""Leader election in simulated worlds: one leads, its work ends with its term, and the next one comes in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

import holdfast
from holdfast import LeaseLost
from holdfast.aio.lease import Lease
from holdfast.testing.sim.campaign.totals import replay_command
from holdfast.testing.sim.environment.host import virtual_locks, virtual_table
from holdfast.testing.sim.environment.loop import run_virtual
from holdfast.testing.sim.worlds.faults import Profile
from holdfast.testing.sim.worlds.world import run_seed
from simulation import mutants_scenes as mutants

SEEDS = 30
OUTCOMES = {
    "term",
    "succession",
    "lost expired",
    "lost stolen",
    "lost unconfirmed",
    "forgot",
    "forced",
    "refused write",
}


@pytest.mark.requires("R65")
def test_no_two_lead_and_every_leader_is_followed_in_time() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        outcome = run_seed(seed, profile=Profile.ELECTED)
        found = "\n".join([*map(str, outcome.violations), replay_command(seed, Profile.ELECTED)])
        assert not outcome.violations, found
        counts.update({str(what): number for what, number in outcome.counts.items()})
    assert sorted(OUTCOMES - counts.keys()) == []
    assert counts["succession"] >= 3 * SEEDS  # a first leader, a resignation and a death, for each leadership


@pytest.mark.parametrize(
    ("plant", "rule", "text", "seeds"),
    [
        (mutants.a_lost_term_is_not_cancelled, "C4", "goes on", [35, 51]),
        (mutants.a_leader_goes_on_after_its_deadline, "C10", "after the local deadline", [0, 5, 8]),
        (mutants.a_leader_resigns_without_a_word, "C0", "a leader has resigned", [0, 1]),
    ],
)
def test_a_planted_bug_of_an_election_is_found_in_one_of_these_worlds(
    plant: Callable[[pytest.MonkeyPatch], None],
    rule: str,
    text: str,
    seeds: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In all of them, when this was written; what a seed draws changes with the simulator."""
    plant(monkeypatch)
    worlds = [run_seed(seed, profile=Profile.ELECTED).violations for seed in seeds]
    assert any(each.rule == rule and text in each.text for found in worlds for each in found)


@pytest.mark.parametrize("others", [[], [ZeroDivisionError("planted")]], ids=["the loss alone", "something else too"])
def test_a_loss_that_tasks_of_a_group_find_ends_the_term_and_not_the_candidacy(others: list[Exception]) -> None:
    """Found by these worlds: the group came out of `run`, and the candidate was none any more."""
    fences: list[int] = []

    async def find(lease: Lease) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            lease.ensure_held()

    async def fail() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise others[0]

    async def main(lease: Lease) -> str:
        fences.append(lease.fence)
        if len(fences) == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(find(lease))
                group.create_task(find(lease))
                if others:
                    group.create_task(fail())
        return "led"

    async def scenario() -> str:
        table = virtual_table()
        leader = virtual_locks(table).leader("scheduler")
        running = asyncio.ensure_future(leader.run(main))
        await asyncio.sleep(5)
        await virtual_locks(table, name="operator").force_release("scheduler", reason="drill")
        return await running

    if others:
        with pytest.raises(ExceptionGroup) as raised:
            run_virtual(scenario())
        assert raised.group_contains(ZeroDivisionError)
        assert len(fences) == 1
    else:
        assert run_virtual(scenario()) == "led"
        assert fences[1] > fences[0]


def test_the_same_holds_in_blocking_code() -> None:
    fences: list[int] = []

    def main(lease: holdfast.Lease) -> str:
        fences.append(lease.fence)
        if len(fences) == 1:
            raise ExceptionGroup("threads", [LeaseLost("lost", key=lease.key, reason="stolen", fence=lease.fence)])
        return "led"

    with holdfast.connect("memory://") as locks:
        assert locks.leader("scheduler").run(main) == "led"
    assert fences[1] > fences[0]
