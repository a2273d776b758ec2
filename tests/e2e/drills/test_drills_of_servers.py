"""`failover` and `clock`, really played: servers that are killed, cut off and given another time, and what is left.

SLOs are generous here: what is tested is that nothing is lost, and not how fast this machine is today.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.drills.drill_runs import SLO_S, children, needs_redis, played
from holdfast.drills.catalog import drill
from holdfast.drills.model import DrillPlan, DrillVerdict, Guard, JudgedScene
from holdfast.drills.scenarios import server_loss
from holdfast.drills.scenarios.suspend import namespaces

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def by_title(verdict: DrillVerdict) -> dict[str, JudgedScene]:
    return {each.scene.title: each for each in verdict.judged}


@needs_redis
@pytest.mark.timeout(240)
@pytest.mark.requires("R73")
def test_failover_breaks_exclusion_and_loses_nothing_where_fences_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    verdict = played("failover", tmp_path, monkeypatch, DrillPlan(ttl_s=0.8, slo_s=SLO_S, duration_s=1))
    assert children() == before
    found = by_title(verdict)
    for fault in ("primary lost", "split brain", "quorum, a node forgets"):
        bare, guarded = found[f"{fault}, without guards"], found[f"{fault}, with guards"]
        assert bare.lost >= 2
        assert (guarded.lost, guarded.violations) == (0, ())
        assert guarded.refused >= 2
        assert {each.rule for each in guarded.excused} <= {"C4"}
    for fault in ("primary lost", "split brain"):
        assert len(found[f"{fault}, with guards"].excused) >= 2, "the lock was really held twice"
    assert {each.what for each in found["primary lost, with guards"].scene.moments} == {"failover"}
    assert {each.what for each in found["split brain, with guards"].scene.moments} == {"cut in two", "healed"}
    figures = {each.name: each.value for each in found["split brain, with guards"].scene.figures}
    assert figures["locks that both sides granted"] == "200"
    replaced = found["quorum, nodes replaced one by one"]
    assert (replaced.violations, replaced.excused, len(replaced.scene.moments)) == ((), (), 6)
    assert {each.name: each.value for each in replaced.scene.figures}["balance at the end"] == "2"
    bounded = found["split brain, min-replicas-to-write"].scene
    assert "a primary without a replica stops granting" in {each.text for each in bounded.claims}


@needs_redis
@pytest.mark.timeout(240)
@pytest.mark.requires("R73")
def test_a_failover_by_sentinels_loses_the_grant_and_no_guarded_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    verdict = played("failover", tmp_path, monkeypatch, DrillPlan(own="sentinel", ttl_s=3, slo_s=SLO_S))
    assert children() == before
    assert verdict.store == "its own Redis servers and Sentinels"
    bare, guarded = verdict.judged
    assert (bare.lost, guarded.lost, guarded.refused, guarded.violations) == (1, 0, 1, ())
    assert {each.rule for each in guarded.excused} <= {"C4"}


@pytest.mark.timeout(240)
@pytest.mark.requires("R73")
@pytest.mark.parametrize("store", ["postgres", "etcd", "nats"])
def test_a_store_that_loses_its_leader_excludes_and_keeps_what_it_granted(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only with guards: that a late write is lost without them is shown on the other stores."""
    guarded_only = replace(drill("failover"), play=lambda stage, _: server_loss.play(stage, (Guard.ON,)))
    monkeypatch.setattr("e2e.drills.drill_runs.drill", lambda _name: guarded_only)
    before = children()
    verdict = played("failover", tmp_path, monkeypatch, DrillPlan(own=store, ttl_s=2, slo_s=SLO_S))
    assert children() == before
    [found] = verdict.judged
    assert (found.lost, found.refused, found.violations, found.excused) == (0, 1, (), ())
    claims = {each.text for each in found.scene.claims}
    assert {"a held lease outlives the failover", "a late owner notices"} <= claims
    assert [each.what for each in found.scene.moments] == ["failover", "failover", "released"]
    assert len(found.scene.takeovers) == 2


@needs_redis
@needs_gcc
@pytest.mark.timeout(240)
@pytest.mark.requires("R73")
def test_clocks_that_jump_and_hosts_that_sleep_lose_nothing_where_fences_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    verdict = played("clock", tmp_path, monkeypatch, DrillPlan(ttl_s=0.8, slo_s=SLO_S, duration_s=1))
    assert children() == before
    found = by_title(verdict)
    assert found["server's clock forward, without guards"].lost >= 2
    assert found["host suspended, without guards"].lost >= 2
    assert all(each.lost == 0 for each in verdict.judged if each.scene.guard is Guard.ON)
    forward = found["server's clock forward, with guards"]
    assert {each.what for each in forward.scene.moments} == {"+1 min", "+1 h"}
    kept = [each.value for each in found["server's clock back"].scene.figures if "is kept for" in each.name]
    assert {round(int(each.split()[0]), -1) for each in kept} == {60, 3600}
    behind = found["server's clock back, then its primary lost"]
    assert (behind.violations, {each.rule for each in behind.excused}) == ((), {"C4"})
    assert behind.refused >= 2
    assert {each.what for each in behind.scene.moments} == {"−1 h", "failover"}
    assert {each.name: each.value for each in behind.scene.figures}["fences issued twice"] == "0"
    host = found["host's clock, on SQLite"]
    assert {each.what for each in host.scene.moments} == {"+1 min", "−1 min", "+1 h", "−1 h"}
    assert host.scene.excuses == frozenset(), "on SQLite exclusion holds through every jump"
    if os.geteuid() == 0 and namespaces():
        assert "time namespace, on SQLite" in found
    else:
        assert "time namespace" in verdict.cannot[0]
