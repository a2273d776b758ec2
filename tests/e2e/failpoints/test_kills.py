"""A process is killed at every failpoint in turn: the next one takes over, and loses nothing acknowledged."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.history.invariants import check
from holdfast.drills.model import Guard
from holdfast.drills.verdict.account import Account
from holdfast.drills.verdict.leases import overwritten
from holdfast.observe.ledger.reader import load
from holdfast.plane.model.job_states import JobState
from integration.failpoints.test_points import BY_LIVES, all_reached

TESTS = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)


def lives(script: str, place: Path) -> dict[str, Any]:
    """Run a script of lives, and return its summary."""
    done = subprocess.run(
        [sys.executable, "-m", f"e2e.failpoints.{script}", str(place)],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print({name: value for name, value in told.items() if name != "points"})
    return told


@pytest.mark.requires("R34", "R73")
def test_holders_killed_at_every_point_are_followed_at_once_and_lose_no_acknowledged_write(tmp_path: Path) -> None:
    told = lives("lease_lives", tmp_path)
    assert told["missed"] == 0, told
    assert told["killed"] >= 20, told
    assert {"flow.acquire.ask", "flow.renew.send", "flow.release.answered", "guard.admitted"} <= set(told["points"])
    assert {"store.sqlite.begin", "store.sqlite.written", "store.sqlite.committed"} <= set(told["points"])
    # One that was killed after its commit has written without saying so; one that said so has written.
    assert told["acknowledged"] <= told["balance"] <= told["lives"], told
    history = load(tmp_path / "ledger")
    with Account(tmp_path / "account.db", Guard.ON) as account:
        history += account.history()
    assert check(history) == []
    assert overwritten(history) == []


_TERMINAL = ", ".join(f"'{state}'" for state in JobState if state.terminal)
_ENDS = f"SELECT job, count(*) FROM plane_event WHERE after IN ({_TERMINAL}) GROUP BY job"


@pytest.mark.requires("R34", "R131")
def test_a_plane_killed_at_every_step_that_it_persists_does_everything_once(tmp_path: Path) -> None:
    told = lives("plane_lives", tmp_path)
    assert told["killed"] >= 0.9 * told["planned"], told  # how many works share a commit differs from life to life
    assert told["planned"] >= 80, told
    all_reached(told["points"], BY_LIVES)
    wanted = {f"job-{life}-{letter}@1" for life in range(told["lives"]) for letter in "ab"}
    wanted |= {f"run-{life}:{step}@1" for life in range(told["lives"]) for step in ("one", "two")}
    with closing(sqlite3.connect(tmp_path / "plane.db")) as plane:
        jobs = dict(plane.execute("SELECT id, state FROM plane_job"))
        ends = dict(plane.execute(_ENDS))
        runs = dict(plane.execute("SELECT id, status FROM plane_run"))
    assert jobs == dict.fromkeys(wanted, "SUCCEEDED")
    assert ends == dict.fromkeys(wanted, 1), "a job ends once"
    assert runs == {f"run-{life}": "succeeded" for life in range(told["lives"])}
    with closing(sqlite3.connect(tmp_path / "effects.db")) as data:
        effects = Counter(job for (job,) in data.execute("SELECT job FROM flow_effect"))
    assert effects == dict.fromkeys(wanted, 1), "a job may run twice, and has its effect once"
