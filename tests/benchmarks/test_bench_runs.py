"""The benchmarks stay alive: what needs no peer is run, shortly. Their results are not checked here.

They run in a process of their own, as `make bench` does, because the folder is a package that only a start from the
repository's root finds, and because measurements leave connections and threads behind that no test wants to meet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.run", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def tiny(tmp_path: Path, scenario: str, *contenders: str, seconds: float = 0.02) -> dict[str, Any]:
    """Run one scenario as shortly as it can be, and return what it wrote about it."""
    to = tmp_path / "result.json"
    files = ("--json", to, "--plot", tmp_path / "plot.png", "--markdown", tmp_path / "table.md")
    short = ("--quick", "--seconds", str(seconds), "--renew-seconds", "0.05")
    run = bench("--scenario", scenario, "--only", *contenders, *short, *files)
    assert run.returncode == 0, run.stdout + run.stderr
    assert scenario in run.stdout
    written = json.loads(to.read_text(encoding="utf-8"))
    assert written["facts"]["cpus"] == os.cpu_count()
    assert scenario in (tmp_path / "table.md").read_text(encoding="utf-8")
    (only,) = written["scenarios"]
    assert only["name"] == scenario
    assert {score["name"] for score in only["scores"]} == set(contenders)
    return dict(only)


@pytest.mark.server
@pytest.mark.parametrize("scenario", ["sync-1", "aio-1", "aio-1000", "threads-32"])
def test_throughput_is_measured_for_us_and_for_the_raw_limit(tmp_path: Path, scenario: str) -> None:
    # Long enough for a busy machine to get one of them done, out of a thousand that begin together.
    measured = tiny(tmp_path, scenario, "holdfast", "raw", seconds=0.5 if scenario == "aio-1000" else 0.1)
    assert all(score["value"] > 0 and score["extras"]["cpu_us"] > 0 for score in measured["scores"])
    assert {score["name"]: score["of_raw"] for score in measured["scores"]}["raw"] == 1


@pytest.mark.server
@pytest.mark.parametrize("scenario", ["handover-aio-10", "handover-apart-10", "handover-threads-10"])
def test_hand_over_is_measured_with_its_commands_and_its_idle_load(tmp_path: Path, scenario: str) -> None:
    measured = tiny(tmp_path, scenario, "holdfast", "raw")
    ours = next(score for score in measured["scores"] if score["name"] == "holdfast")
    assert ours["extras"]["p50_ms"] > 0
    assert ours["extras"]["commands"] > 0
    assert ours["extras"]["idle_per_s"] >= 0


@pytest.mark.server
def test_renewal_is_measured_with_its_threads_and_its_losses(tmp_path: Path) -> None:
    (ours,) = tiny(tmp_path, "renew-1000", "holdfast")["scores"]
    assert ours["extras"]["lost"] == 0
    assert ours["extras"]["threads"] >= 1


def test_files_are_measured_without_a_server(tmp_path: Path) -> None:
    measured = tiny(tmp_path, "sqlite-1", "holdfast", "raw", seconds=0.1)
    assert all(score["value"] > 0 for score in measured["scores"])


@pytest.mark.server
@pytest.mark.parametrize("scenario", ["quorum-sync-1", "quorum-aio-1"])
def test_a_quorum_is_measured_on_servers_of_its_own(tmp_path: Path, scenario: str) -> None:
    (ours,) = tiny(tmp_path, scenario, "holdfast")["scores"]
    assert ours["value"] > 0
    assert ours["extras"]["cpu_us"] > 0


def test_the_cost_of_measuring_is_measured_and_everything_is_put_back(tmp_path: Path) -> None:
    (ours,) = tiny(tmp_path, "measuring-memory", "holdfast")["scores"]
    assert ours["extras"]["cycle_us"] > 0


def test_four_processes_take_turns(tmp_path: Path) -> None:
    (ours,) = tiny(tmp_path, "sqlite-4", "holdfast")["scores"]
    assert ours["extras"]["grants_per_s"] > 0


def test_a_scenario_that_does_not_exist_is_refused_with_the_names_of_those_that_do() -> None:
    run = bench("--scenario", "no-such")
    assert run.returncode != 0
    assert "sync-1" in run.stderr


def test_every_scenario_of_the_issue_is_listed() -> None:
    listed = bench("--list").stdout
    handovers = [f"handover-aio-{n}" for n in (1, 10, 100, 500)] + [f"handover-threads-{n}" for n in (1, 10, 100)]
    alone = ["sync-1", "aio-1", "aio-1000", "threads-32", "sqlite-1", "sqlite-4", "renew-1000", "renew-10000"]
    jobs = ["plane-jobs", "plane-latency", *(f"plane-stored-{10**n}" for n in (3, 4, 5, 6))]
    measuring = [f"measuring-{engine}" for engine in ("memory", "sqlite", "redis")]
    quorums = ["quorum-sync-1", "quorum-aio-1", "quorum-aio-100"]
    for name in [*alone, *handovers, *jobs, *measuring, *quorums]:
        assert f"{name} " in listed


SHOW = """
import json, sys
from pathlib import Path
from rich.console import Console
from benchmarks import report
from benchmarks.contender import Role
from benchmarks.measure import Measurement
from benchmarks.results import Outcome, score

def outcome(*, less):
    scores = (
        score("holdfast", Role.OURS, [Measurement(v, {"p50_ms": v}) for v in (10.0, 40.0, 20.0)]),
        score("slow", Role.PEER, [Measurement(2.0)]),
        score("quick", Role.PEER, [Measurement(8.0)]),
        score("raw", Role.RAW, [Measurement(80.0)]),
    )
    return Outcome("some-1", "a title", "things/s", 2.0, less, scores, {"gone": "gone is not installed"})

more, less = outcome(less=False), outcome(less=True)
ours = more.scores[0]
console = Console(width=int(sys.argv[1]), record=True, file=open("/dev/null", "w"))
report.print_tables(console, [more])
print(json.dumps({
    "median": ours.value, "spread": ours.spread, "p50": ours.extras["p50_ms"],
    "more": [more.best_peer().name, more.of_best_peer(ours), more.of_raw(ours)],
    "less": [less.best_peer().name, less.of_best_peer(ours), less.of_raw(ours)],
    "first": [report.rows(more)[0][1], report.rows(less)[0][1]],
    "table": console.export_text(), "markdown": report.markdown([more]),
}))
"""


def shown(width: int) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    run = subprocess.run(
        [sys.executable, "-c", SHOW, str(width)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return dict(json.loads(run.stdout))


def test_the_report_shows_medians_and_ratios_to_the_best_peer_and_to_the_limit() -> None:
    seen = shown(160)
    assert seen["median"] == 20
    assert seen["spread"] == [10, 40]
    assert seen["p50"] == 20
    assert seen["more"] == ["quick", 2.5, 0.25]
    assert seen["less"] == ["slow", 0.1, 4]
    assert seen["first"] == ["raw", "slow"]
    for text in (seen["table"], seen["markdown"]):
        assert "2.50× (aim 2×)" in text
        assert "0.25×" in text
        assert "p50 20.00 ms" in text
        assert "gone is not installed" in text


def test_a_narrow_terminal_still_shows_the_ratios_and_says_where_the_rest_is() -> None:
    table = shown(80)["table"]
    assert "2.50× (aim 2×)" in table
    assert "in the JSON file" in table
    assert all(len(line.rstrip()) <= 80 for line in table.splitlines())


@pytest.mark.server
def test_jobs_are_measured_to_their_stored_end_and_beside_stored_ones(tmp_path: Path) -> None:
    to, plot = tmp_path / "result.json", tmp_path / "plot.png"
    chosen = ("--scenario", "plane-jobs", "plane-stored-1000", "--only", "holdfast-embedded", "holdfast-sqlite")
    run = bench(*chosen, "--quick", "--seconds", "0.02", "--json", to, "--plot", plot)
    assert run.returncode == 0, run.stdout + run.stderr
    jobs, stored = (each["scores"][0] for each in json.loads(to.read_text(encoding="utf-8"))["scenarios"])
    assert jobs["value"] > 0
    assert jobs["extras"]["submit_per_s"] > 0
    assert stored["value"] > 0
    assert stored["extras"]["database_ms"] > 0
    drawn = find_spec("matplotlib") is not None  # it comes with the benchmarks' own environment
    assert (tmp_path / "plot-stored.png").exists() is drawn
