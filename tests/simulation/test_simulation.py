"""The real locks in simulated worlds: many seeds, each with its own faults, and no rule broken in any of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import pytest

from holdfast.testing.sim.environment.network import Weather
from holdfast.testing.sim.worlds.faults import Fault, Profile, Swarm, draw_swarm
from holdfast.testing.sim.worlds.world import SimWorld, WorldOutcome, run_seed
from holdfast.testing.simulate import replay_command
from holdfast.types import MS, NS
from mutation.mutants_stores import fence_checked_on_writes_only
from support.campaigns import campaign

# Full campaigns run every world once: some of each profile in the test that checks the faults and outcomes they meet.
BUSY_SEEDS, BUSY_CHUNK, BUSY_LOOKED_AT = (
    420,
    20,
    40,
)  # the mutants are searched in the first of these (tests/mutation/detectors.py)
LONG_SEEDS, LONG_CHUNK = 80, 3
LOCK_HOURS_MIN = 1000
LONG = Profile.LONG
SMALL = 26  # a seed of small worlds
QUARTER = [seed for seed in range(LONG_SEEDS) if draw_swarm(seed, LONG).phase_ns == 15 * 60 * NS]
LONGER = [seed for seed in range(LONG_SEEDS) if seed not in QUARTER]

OUTCOMES = {
    *(f"fault {fault}" for fault in Fault),
    *("granted", "busy", "timed_out", "failed", "unconfirmed", "warned", "lost", "released", "release_refused"),
    *("release_failed", "compensated", "fell_back", "promoted", "forgot", "forced", "extended", "ended"),
    *("failpoint between", "failpoint before", "failpoint after"),
    *(f"lost {reason}" for reason in ("expired", "stolen", "unconfirmed", "max_hold", "stalled")),
    *("refused read", "refused write"),
}


def described(outcome: WorldOutcome) -> str:
    command = replay_command(outcome.seed, outcome.profile)
    return "\n".join([*map(str, outcome.violations), f"replay it with: {command}"])


def lived_through(seeds: Iterable[int], profile: Profile) -> Counter[str]:
    """Live through these worlds: nothing is broken, and none ends before all of its trouble has ended."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome, swarm = run_seed(seed, profile=profile), draw_swarm(seed, profile)
        assert not outcome.violations, described(outcome)
        assert outcome.lock_ns >= swarm.phase_ns * swarm.keys
        counts.update({str(what): number for what, number in outcome.counts.items()})
    return counts


@pytest.mark.requires("R1", "R4", "R7", "R19", "R45", "R47", "R65", "R108", "R117", "R119", "R123", "R124", "R127")
@pytest.mark.parametrize("first", range(0, campaign(3 * BUSY_CHUNK, BUSY_SEEDS - BUSY_LOOKED_AT), BUSY_CHUNK))
def test_no_rule_is_broken_whatever_goes_wrong(first: int) -> None:
    lived_through(range(first, first + BUSY_CHUNK), Profile.BUSY)


@pytest.mark.requires("R1", "R4", "R7", "R19", "R45", "R47", "R65", "R108", "R117", "R119", "R123", "R124", "R127")
@pytest.mark.parametrize("first", range(0, campaign(4 * LONG_CHUNK, len(LONGER)), LONG_CHUNK))
def test_no_rule_is_broken_in_worlds_of_hours_and_leases_of_minutes(first: int) -> None:
    lived_through(LONGER[first : first + LONG_CHUNK], LONG)


@pytest.mark.parametrize(
    ("profile", "seeds", "besides"),
    [
        (Profile.BUSY, range(BUSY_SEEDS - BUSY_LOOKED_AT, BUSY_SEEDS), set()),
        (LONG, QUARTER, {"late write"}),
    ],
    ids=["busy", "long"],
)
def test_the_seeds_of_this_suite_meet_every_kind_of_fault_and_of_outcome(
    profile: Profile, seeds: Iterable[int], besides: set[str]
) -> None:
    """A world in which nothing goes wrong proves nothing: what the suite relies on must really happen in it."""
    assert sorted((OUTCOMES | besides) - lived_through(seeds, profile).keys()) == []


def test_full_campaigns_run_500_seeds_and_1000_lock_hours() -> None:
    """Counts what the seeds draw; the campaigns check that no world ends early."""
    worlds = [draw_swarm(seed) for seed in range(BUSY_SEEDS)] + [draw_swarm(seed, LONG) for seed in range(LONG_SEEDS)]
    assert len(worlds) >= 500
    assert sum(swarm.phase_ns * swarm.keys for swarm in worlds) / NS / 3600 >= LOCK_HOURS_MIN


def test_what_a_long_world_is_like() -> None:
    for seed in range(LONG_SEEDS):
        swarm = draw_swarm(seed, LONG)
        assert 8 <= swarm.keys <= 40
        assert all(10 * NS <= ttl <= 120 * NS for ttl in swarm.ttls_ns)
        assert swarm.phase_ns >= 15 * 60 * NS
        assert swarm.every_ns >= 60 * NS


@pytest.mark.parametrize("profile", Profile)
def test_the_same_seed_is_the_same_world(profile: Profile) -> None:
    first, second, other = (run_seed(seed, profile=profile) for seed in (SMALL, SMALL, SMALL + 1))
    assert first.digest == second.digest
    assert (first.steps, first.lock_ns, first.held_ns) == (second.steps, second.lock_ns, second.held_ns)
    assert first.digest != other.digest


def test_a_busy_and_a_long_world_of_one_seed_have_nothing_in_common() -> None:
    assert draw_swarm(SMALL).ttls_ns != draw_swarm(SMALL, LONG).ttls_ns


def test_the_same_seed_is_the_same_world_in_another_process_with_other_hashes() -> None:
    code = (
        "from holdfast.testing.sim.worlds.faults import Profile\n"
        "from holdfast.testing.sim.worlds.world import run_seed\n"
        f"print([run_seed({SMALL}, profile=profile).digest for profile in Profile])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for hashes in ("1", "4242")
    }
    assert digests == {str([run_seed(SMALL, profile=profile).digest for profile in Profile])}


def test_an_update_that_a_fence_on_writes_alone_would_lose_is_met_in_a_good_share_of_worlds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The classic lost update needs an old holder that wakes up just when a new one has read and not yet written."""
    fence_checked_on_writes_only(monkeypatch)
    worlds = [run_seed(seed, profile=LONG) for seed in QUARTER[8:20]]
    assert sum(any(each.rule == "C6" for each in world.violations) for world in worlds) >= 3


@pytest.mark.requires("R30", "R65")
def test_long_pauses_and_network_delay_at_the_same_time_break_nothing() -> None:
    """Pauses of up to twice the TTL exactly between check and write, in a network whose delays exceed the TTL."""
    stale = 0
    for seed in range(12):
        swarm = Swarm(
            hosts=3,
            keys=1,
            ttls_ns=[500 * MS],
            weather=Weather(slow=150, slowest_ns=2 * NS),
            faults=[Fault.PAUSE],
            every_ns=500 * MS,
            failpoints=60,
            cancels=0,
        )
        world = SimWorld(seed, swarm)
        outcome = world.run()
        assert not outcome.violations, described(outcome)
        stale += sum(not record.ok for record in world.history if record.kind == "write")
    assert stale > 0  # stale writers did come, and were refused by the fence alone


def test_swarms_differ_from_each_other() -> None:
    assert len({str(draw_swarm(seed, profile)) for profile in Profile for seed in range(50)}) == 50 * len(Profile)
