"""`storm` and `soak`, really played in a small form: real processes and stores, real faults, and the verdict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.drills.drill_runs import SLO_S, needs_redis, played
from holdfast.drills.catalog import drill
from holdfast.drills.env.processes import DrillWorkers, Stalled
from holdfast.drills.model import DrillPlan
from holdfast.drills.runner import run
from holdfast.drills.scenarios import soak, storm
from holdfast.drills.verdict.resource_usage import MIB
from holdfast.errors import Misconfigured


@needs_redis
@pytest.mark.timeout(240)
@pytest.mark.requires("R48", "R68")
@pytest.mark.parametrize("own", ["sqlite", "redis"])
def test_every_waiter_in_a_storm_is_served_in_order_and_leaves_nothing(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storm, "PROCESSES", 2)
    verdict = played("storm", tmp_path, monkeypatch, DrillPlan(own=own, waiters=120, keys=120))
    plain, fair, leases = verdict.judged
    for each in (plain, fair):
        assert "120 served" in each.scene.claims[0].seen
        assert [plot.title for plot in each.scene.plots][1:] == ["Resident memory"]
        assert sum(len(line.points) for line in each.scene.plots[0].lines) == 120
    assert {claim.text for claim in fair.scene.claims} >= {
        "processes alternate",
        "no waiter overtakes another in its process",
    }
    assert {claim.text for claim in leases.scene.claims} >= {"none is lost", "all are released"}


@needs_redis
@pytest.mark.timeout(240)
@pytest.mark.requires("R73")
def test_a_soak_plays_its_mixture_beside_residents_whose_history_breaks_no_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "MIXTURE", (soak.Piece("compound", "sqlite", 1.0),))
    verdict = played("soak", tmp_path, monkeypatch, DrillPlan(slo_s=SLO_S, duration_s=1))
    rounds, sqlite, redis = verdict.judged
    told = {each.name: each.value for each in rounds.scene.figures}
    assert (told["compound on sqlite"], told["updates lost without full guards"]) == ("1 passed", "1")
    for each in (sqlite, redis):
        counts = {figure.name: figure.value for figure in each.scene.figures}
        assert int(counts["writes"]) > 3
        assert int(counts["grants"]) > int(counts["writes"])
        assert each.scene.plots[0].lines[0].points


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def no_redis() -> str:
    raise Misconfigured("there is no Redis here")


def test_a_resident_that_does_not_start_fails_the_soak_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(*_: object) -> None:
        raise Stalled("resident died unexpectedly")

    monkeypatch.setattr(DrillWorkers, "enter", died)
    monkeypatch.setattr(soak, "run", interrupted)
    monkeypatch.setattr(soak, "redis_server", no_redis)
    told: list[str] = []

    def tell(scene: str, text: str, *, good: bool | None = None) -> None:
        told.append(f"{scene}: {text} ({good})")

    verdict = run(drill("soak"), DrillPlan(duration_s=600), tell, "holdfast drill soak")
    assert not verdict.passed
    assert "resident on SQLite: resident died unexpectedly (False)" in told
    _, resident = verdict.judged
    assert "the resident starts: resident died unexpectedly" in resident.problems


@pytest.mark.timeout(240)
def test_ctrl_c_ends_a_soak_with_the_verdict_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "run", interrupted)
    monkeypatch.setattr(soak, "redis_server", no_redis)
    verdict = played("soak", tmp_path, monkeypatch, DrillPlan(slo_s=SLO_S, duration_s=600))
    assert verdict.passed
    assert any("ended early" in each for each in verdict.cannot)
    assert "the resident on Redis: there is no Redis here" in verdict.cannot
    assert [each.scene.title for each in verdict.judged] == [soak.TITLE, "resident on SQLite"]


LOOKS = """
import socket
from holdfast.drills.verdict.resource_usage import UsageSamples, heap
samples, ends = UsageSamples(), [socket.socket() for _ in range(50)]
samples.sample()
before = heap()
for _ in range(400):
    samples.sample()
print(heap() - before)
for each in ends:
    each.close()
"""


@pytest.mark.timeout(240)
def test_looking_at_a_process_does_not_make_it_grow() -> None:
    told = subprocess.run([sys.executable, "-c", LOOKS], stdout=subprocess.PIPE, check=True)
    assert int(told.stdout) < MIB / 4
