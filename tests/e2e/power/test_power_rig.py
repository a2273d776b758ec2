"""The rig that cuts the power finds losses where they are: in programs that do not sync, and in no others."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.power.checks import Lost, Said, check_sound, sharpest
from support.power.disk import HARSH, VARIANTS, Variant
from support.power.harness import PowerStage, Trace
from support.power.scenes import cut, moments, rerecorded

SEED = 4


def ran(stage: PowerStage, *words: Any) -> Trace:
    stage.begin()
    return rerecorded(stage, "power_child.py", words)


def every(trace: Trace, number: int, variants: Sequence[Variant]) -> dict[int, Sequence[Variant]]:
    """Some moments, each in all of these variants."""
    found = sorted({*sharpest(trace), *trace.before_syncs()})
    return dict.fromkeys(random.Random(SEED).sample(found, min(number, len(found))), variants)


def check_rows(image: Path, said: Sequence[Said]) -> None:
    """Everything that was committed is there."""
    try:
        if (image / "a.db").exists():
            check_sound(image / "a.db")
        with closing(sqlite3.connect(image / "a.db")) as connection:
            there = {number for (number,) in connection.execute("SELECT id FROM row")}
    except sqlite3.OperationalError:  # no table, or no file
        there = set()
    except sqlite3.DatabaseError as error:
        raise Lost(f"damaged: {error}") from error
    missing = {each["row"] for each in said} - there
    if missing:
        raise Lost(f"rows {sorted(missing)} are gone")


def check_content(image: Path, said: Sequence[Said]) -> None:
    """The file is whole, and not older than what was acknowledged."""
    least = max((each["content"] for each in said), default=-1)
    path = image / "file"
    data = path.read_bytes() if path.exists() else b""
    if data != data[:1] * 3000 and data:
        raise Lost("torn")
    if (data[0] if data else -1) < least:
        raise Lost(f"{least} was acknowledged")


def test_commits_that_are_synced_survive_every_loss_of_power(power_stage: PowerStage) -> None:
    trace = ran(power_stage, "commit", f"{power_stage.disk}/a.db", "FULL", 24)
    tally, losses = cut(power_stage, trace, every(trace, 14, VARIANTS), check_rows, SEED)
    assert losses == []
    assert tally.crashes == 70
    assert tally.acknowledged > 200


def test_commits_of_synchronous_normal_are_lost_and_the_file_stays_sound(power_stage: PowerStage) -> None:
    trace = ran(power_stage, "commit", f"{power_stage.disk}/a.db", "NORMAL", 24)
    _, losses = cut(power_stage, trace, moments(trace, random.Random(SEED), 24, 12), check_rows, SEED)
    assert sum("least" in each for each in losses) > 12
    assert not [each for each in losses if "damaged" in each or "integrity" in each]


def test_commits_of_synchronous_off_are_lost_and_damage_the_file(power_stage: PowerStage) -> None:
    trace = ran(power_stage, "commit", f"{power_stage.disk}/a.db", "OFF", 24)
    _, losses = cut(power_stage, trace, dict.fromkeys(sharpest(trace)[8:], ("least", "torn")), check_rows, SEED)
    assert [each for each in losses if "least" in each and "are gone" in each]
    assert [each for each in losses if "damaged" in each or "integrity" in each]


@pytest.mark.parametrize(
    ("file", "directory", "found"),
    [(True, True, set()), (True, False, {"acknowledged"}), (False, True, {"acknowledged", "torn"})],
    ids=["careful", "directory not synced", "content not synced"],
)
def test_a_file_that_is_replaced_needs_both_syncs(
    power_stage: PowerStage, file: bool, directory: bool, found: set[str]
) -> None:
    trace = ran(power_stage, "replace", f"{power_stage.disk}/file", file, directory, 20)
    where = dict.fromkeys(range(1, len(trace) + 1), ("least", *HARSH))
    tally, losses = cut(power_stage, trace, where, check_content, SEED)
    assert {each.rpartition(" ")[2] for each in losses} == found
    assert tally.crashes == 4 * len(trace)
