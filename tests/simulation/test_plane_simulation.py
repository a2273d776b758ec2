"""The whole plane in simulated worlds: nothing is lost, doubled or stuck, and a plane with a bug is found out."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import FencedOut
from holdfast.plane.bus.delivery_rules import LOST_MAX
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.loops.loop import Tick
from holdfast.testing.sim.plane.checks import Ending, Story, check_plane
from holdfast.testing.sim.plane.load import Asked
from holdfast.testing.sim.plane.plane_faults import PlaneFault, PlaneSwarm, draw_plane_swarm
from holdfast.testing.sim.plane.row_history import JobSeen, LetterSeen
from holdfast.testing.sim.plane.simulated_plane import PlaneOutcome, run_plane
from holdfast.testing.sim.plane.timed_jobs import TimedJobs
from holdfast.testing.simulate_plane import main, replay_plane_command
from holdfast.types import NS
from simulation import mutants_planes as mutants
from support.campaigns import campaign
from support.harness.loop_fleet import P, fleet, virtually

SEEDS = campaign(3, 8)
SLICES = 4
F = PlaneFault


def described(outcome: PlaneOutcome) -> str:
    return "\n".join([*map(str, outcome.violations), f"replay it with: {replay_plane_command(outcome.seed)}"])


def rough(seed: int, **more: Any) -> PlaneSwarm:
    """A short world with many concurrent events."""
    usual: dict[str, Any] = {
        "controls": 3,
        "workers": 2,
        "jobs": 16,
        "runs": 0,
        "faults": [F.PAUSE, F.CRASH, F.CLOG, F.FORCE, F.LEASES_FORGET, F.DATABASE_PAUSE, F.COPIES],
        "every_ns": 700_000_000,
        "phase_ns": 20 * NS,
        "failpoints": 50,
        "cancels": 300,
        "schedules": 0,
        "drain_ns": 90 * NS,
    }
    return replace(draw_plane_swarm(seed), **{**usual, **more})


@pytest.mark.requires("R101", "R131")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_rule_of_the_plane_is_broken_whatever_goes_wrong(seed: int) -> None:
    outcome = run_plane(seed)
    assert not outcome.violations, described(outcome)
    assert outcome.jobs >= 10


def test_people_know_what_time_it_is_whatever_the_clock_of_the_lease_store_was_set_to() -> None:
    """While all processes are being replaced, a job was submitted for an hour later, and blamed for not being over."""
    outcome = run_plane(9_101_923)
    assert not outcome.violations, described(outcome)


def test_a_world_is_not_at_rest_while_somebody_is_paused_who_has_something_to_say() -> None:
    """A worker that was paused for 18 s sent its result when all other processes had ended."""
    outcome = run_plane(9_200_565)
    assert not outcome.violations, described(outcome)


@pytest.mark.parametrize("tells_lost", [True, False])
def test_a_job_that_kills_whoever_runs_it_comes_to_an_end_and_is_begun_no_oftener_than_it_may(tells_lost: bool) -> None:
    """Also on a bus that counts deliveries and cannot tell which of them were lost."""
    outcome = run_plane(1, rough(1, faults=[], failpoints=0, poison=1, tells_lost=tells_lost, drain_ns=400 * NS))
    assert not outcome.violations, described(outcome)
    assert (outcome.counts["killed by a job"], outcome.counts["dead letters"] > 0) == (LOST_MAX, True)


@pytest.mark.requires("R103", "R105", "R131")
@pytest.mark.parametrize("part", range(SLICES))
def test_the_plane_survives_every_kind_of_fault_and_each_of_them_happens(part: int) -> None:
    """A world in which nothing goes wrong proves nothing: what the suite relies on must really happen in it."""
    faults = list(PlaneFault)[part::SLICES]
    outcome = run_plane(part, rough(part, faults=faults, every_ns=NS // 2, phase_ns=30 * NS, runs=2))
    assert not outcome.violations, described(outcome)
    met = {str(what) for what in outcome.counts}
    assert sorted({f"fault {fault}" for fault in faults} - met) == []
    assert {"granted", "released", "handed", "extended", "attempts", "job SUCCEEDED"} <= met


def test_the_same_seed_is_the_same_plane_in_another_process_with_other_hashes() -> None:
    swarm = "replace(draw_plane_swarm(5), jobs=6, runs=1, phase_ns=8 * NS)"
    code = (
        "from dataclasses import replace\nfrom holdfast.types import NS\n"
        "from holdfast.testing.sim.plane.simulated_plane import run_plane\n"
        "from holdfast.testing.sim.plane.plane_faults import draw_plane_swarm\n"
        f"print(run_plane(5, {swarm}).digest)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "4242"}
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()
    here = run_plane(5, replace(draw_plane_swarm(5), jobs=6, runs=1, phase_ns=8 * NS))
    assert here.digest == elsewhere
    assert run_plane(6, replace(draw_plane_swarm(6), jobs=6, runs=1, phase_ns=8 * NS)).digest != here.digest


# Two messages about one job at the same time, and the holder of its lock is paused before it writes and loses it.
OVERTAKEN: dict[str, Any] = {
    "jobs": 40,
    "submitters": 2,
    "phase_ns": 60 * NS,
    "faults": [F.FORCE],
    "every_ns": NS // 5,
    "failpoints": 150,
    "cancels": 1000,
}
WORLDS = 60  # which of them find a bug changes with every message that the plane sends more or less
PLANTED: dict[str, tuple[mutants.Plant, str, dict[str, Any]]] = {
    plant.__name__: (plant, rule, swarm)
    for plant, rule, swarm in (
        (mutants.the_result_of_an_overtaken_worker_counts, "P4", {"jobs": 20, "runs": 4, "phase_ns": 25 * NS}),
        (mutants.a_scheduler_is_not_asked_for_its_fence, "P4", OVERTAKEN),
        (mutants.a_job_ends_twice, "P3", {"cancels": 600}),
        (mutants.the_limit_of_a_tenant_is_forgotten, "P5", {"slots": 1, "faults": []}),
        (mutants.a_place_is_not_given_back, "P5", {"faults": [], "drain_ns": 5 * NS}),
        (mutants.a_job_is_acknowledged_before_it_is_written, "P1", {"faults": [F.DATABASE_DOWN], "drain_ns": 30 * NS}),
        (mutants.the_resource_does_not_look_at_the_fence, "P6", {"faults": [F.PAUSE]}),
        (mutants.a_second_run_does_not_know_what_the_first_has_done, "P6", {}),
        (mutants.a_worker_does_not_end, "P0", {"jobs": 1, "runs": 0, "faults": []}),
        (mutants.a_job_that_kills_is_run_for_ever, "P2", {"jobs": 1, "faults": [], "poison": 1, "tells_lost": False}),
        (
            mutants.a_due_time_is_submitted_whatever_was_decided_before,
            "P11",
            {"schedules": 1, "jobs": 1, "faults": [F.STEP], "failpoints": 0},
        ),
        (mutants.a_decision_may_be_made_again_otherwise, "P10", {"runs": 6, "jobs": 1, "faults": [], "cancels": 0}),
    )
}


# Worlds that find a bug late, if searched in order. An outdated number makes a test slower, and no weaker.
FOUND_IN: dict[str, int] = {
    mutants.the_result_of_an_overtaken_worker_counts.__name__: 22,
    mutants.a_scheduler_is_not_asked_for_its_fence.__name__: 30,
    mutants.the_resource_does_not_look_at_the_fence.__name__: 6,
    mutants.a_due_time_is_submitted_whatever_was_decided_before.__name__: 33,
    mutants.a_decision_may_be_made_again_otherwise.__name__: 1,
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, rule, swarm = PLANTED[name]
    plant(monkeypatch)
    for seed in sorted(range(WORLDS), key=lambda each: each != FOUND_IN.get(name)):
        if any(violation.rule == rule for violation in run_plane(seed, rough(seed, **swarm)).violations):
            return
    pytest.fail(f"{rule} holds in {WORLDS} worlds, in spite of a bug: {plant.__doc__}")


# The rules themselves, on made-up stories.


def seen(before: str | None, after: str, **more: Any) -> JobSeen:
    usual: dict[str, Any] = {"version_before": 1, "version": 2, "fence_before": 1, "fence": 1, "max_attempts": 3}
    blank = dict.fromkeys(JobSeen._fields)
    named = {"at_ns": 0, "commit": 1, "job": "j", "tenant": "t", "pool": "p", "before": before, "after": after}
    return JobSeen(**{**blank, "attempt": 1, **usual, **named, **more})


BROKEN: dict[str, tuple[Story, str]] = {
    "never acknowledged": (Story(asked=[Asked("k", "t")]), "P1"),
    "acknowledged and gone": (Story(asked=[Asked("k", "t", ["j"])]), "P1"),
    "two answers": (Story(asked=[Asked("k", "t", ["j", "i"])], endings={"j": Ending("FAILED", None)}), "P1"),
    "made twice": (Story(asked=[Asked("k", "t", ["j"], 2)], endings={"j": Ending("FAILED", None)}), "P1"),
    "a job that hangs": (Story(endings={"j": Ending("RUNNING", None)}), "P2"),
    "a run that hangs": (Story(run_endings={"r": "waiting"}), "P2"),
    "an illegal move": (Story(events={"j": [(None, "PENDING"), ("PENDING", "OUTPUT_QUARANTINED")]}), "P3"),
    "two ends": (Story(events={"j": [("RUNNING", "FAILED"), ("RUNNING", "SUCCEEDED")]}), "P3"),
    "an end that is left": (Story(jobs=[seen("FAILED", "RUNNING")], events={"j": [("FAILED", "RUNNING")]}), "P3"),
    "a fence that goes down": (Story(jobs=[seen("RUNNING", "RUNNING", fence_before=2)]), "P4"),
    "a run fence that is lost": (Story(jobs=[seen("RUNNING", "RUNNING", run_fence_before=2)]), "P4"),
    "a limit that is passed": (Story(jobs=[seen("RUNNING", "RUNNING")], slots=0), "P5"),
    "a place that is not free": (Story(counters={"t": 1}), "P5"),
    "an effect without its cause": (Story(endings={"j": Ending("SUCCEEDED", 1)}), "P6"),
    "a letter without a cause": (Story(letters=[LetterSeen(0, 1, "l", "j", "max_failures", None, 2)]), "P7"),
    "a message that waits": (Story(waiting=[("m", "job.result")]), "P8"),
    "a change that is not told": (Story(jobs=[seen("RUNNING", "FAILED")]), "P9"),
    "two decisions": (Story(verdicts={"j": ["approve", "reject"]}), "P10"),
    "two jobs of a due time": (Story(timed=[TimedJobs("s", ["a", "b", "a"], None)]), "P11"),
    "a due time without a job": (Story(timed=[TimedJobs("s", ["a"], ["a", "b"])]), "P11"),
    "a job without a due time": (Story(timed=[TimedJobs("s", ["a", "b"], ["a"])]), "P11"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_each_rule_names_what_breaks_it(what: str) -> None:
    story, rule = BROKEN[what]
    found = check_plane(story)
    assert {violation.rule for violation in found} == {rule}
    assert all(violation.text for violation in found)


def test_a_quiet_story_breaks_no_rule() -> None:
    moves = [(None, "PENDING"), ("PENDING", "SCHEDULED"), ("SCHEDULED", "CANCELLED")]
    story = Story(
        asked=[Asked("k", "t", ["j", "j"], 1)],
        jobs=[seen(before, after) for before, after in moves],
        endings={"j": Ending("CANCELLED", None)},
        events={"j": moves},
        slots=1,
    )
    assert check_plane(story) == []


# What it has found, each separately.


def test_a_leader_that_was_overtaken_is_told_so_and_is_no_accident(caplog: pytest.LogCaptureFixture) -> None:
    async def overtaken(tick: Tick) -> None:
        raise FencedOut("stale", fence=tick.fence, seen=tick.fence + 1, key=tick.lease.key)

    async def scenario() -> None:
        async with fleet(Mode.STICKY, 0) as replica:
            number = await replica.add(overtaken, at_once=True)
            await asyncio.sleep(P / 2)
            assert replica.loops[number].statistics().failed == 1

    with caplog.at_level(logging.WARNING, "holdfast.plane.loops"):
        virtually(scenario)
    (line,) = [record for record in caplog.records if "a tick was refused" in record.message]
    assert (line.levelno, line.exc_info) == (logging.WARNING, None)


# The command.


def test_the_command_replays_one_plane_and_says_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "0", "--trace"]) == 0
    shown = capsys.readouterr().out
    assert "trouble healed" in shown
    assert shown.rstrip().splitlines()[-1].startswith("seed 0: 0 violations, trace ")


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--trace"], ["--hours", "0"], ["--jobs", "-1"]])
def test_wrong_usage_of_the_command_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(wrong)
    assert refused.value.code == 2
    assert "error" in capsys.readouterr().err
