"""Clocks that a drill moves: what a process sees, what its records mean then, and what is said where it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.history.events import EventKind, Record
from holdfast.drills.env import clocks
from holdfast.drills.env.clocks import Epoch, MovedClocks, Offsets, true_ns
from holdfast.drills.scenarios import suspend
from holdfast.errors import Misconfigured
from holdfast.types import NS

HOUR = 3600 * NS
LOOK = """
import json, sys, time
from pathlib import Path
from holdfast.drills.env.clocks import Offsets
mine = Offsets(Path(sys.argv[1]))
for _ in sys.stdin:
    told = [time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.monotonic_ns(), mine.true_now_ns()]
    print(json.dumps(told), flush=True)
"""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="clocks can be moved on Linux only")


@linux
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_a_running_process_sees_its_clocks_move_and_the_monotonic_one_stay(tmp_path: Path) -> None:
    with MovedClocks(tmp_path / "clock", clocks.built(tmp_path)) as moved:
        words = [sys.executable, "-c", LOOK, str(moved.path)]
        environment = {**os.environ, **moved.environment}
        with subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:

            def look() -> list[int]:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                found: list[int] = json.loads(process.stdout.readline())
                return found

            before = look()
            moved.jump(-3600)
            back = look()
            moved.jump(3600)
            moved.slept(3600)
            slept = look()
            process.communicate("")
    minute = 60 * NS  # far more than this takes, and far less than what was moved
    assert abs(back[0] + HOUR - before[0]) < minute
    assert back[1] - before[1] < minute
    assert abs(slept[0] - HOUR - before[0]) < minute
    assert abs(slept[1] - HOUR - before[1]) < minute
    assert 0 < slept[2] - before[2] < minute
    assert 0 < slept[3] - before[3] < minute, "it knows the true time all the while"


def test_times_of_a_clock_that_was_set_are_put_right() -> None:
    epochs = [Epoch(0, 0), Epoch(100 * NS, HOUR), Epoch(105 * NS, 0)]
    assert true_ns(99 * NS, epochs) == 99 * NS
    assert true_ns(101 * NS + HOUR, epochs) == 101 * NS
    assert true_ns(106 * NS, epochs) == 106 * NS
    deadline = 101 * NS  # reckoned at 99 s, before the clock was set
    assert true_ns(deadline, epochs[:2]) == deadline
    back = [Epoch(0, 0), Epoch(100 * NS, -HOUR)]
    assert true_ns(101 * NS - HOUR, back) == 101 * NS
    assert true_ns(99 * NS, back) == 99 * NS


def test_a_deadline_that_a_suspended_host_slept_through_passed_when_it_fell_asleep() -> None:
    epochs = [Epoch(0, 0), Epoch(100 * NS, HOUR, slept=True)]
    assert true_ns(101 * NS, epochs) == 100 * NS
    assert true_ns(99 * NS, epochs) == 99 * NS
    assert true_ns(102 * NS + HOUR, epochs) == 102 * NS


def test_all_times_of_a_record_are_corrected_and_nothing_else(tmp_path: Path) -> None:
    with MovedClocks(tmp_path / "clock", tmp_path / "none.so") as moved:
        moved.epochs.append(Epoch(100 * NS, HOUR))
        told = Record(EventKind.LOST, 102 * NS + HOUR, "k", fence=7, began_ns=99 * NS, until_ns=100 * NS + 1)
        right = moved.corrected(told)
    assert (right.at_ns, right.began_ns, right.until_ns) == (102 * NS, 99 * NS, 100 * NS + 1)
    assert (right.kind, right.key, right.fence) == (told.kind, told.key, told.fence)


def test_all_processes_with_the_file_read_the_same_offsets(tmp_path: Path) -> None:
    first, second = Offsets(tmp_path / "clock"), Offsets(tmp_path / "clock")
    first.wall_ns, first.boot_ns = -5, HOUR
    assert (second.wall_ns, second.boot_ns) == (-5, HOUR)
    first.close()
    second.close()


@linux
def test_without_a_compiler_the_drill_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(Misconfigured, match="gcc is missing: install gcc"):
        clocks.built(tmp_path)
    assert not suspend.namespaces()
    monkeypatch.setattr("shutil.which", lambda _: "/bin/false")
    with pytest.raises(Misconfigured, match="/bin/false cannot compile"):
        clocks.built(tmp_path)


def test_where_clocks_cannot_be_moved_the_drill_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(Misconfigured, match="on Linux only"):
        clocks.built(tmp_path)
