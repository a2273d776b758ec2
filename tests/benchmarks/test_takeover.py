"""Takeover after `kill -9` of leaders, measured shortly. The time depends on the machine, and is not checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[2]


def measured(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.takeover", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.server
@pytest.mark.requires("R111", "R115")
def test_every_name_whose_leader_is_killed_gets_another_one(postgres_server: PostgresServer, tmp_path: Path) -> None:
    times = ("--lease", "2", "--renew-deadline", "1.2", "--retry", "0.3")
    with postgres_server.database() as postgres:
        urls = [f"sqlite:///{tmp_path}/leases.db", postgres]
        done = measured(*urls, "--leaders", "3", "--processes", "1", *times, "--json")
    assert done.returncode == 0, done.stderr
    for found in json.loads(done.stdout):
        assert len(found["times"]) + found["early"] == 3
        assert all(0 <= each < 100 for each in found["times"])
        assert found["within"] <= len(found["times"])


def test_without_a_store_there_is_nothing_to_measure() -> None:
    done = measured("--leaders", "3")
    assert done.returncode == 2
    assert "give at least one URL, leader and process" in done.stderr
