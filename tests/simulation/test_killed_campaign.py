"""A campaign whose processes are killed or told to end: what its file says is true, and it continues from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import simulate

PATIENCE_S = 60.0
ADDED_UP = ("worlds", "lock_ns", "held_ns", "virtual_ns", "steps", "counts", "failed")


def until(holds: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"worlds": 0}
    return found


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def gone(pid: int) -> bool:
    """Ended; whether its exit code was collected does not matter."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes as Linux shows them")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_campaign_that_was_ended_goes_on_where_its_file_says(number: signal.Signals, tmp_path: Path) -> None:
    file, whole = tmp_path / "campaign.json", tmp_path / "whole.json"
    command = [sys.executable, "-m", "holdfast.testing.simulate", "--seeds", "1000000", "--jobs", "2"]
    with subprocess.Popen(
        [*command, "--campaign", str(file), "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        until(lambda: read(file)["worlds"] > 0, "nothing was kept")
        crew = children(process.pid)
        process.send_signal(number)
        ended = process.wait(PATIENCE_S)
    assert ended == (simulate.INTERRUPTED if number is signal.SIGTERM else -signal.SIGKILL)
    assert len(crew) >= 2
    until(lambda: all(map(gone, crew)), "its processes outlive it")
    kept = read(file)["worlds"]
    for place in (file, whole):
        assert simulate.main(["--seeds", str(kept + 2), "--jobs", "1", "--campaign", str(place), "--json"]) == 0
    assert {name: read(file)[name] for name in ADDED_UP} == {name: read(whole)[name] for name in ADDED_UP}
