"""The verdict of a drill is a pure function of what was seen, and says in plain words what went wrong."""

from __future__ import annotations

import pytest

from holdfast.core.history.events import EventKind, Record
from holdfast.drills.model import DrillClaim, DrillPlan, Guard, MeasuredTakeover, curve
from holdfast.drills.report.html import summary
from holdfast.drills.scenarios import retry_waves
from holdfast.drills.scenarios.outage import Outage, judge_class, judge_history
from holdfast.drills.verdict.effects import EffectAttempt, EffectTally
from holdfast.drills.verdict.leases import judge, overwritten, plain, slowest
from holdfast.drills.verdict.plane import taken_over, undelayed, whole
from holdfast.types import NS
from unit.drills.drill_scenes import KEY, grant, guarded, overtaken, refused, release, scene, verdict, write


@pytest.mark.requires("R73")
@pytest.mark.parametrize("guard", [Guard.OFF, Guard.WRITES])
def test_a_loss_without_a_full_guard_is_what_the_scene_is_there_to_show(guard: Guard) -> None:
    judged = judge(scene(guard, overtaken()))
    assert judged.ok
    assert (judged.lost, [each.rule for each in judged.losses]) == (1, ["C5", "C6"])
    assert judged.violations == ()


@pytest.mark.requires("R73")
def test_the_same_loss_with_guards_fails_and_names_both_operations() -> None:
    judged = judge(scene(Guard.ON, overtaken()))
    assert not judged.ok
    assert judged.lost == 1
    told = " ".join(judged.problems)
    assert "ben wrote version 2 (fence …000002) and it was acknowledged; ada" in told
    assert "then overwrote it with version 1 (fence …000001)" in told
    assert "1 acknowledged update was lost" in told


def test_with_guards_and_no_loss_a_scene_ends_as_it_must() -> None:
    judged = judge(scene(Guard.ON, guarded()))
    assert (judged.ok, judged.lost, judged.refused, judged.losses) == (True, 0, 1, ())


def test_a_scene_that_loses_nothing_without_guards_proves_nothing_and_fails() -> None:
    judged = judge(scene(Guard.OFF, guarded()))
    assert not judged.ok
    assert "missed the critical moment" in judged.problems[0]


def test_other_rules_are_not_excused_by_missing_guards() -> None:
    twice = [*overtaken(), grant("eve", 2, 5.0), release("eve", 2, 5.1)]
    judged = judge(scene(Guard.OFF, twice))
    assert not judged.ok
    assert {each.rule for each in judged.violations} & {"C1", "C2"}


def test_a_refusal_without_cause_fails_the_scene() -> None:
    judged = judge(scene(Guard.ON, [grant("ada", 5, 0.0), refused("ada", 5, 0.1, seen=4)]))
    assert [each.rule for each in judged.violations] == ["C7"]


def test_lost_updates_are_those_that_the_last_version_is_not_built_upon() -> None:
    history = [
        write("a", 1, 1.0, value=1, based_on=0),
        write("b", 2, 2.0, value=2, based_on=1),
        write("c", 3, 3.0, value=3, based_on=1),  # over b's
        write("d", 4, 4.0, value=4, based_on=3),
    ]
    assert [each.value for each in overwritten(history)] == [2]
    assert overwritten([]) == []


@pytest.mark.requires("R140")
def test_a_takeover_beyond_the_slo_fails_the_scene_with_both_numbers() -> None:
    late = MeasuredTakeover("a holder killed", 0, 3 * NS, 2 * NS)
    judged = judge(scene(Guard.ON, guarded(), takeovers=[MeasuredTakeover("another", 0, NS, 2 * NS), late]))
    assert judged.problems == ("a holder killed: taken over after 3.00 s, and the SLO is 2 s",)
    assert slowest(judged.scene.takeovers) == late
    assert slowest([]) is None


def test_broken_claims_and_incomplete_histories_fail_the_scene() -> None:
    made = scene(
        None, [], claims=[DrillClaim("kept", kept=True, seen="1"), DrillClaim("not kept", kept=False, seen="2")]
    )
    made.dropped = 3
    told = "3 records were dropped by a ledger, so the history is incomplete"
    assert judge(made).problems == ("not kept: 2", told)


def test_a_verdict_needs_scenes_and_all_of_them_well() -> None:
    good, bad = judge(scene(Guard.ON, guarded())), judge(scene(Guard.ON, overtaken()))
    assert verdict(good, judge(scene(Guard.OFF, overtaken()))).passed
    assert not verdict(good, bad).passed
    assert not verdict().passed
    told = summary(verdict(good, judge(scene(Guard.OFF, overtaken()))))
    without = "Without full guards 1 acknowledged update was lost."
    assert told == f"{without} With guards none were lost, and 1 stale step was refused."
    assert summary(verdict(good)) == "With guards no acknowledged updates were lost, and 1 stale step was refused."
    assert summary(verdict(bad)).startswith("With guards 1 acknowledged update was lost.")


def test_a_violation_of_any_rule_can_be_told() -> None:
    judged = judge(scene(Guard.ON, [grant("ada", 1, 0.0), grant("ben", 1, 1.0)]))
    assert plain(judged.violations[0]).startswith("C1: fence 1 was given out twice")


@pytest.mark.requires("R90")
def test_each_error_policy_is_held_to_what_it_promises_of_an_outage() -> None:
    full, bare = EffectAttempt(1, "w", 7, 9 * NS), EffectAttempt(2, "w", None, 15 * NS)

    def kept(policy: str, attempts: list[EffectAttempt], tally: EffectTally) -> list[bool]:
        return [each.kept for each in judge_class(policy, attempts, tally)]

    assert kept("fail_closed", [full], EffectTally(1, 1, 0, 0)) == [True, True]
    assert kept("fail_closed", [full, bare], EffectTally(2, 2, 0, 1)) == [False, True]
    assert kept("wait", [full], EffectTally(2, 1, 1, 0)) == [True, False]
    assert kept("fail_open", [full, bare, bare], EffectTally(3, 2, 1, 2)) == [True, True]
    assert kept("fail_open", [full], EffectTally(1, 1, 0, 0)) == [False, True]
    assert kept("fail_open", [full, bare], EffectTally(3, 1, 1, 2)) == [True, False]


@pytest.mark.requires("R97")
def test_grants_of_a_store_that_is_away_and_fallbacks_after_recovery_are_found_out() -> None:
    outage = Outage(10 * NS, 20 * NS, 21 * NS)

    def kept(*history: Record) -> list[bool]:
        return [each.kept for each in judge_history(history, outage)]

    fell, late = Record(EventKind.FELL_BACK, 15 * NS, KEY), Record(EventKind.FELL_BACK, 22 * NS, KEY)
    assert kept(fell) == [True, True, True]
    assert kept(fell, late) == [True, True, False]
    assert kept(fell, late, *(grant("w", number, 22.0) for number in range(60))) == [True, True, True]
    assert kept() == [True, False, True]
    assert kept(fell, grant("w", 1, 15.0)) == [False, True, True]


@pytest.mark.requires("R131")
def test_a_plane_that_lost_a_job_or_ended_one_twice_is_found_out() -> None:
    def kept(submitted: int, states: dict[str, int], ends: list[int], effects: int) -> list[bool]:
        return [each.kept for each in whole(submitted, states, ends, EffectTally(9, effects, 0, 0))]

    assert kept(2, {"SUCCEEDED": 2}, [1, 1], 2) == [True, True, True]
    assert kept(2, {"SUCCEEDED": 1, "FAILED": 1}, [1, 1], 2) == [False, True, True]
    assert kept(2, {"SUCCEEDED": 2}, [1, 2], 2) == [True, False, True]
    assert kept(2, {"SUCCEEDED": 2}, [1, 1], 1) == [True, True, False]
    assert [each.kept for each in undelayed(3, 2, 40 * NS, 30.0)] == [False, False]


@pytest.mark.requires("R130")
def test_takeover_of_a_job_is_from_the_death_to_its_next_attempt() -> None:
    attempts = [EffectAttempt(1, "a", 1, 5 * NS), EffectAttempt(1, "b", 2, 9 * NS), EffectAttempt(1, "c", 3, 12 * NS)]
    [found] = taken_over("a worker killed", [1, 1, 2], attempts, 6 * NS, 4 * NS)
    assert (found.took_ns, found.in_time) == (3 * NS, True)


@pytest.mark.requires("R154", "R157")
def test_simulated_waves_are_the_same_for_the_same_seed_and_flatter_with_any_spread() -> None:
    first, second, other = retry_waves.simulated(7), retry_waves.simulated(7), retry_waves.simulated(8)
    assert first == second
    assert first.figures != other.figures
    assert all(claim.kept for each in (first, other) for claim in each.claims)


def test_moments_are_counted_by_stretches_of_time() -> None:
    made = curve("x", [-1, 0, 9, 10, 25, 30], 0, 30, 10)
    assert list(made.counts) == [2, 1, 1]


def test_without_a_stated_slo_it_is_the_ttl_and_a_second() -> None:
    assert DrillPlan(ttl_s=3.0).slo_ns == 4 * NS
    assert DrillPlan(ttl_s=3.0, slo_s=1.5).slo_ns == 3 * NS // 2
