"""The cost of a lease in calls. It is the same on every machine, so it has a limit that holds in every run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON_CALLS_MAX = 80
CLOCK_READS_MAX = 3


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    """What the benchmark counts in a process of its own: tests leave tracers and patched clocks behind."""
    command = [sys.executable, "-m", "benchmarks.lease_calls", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    counted: dict[str, int] = json.loads(run.stdout)
    return counted


def test_an_uncontended_acquire_and_release_stays_below_its_limit_of_python_calls(counts: dict[str, int]) -> None:
    assert 0 < counts["python_calls"] <= PYTHON_CALLS_MAX, counts


def test_an_uncontended_acquire_and_release_reads_the_clock_a_limited_number_of_times(counts: dict[str, int]) -> None:
    assert 0 < counts["clock_reads"] <= CLOCK_READS_MAX, counts
