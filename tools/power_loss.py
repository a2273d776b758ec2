"""Cut the power again and again, at random moments of recorded runs, and say what was lost.

    python tools/power_loss.py                          each scene once
    python tools/power_loss.py --rounds 20 --seed 5     each scene twenty times, with other seeds each time
    python tools/power_loss.py plane files              only these

Each round records a program once and then cuts the power at many moments of that run: after acknowledgements, with
nothing on the disk that was not synced, and before syncs, with any part of what was under way. A line for each scene
says how many crashes were tried, how many acknowledgements were looked for on what was left, and what was lost. The
exit code is 1 if anything was. A loss is named by its seed and moment.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pages import ROOT

sys.path[:0] = [str(ROOT / "tests")]

from support.power.checks import Tally  # noqa: E402 - the rig is part of the tests, and those are found only now
from support.power.harness import PowerStage, compiled, why_not  # noqa: E402 - as above
from support.power.postgres_scene import cut_postgres  # noqa: E402 - as above
from support.power.scenes import SCENES, cut, moments, recorded  # noqa: E402 - as above

SIZES = {"plane": 60, "leases": 40, "files": 30, "ledger": 120, "policy": 10}
POSTGRES = "postgres"


def main(words: Sequence[str] | None = None) -> int:
    """Run what is requested, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenes", nargs="*", help=f"some of {', '.join((*SCENES, POSTGRES))}; none: all")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is recorded")
    parser.add_argument("--crashes", type=int, default=60, help="of each kind, in each round")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    asked = parser.parse_args(words)
    unknown = set(asked.scenes) - {*SCENES, POSTGRES}
    if unknown or min(asked.rounds, asked.crashes) < 1:
        parser.error(f"there is no scene {sorted(unknown)}" if unknown else "give at least 1")
    if reason := why_not():
        print(reason)
        return 1
    lost = 0
    place = Path(tempfile.mkdtemp(prefix="hf-power-"))
    try:
        library = compiled(place)
        for name in asked.scenes or (*SCENES, POSTGRES):
            began, total, losses = time.monotonic(), Tally(), list[str]()
            for seed in range(asked.seed, asked.seed + asked.rounds):
                tally, found = once(name, place, library, seed, asked.crashes)
                total.crashes += tally.crashes
                total.acknowledged += tally.acknowledged
                losses += found
            lost += len(losses)
            took = time.monotonic() - began
            print(
                f"{name}: {asked.rounds} runs, {total.crashes} crashes, {total.acknowledged} acknowledgements looked "
                f"for, {len(losses)} losses, {took:.0f} s",
                flush=True,
            )
            print(*losses[:20], sep="\n", end="\n" if losses else "")
    finally:
        shutil.rmtree(place)
    return 1 if lost else 0


def once(name: str, place: Path, library: Path, seed: int, crashes: int) -> tuple[Tally, list[str]]:
    """Record a scene, and cut its power."""
    chance = random.Random(seed)
    if name == POSTGRES:
        return cut_postgres(library, seed, max(1, crashes // 10))
    directory = place / f"{name}-{seed}"
    directory.mkdir()
    stage = PowerStage(directory, library)
    trace = recorded(stage, SCENES[name], SIZES[name])
    where = moments(trace, chance, crashes, crashes)
    done = cut(stage, trace, where, SCENES[name].check, seed)
    shutil.rmtree(directory)
    return done


if __name__ == "__main__":
    sys.exit(main())
