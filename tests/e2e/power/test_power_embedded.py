"""A loss of power takes nothing that was acknowledged: the plane in one file, leases, guarded files, the ledger."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.power.checks import PLANE, Said, check_ends, check_fence_without_a_clock, check_sound, sharpest
from support.power.disk import VARIANTS, crashes
from support.power.harness import PowerStage
from support.power.power_plane_child import settings
from support.power.scenes import SCENES, cut, moments, recorded, rerecorded

SEED = 11

pytestmark = pytest.mark.timeout(300)  # hundreds of disks, on machines that are busy


def test_a_plane_in_one_file_keeps_what_it_acknowledged_and_every_job_comes_to_its_end(power_stage: PowerStage) -> None:
    chance = random.Random(SEED)
    trace = recorded(power_stage, SCENES["plane"], 24)
    tally, losses = cut(power_stage, trace, moments(trace, chance, 20, 20), SCENES["plane"].check, SEED)
    assert losses == []
    assert tally.crashes == 40
    assert tally.acknowledged > 500

    # And it continues from there without help.
    spoken = [moment for moment, what in trace.said() if "submitted" in what]
    for moment, _, image in crashes(power_stage, trace, {chance.choice(spoken[8:]): ["least", "torn"]}, SEED):
        asyncio.run(check_ends(settings(f"sqlite:///{image / PLANE}"), trace.said_by(moment)))
        check_sound(image / PLANE)


@pytest.mark.parametrize(("name", "size", "number"), [("leases", 16, 10), ("files", 12, 40), ("ledger", 45, 40)])
def test_it_keeps_what_it_acknowledged(power_stage: PowerStage, name: str, size: int, number: int) -> None:
    trace = recorded(power_stage, SCENES[name], size)
    where = moments(trace, random.Random(SEED), number, number)
    tally, losses = cut(power_stage, trace, where, SCENES[name].check, SEED)
    assert losses == []
    assert tally.crashes >= number
    assert tally.acknowledged > 3 * size


@pytest.mark.parametrize("synchronous", ["full", "normal"])
def test_fences_need_synchronous_full_where_the_clock_cannot_be_trusted_after_a_power_failure(
    power_stage: PowerStage, synchronous: str
) -> None:
    power_stage.begin()
    place = f"sqlite:///{power_stage.disk}/l.db?synchronous={synchronous}"
    trace = rerecorded(power_stage, "power_plane_child.py", ["leases", place, 8])
    _, losses = cut(power_stage, trace, dict.fromkeys(sharpest(trace), ("least",)), _late, SEED)
    assert len(losses) == (0 if synchronous == "full" else 8)


def _late(image: Path, said: Sequence[Said]) -> None:
    check_fence_without_a_clock(image / "l.db", said)


def test_a_policy_that_was_switched_stays_so(power_stage: PowerStage) -> None:
    trace = recorded(power_stage, SCENES["policy"], 6)
    where = dict.fromkeys(range(1, len(trace) + 1), VARIANTS)
    _, losses = cut(power_stage, trace, where, SCENES["policy"].check, SEED)
    assert losses == []
