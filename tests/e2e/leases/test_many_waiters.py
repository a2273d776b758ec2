"""Thirty-two processes on one key: the history must read as if they had taken turns."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.load.processes import HERE, LIMIT_S, environment
from support.load.worker import make_table

CROWD = 32
TURNS = 4  # of each


@pytest.mark.requires("R2", "R28", "R47", "R56", "R57", "R58", "R69", "R86")
def test_a_crowd_of_processes_takes_turns_in_the_order_of_its_fences(url: str, tmp_path: Path) -> None:
    table = tmp_path / "table.db"
    make_table(str(table))
    histories = tmp_path / "histories"
    histories.mkdir()
    crowd = subprocess.Popen(
        [sys.executable, str(HERE / "waiters.py"), url, str(table), str(histories), str(CROWD), str(TURNS)],
        env=environment(),
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that none of it outlives a test that has failed
    )
    try:
        errors = errors_at_end(crowd, histories)
        assert crowd.returncode == 0, errors[-2000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(crowd.pid, signal.SIGKILL)
        crowd.communicate()
    written = [each.read_text().splitlines() for each in histories.iterdir()]
    assert [len(lines) for lines in written] == [TURNS] * CROWD
    turns: list[dict[str, Any]] = [json.loads(line) for lines in written for line in lines]
    check_turns(turns)
    last = max(turn["fence"] for turn in turns)
    with contextlib.closing(sqlite3.connect(table)) as connection:
        row = connection.execute("SELECT fence, writes FROM guarded").fetchone()
    assert row == (last, len(turns))


def errors_at_end(crowd: subprocess.Popen[bytes], histories: Path) -> str:
    """Wait for the processes for as long as they take turns. How long that takes depends on the machine."""
    taken = 0
    while True:
        try:
            return crowd.communicate(timeout=LIMIT_S)[1].decode()
        except subprocess.TimeoutExpired:
            before, taken = taken, sum(len(each.read_text().splitlines()) for each in histories.iterdir())
            assert taken > before, f"after {taken} turns, no turn was taken for {LIMIT_S:.0f} s"


def check_turns(turns: list[dict[str, Any]]) -> None:
    """Sorted by fence, each turn ends before the next begins, and no write was stale."""
    turns.sort(key=lambda turn: turn["fence"])
    fences = [turn["fence"] for turn in turns]
    assert len(set(fences)) == len(fences), "two grants with one fence"
    for earlier, later in itertools.pairwise(turns):
        assert earlier["ended"] <= later["began"], f"two held it at the same time: {earlier} {later}"
    assert all(turn["accepted"] and turn["held"] and turn["released"] for turn in turns)


def test_the_checker_of_turns_finds_an_overlap() -> None:
    fine = {"accepted": True, "held": True, "released": True}
    with pytest.raises(AssertionError, match="two held it at the same time"):
        check_turns([{"fence": 1, "began": 0, "ended": 10, **fine}, {"fence": 2, "began": 9, "ended": 20, **fine}])
    with pytest.raises(AssertionError, match="one fence"):
        check_turns([{"fence": 1, "began": 0, "ended": 1, **fine}, {"fence": 1, "began": 2, "ended": 3, **fine}])
