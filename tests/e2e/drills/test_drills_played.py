"""Every drill, really played in a short form: real processes, real stores, real faults, and the verdict that follows.

SLOs are generous here: what is tested is that nothing is lost, and not how fast this machine is today.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.drills.drill_runs import SLO_S, needs_redis, played
from holdfast.drills.model import DrillPlan, DrillVerdict, FaultKind, Guard, JudgedScene
from holdfast.types import NS
from support.campaigns import campaign


def by_guard(verdict: DrillVerdict) -> dict[Guard | None, JudgedScene]:
    return {each.scene.guard: each for each in verdict.judged}


@needs_redis
@pytest.mark.timeout(240)
@pytest.mark.requires("R73")
def test_pause_on_redis_loses_without_a_full_guard_and_nothing_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = DrillPlan(own="redis", ttl_s=0.8, slo_s=SLO_S, duration_s=1)
    found = by_guard(played("pause", tmp_path, monkeypatch, plan))
    assert found[Guard.OFF].lost >= 2
    assert found[Guard.WRITES].lost >= 1  # the write that comes between the new owner's read and its write
    assert (found[Guard.ON].lost, found[Guard.ON].losses, found[Guard.ON].violations) == (0, (), ())
    assert found[Guard.ON].refused >= 2
    pauses = [each for each in found[Guard.ON].scene.spans if each.kind is FaultKind.PAUSE]
    assert all(each.to_ns - each.from_ns > plan.ttl_ns for each in pauses)


@pytest.mark.timeout(240)
@pytest.mark.requires("R130", "R131", "R140")
def test_kill_takes_over_from_dead_holders_and_ends_no_job_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = played("kill", tmp_path, monkeypatch, DrillPlan(ttl_s=1.0, slo_s=SLO_S, duration_s=1))
    holders, plane = verdict.judged
    assert len(holders.scene.takeovers) >= 3
    assert plane.scene.takeovers, "the killed worker had jobs in flight, and another worker ran them"
    assert {each.text for each in plane.scene.claims} == {
        "every acknowledged job succeeds",
        "no job has two terminal states",
        "every job has one effect",
    }
    assert len(plane.scene.history) > 20  # the audit ledgers of the plane's processes


@pytest.mark.timeout(240)
@pytest.mark.requires("R35")
def test_compound_has_failing_renewals_an_expiry_a_stale_release_and_a_late_write_in_one_scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = DrillPlan(ttl_s=0.8, slo_s=SLO_S, duration_s=1)
    found = by_guard(played("compound", tmp_path, monkeypatch, plan))
    for judged in found.values():
        [outage] = [each for each in judged.scene.spans if each.kind is FaultKind.OUTAGE]
        assert outage.to_ns - outage.from_ns > plan.ttl_ns
        assert [each.text for each in judged.scene.claims if each.kept] == [
            "a lease that cannot be renewed is abandoned",
            "a stale renewal is refused",
            "a stale release is refused",
            "a stale release frees no other owner's lock",
            "the current owner can write",
        ]
        figures = {each.name: each.value for each in judged.scene.figures}
        assert int(figures["renewals without an answer"]) >= 1
    assert (found[Guard.OFF].lost, found[Guard.ON].lost, found[Guard.ON].refused) == (1, 0, 1)


@needs_redis
@pytest.mark.timeout(240)
@pytest.mark.requires("R90", "R97", "R107")
@pytest.mark.parametrize("own", ["sqlite", "redis"])
def test_outage_is_met_by_each_policy_as_it_promises_and_is_over_afterwards(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    length_s = campaign(3, 30)
    verdict = played("outage", tmp_path, monkeypatch, DrillPlan(own=own, ttl_s=1.0, slo_s=SLO_S, duration_s=length_s))
    [judged] = verdict.judged
    [outage] = [each for each in judged.scene.spans if each.kind is FaultKind.OUTAGE]
    assert outage.to_ns - outage.from_ns >= length_s * NS
    texts = [each.text for each in judged.scene.claims]
    assert "fail_open continues without the store" in texts
    assert "after recovery fallbacks are near zero" in texts
    figures = {each.name: each.value for each in judged.scene.figures}
    assert int(figures["fallbacks"]) > 0
    assert int(figures["denied"]) > 0


@pytest.mark.timeout(240)
@pytest.mark.requires("R153", "R154", "R157")
def test_retry_waves_serve_every_contender_and_are_flattened_by_jitter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = played("retry-waves", tmp_path, monkeypatch, DrillPlan(ttl_s=5.0, slo_s=SLO_S, duration_s=3, seed=7))
    compared, *rest, simulated = verdict.judged
    assert [each.scene.title for each in rest] == [each.name for each in compared.scene.curves]
    assert len(rest) == 3
    [claim] = simulated.scene.claims
    assert claim.text == "spreading the delay flattens the waves"


@needs_redis
@pytest.mark.timeout(240)
@pytest.mark.requires("R30")
def test_pauses_and_a_slow_network_lose_nothing_with_guards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = played("pause-and-delay", tmp_path, monkeypatch, DrillPlan(ttl_s=1.0, slo_s=SLO_S, duration_s=1))
    found = by_guard(verdict)
    assert found[Guard.OFF].lost >= 2
    assert found[Guard.ON].lost == 0
    assert {each.kind for each in found[Guard.ON].scene.spans} == {FaultKind.PAUSE, FaultKind.DELAY}


@pytest.mark.timeout(240)
@pytest.mark.requires("R131")
def test_a_rolling_restart_loses_nothing_and_waits_for_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = played("rolling-restart", tmp_path, monkeypatch, DrillPlan(duration_s=1))
    [judged] = verdict.judged
    assert [each.kind for each in judged.scene.spans] == [FaultKind.RESTART] * 4
    assert {"no attempt is wasted", "no lease is waited out"} <= {each.text for each in judged.scene.claims}
