"""Sixteen processes on one key, of which some are killed in the middle of their turns: no two turns overlap."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.load.processes import HERE, environment

CROWD = 16
KILLS = 5
LIMIT_S = 180.0


@pytest.mark.timeout(300)
@pytest.mark.requires("R2", "R28", "R58", "R87")
def test_no_turn_begins_before_the_one_of_a_killed_holder_has_ended(url: str, tmp_path: Path) -> None:
    histories = tmp_path / "histories"
    histories.mkdir()
    crowd = subprocess.Popen(
        [sys.executable, str(HERE / "mortal_holders.py"), url, str(histories), str(CROWD), str(KILLS)],
        env=environment(),
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that none of it outlives a test that has failed
    )
    try:
        _, errors = crowd.communicate(timeout=LIMIT_S)
        assert crowd.returncode == 0, errors.decode()[-2000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(crowd.pid, signal.SIGKILL)
        crowd.communicate()
    turns, killed = read(histories)
    assert killed == KILLS
    assert len(turns) > CROWD + KILLS
    check_turns(turns)


def read(histories: Path) -> tuple[list[dict[str, int]], int]:
    """All turns, and how many of them ended with their process."""
    turns: list[dict[str, int]] = []
    killed = 0
    for history in histories.glob("*.jsonl"):
        open_turn: dict[str, Any] | None = None
        for line in map(json.loads, history.read_text().splitlines()):
            if "began" in line:
                open_turn = line
            elif open_turn is not None:
                killed += "killed" in line
                turns.append({**open_turn, "ended": line.get("killed") or line["ended"]})
                open_turn = None
    return turns, killed


def check_turns(turns: list[dict[str, int]]) -> None:
    """Sorted by fence, each turn ends before the next begins."""
    turns.sort(key=lambda turn: turn["fence"])
    for earlier, later in itertools.pairwise(turns):
        assert earlier["fence"] < later["fence"], "two grants with one fence"
        assert earlier["ended"] <= later["began"], f"two held it at the same time: {earlier} {later}"


def test_the_checker_finds_an_overlap() -> None:
    with pytest.raises(AssertionError, match="two held it at the same time"):
        check_turns([{"fence": 1, "began": 0, "ended": 10}, {"fence": 2, "began": 9, "ended": 20}])
