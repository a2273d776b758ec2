"""What is recorded, what it has to keep, and where its power is cut: for the tests and for `tools/power_loss.py`.

A `Scene` is a program of `power.processes`, which is recorded once; each `cut` of it makes as many disks as wanted. The
moments of `least` are those at which something was just acknowledged and nothing else is on the disk: where a loss
shows. The others are those just before a sync, when most is under way: where damage shows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support.power.checks import (
    Lost,
    Said,
    Tally,
    check_files,
    check_leases,
    check_ledger,
    check_plane,
    check_policy,
    sharpest,
)
from support.power.disk import HARSH, Variant, after, crashes
from support.power.harness import PowerStage, Trace

PROGRAMS: Final = Path(__file__).resolve().parent
TESTS: Final = PROGRAMS.parents[1]

Check = Callable[[Path, Sequence[Said]], None]


@dataclass(frozen=True)
class Scene:
    """A program, and what must hold on every disk that it may leave."""

    program: str
    arguments: Callable[[PowerStage, int], Sequence[Any]]  # of a size, about a number of acknowledgements
    check: Check
    folder: str | None = None  # one that has to be there
    script: str = "power_plane_child.py"


SCENES: Final[Mapping[str, Scene]] = {
    "plane": Scene("plane", lambda _, size: [size], check_plane),
    "leases": Scene(
        "leases",
        lambda stage, size: [f"sqlite:///{stage.disk}/l.db", size],
        lambda at, said: check_leases(at / "l.db", said),
    ),
    "files": Scene(
        "files", lambda stage, size: [f"{stage.disk}/f", size], lambda at, said: check_files(at / "f", said), folder="f"
    ),
    "ledger": Scene(
        "ledger", lambda stage, size: [f"{stage.disk}/l", size], lambda at, said: check_ledger(at / "l", said)
    ),
    "policy": Scene(
        "policy", lambda stage, size: [f"{stage.disk}/p.toml", size], lambda at, said: check_policy(at / "p.toml", said)
    ),
}


def recorded(stage: PowerStage, scene: Scene, size: int) -> Trace:
    """Run the program to its end. Nothing that it did to its files was missed."""
    if scene.folder is not None:
        (stage.disk / scene.folder).mkdir()
    stage.begin()
    return rerecorded(stage, scene.script, [scene.program, *scene.arguments(stage, size)])


def rerecorded(stage: PowerStage, script: str, words: Sequence[Any], *, settled: bool = True) -> Trace:
    """Run a program on a stage that has begun. `settled`: no other process writes there, so that it can be compared."""
    paths = f"{TESTS.parent / 'src'}:{TESTS}"
    stage.run(
        [str(PROGRAMS / script), json.dumps(words)],
        PYTHONPATH=paths,
        XDG_STATE_HOME=str(stage.disk / "state"),
    )
    trace = stage.trace()
    assert trace.said(), "nothing was acknowledged"
    missed = after(stage, trace).differences(stage) if settled else []
    assert missed == [], f"changed and not recorded: {missed}"
    return trace


def moments(trace: Trace, chance: random.Random, losses: int, damages: int) -> dict[int, list[Variant]]:
    """Where to cut: after acknowledgements with nothing else on the disk, and before syncs with anything."""
    chosen: dict[int, list[Variant]] = {}
    spoken, syncs = sharpest(trace), trace.before_syncs()
    for moment in chance.sample(spoken, min(losses, len(spoken))):
        chosen.setdefault(moment, []).append("least")
    for moment in chance.sample(syncs, min(damages, len(syncs))):
        chosen.setdefault(moment, []).append(chance.choice(HARSH))
    return chosen


def cut(
    stage: PowerStage, trace: Trace, where: Mapping[int, Sequence[Variant]], check: Check, seed: int
) -> tuple[Tally, list[str]]:
    """Cut the power at these moments. How much was tried, and what was lost."""
    tally, losses = Tally(), []
    for moment, variant, image in crashes(stage, trace, where, seed):
        said = trace.said_by(moment)
        tally.count(said)
        try:
            check(image, said)
        except Lost as lost:
            losses.append(f"seed {seed}, moment {moment} of {len(trace)}, {variant}: {lost}")
    return tally, losses
