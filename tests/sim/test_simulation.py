"""The real locks in simulated worlds: many seeds, each with its own faults, and no rule broken in any of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from holdfast.testing.simfaults import Fault, Swarm, draw_swarm
from holdfast.testing.simnetwork import Weather
from holdfast.testing.simulate import replay_command
from holdfast.testing.simworld import Outcome, SimWorld, run_seed
from holdfast.types import MS, NS

SEEDS = 320
CHUNK = 20


def described(outcome: Outcome) -> str:
    return "\n".join([*map(str, outcome.violations), f"replay it with: {replay_command(outcome.seed)}"])


@pytest.mark.requires("R1", "R4", "R7", "R19", "R45", "R47", "R65", "R108", "R117", "R119", "R123", "R124", "R127")
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_rule_is_broken_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_seed(seed)
        assert not outcome.violations, described(outcome)


def test_the_seeds_of_this_suite_meet_every_kind_of_fault_and_of_outcome() -> None:
    """A world in which nothing goes wrong proves nothing: what the suite relies on must really happen in it."""
    kinds: Counter[str] = Counter()
    for seed in range(40):
        kinds.update({str(what): number for what, number in run_seed(seed).counts.items()})
    wanted = {
        *(f"fault {fault}" for fault in Fault),
        *("granted", "busy", "timed_out", "failed", "unconfirmed", "warned", "lost", "released", "release_refused"),
        *("release_failed", "compensated", "fell_back", "promoted", "forgot", "forced", "extended", "ended"),
        *("failpoint between", "failpoint before", "failpoint after"),
    }
    assert sorted(wanted - kinds.keys()) == []


def test_the_same_seed_is_the_same_world() -> None:
    first, second, other = run_seed(11), run_seed(11), run_seed(12)
    assert first.digest == second.digest
    assert first.steps == second.steps
    assert first.digest != other.digest


def test_the_same_seed_is_the_same_world_in_another_process_with_other_hashes() -> None:
    code = "from holdfast.testing.simworld import run_seed; print(run_seed(11).digest)"
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
    assert digests == {run_seed(11).digest}


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
    assert len({str(draw_swarm(seed)) for seed in range(50)}) == 50
