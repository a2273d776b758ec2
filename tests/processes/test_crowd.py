"""Thirty-two processes on one key: the history must read as if they had taken turns."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from processes.company import HERE, LIMIT_S, environment
from processes.worker import make_table

CROWD = 32
SECONDS = 3.0


@pytest.mark.requires("R2", "R28", "R47", "R56", "R57", "R58", "R69", "R86")
def test_a_crowd_of_processes_takes_turns_in_the_order_of_its_fences(url: str, tmp_path: Path) -> None:
    table = tmp_path / "table.db"
    make_table(str(table))
    histories = [tmp_path / f"{number}.jsonl" for number in range(CROWD)]
    crowd = [
        subprocess.Popen(
            [sys.executable, str(HERE / "crowd.py"), url, str(table), str(history), str(SECONDS)],
            env=environment(),
            stderr=subprocess.PIPE,
        )
        for history in histories
    ]
    try:
        for each in crowd:
            _, errors = each.communicate(timeout=LIMIT_S)
            assert each.returncode == 0, errors.decode()[-2000:]
    finally:
        for each in crowd:
            if each.poll() is None:
                each.kill()
                each.communicate()
    turns: list[dict[str, Any]] = [json.loads(line) for each in histories for line in each.read_text().splitlines()]
    check_turns(turns)
    assert len(turns) > CROWD, "so few turns prove nothing"
    last = max(turn["fence"] for turn in turns)
    with contextlib.closing(sqlite3.connect(table)) as connection:
        row = connection.execute("SELECT fence, writes FROM guarded").fetchone()
    assert row == (last, len(turns))


def check_turns(turns: list[dict[str, Any]]) -> None:
    """Sorted by fence, each turn ends before the next begins, and nobody's write was stale."""
    turns.sort(key=lambda turn: turn["fence"])
    fences = [turn["fence"] for turn in turns]
    assert len(set(fences)) == len(fences), "two grants with one fence"
    for earlier, later in itertools.pairwise(turns):
        assert earlier["ended"] <= later["began"], f"two were inside at once: {earlier} {later}"
    assert all(turn["accepted"] and turn["held"] and turn["released"] for turn in turns)


def test_the_checker_of_turns_finds_an_overlap() -> None:
    fine = {"accepted": True, "held": True, "released": True}
    with pytest.raises(AssertionError, match="two were inside"):
        check_turns([{"fence": 1, "began": 0, "ended": 10, **fine}, {"fence": 2, "began": 9, "ended": 20, **fine}])
    with pytest.raises(AssertionError, match="one fence"):
        check_turns([{"fence": 1, "began": 0, "ended": 1, **fine}, {"fence": 1, "began": 2, "ended": 3, **fine}])
