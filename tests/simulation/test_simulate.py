"""The command that lives through simulated worlds: what it prints, and how it exits."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from holdfast.testing import simulate
from holdfast.testing.sim.campaign import processes, progress_bar
from holdfast.testing.sim.campaign.processes import world_of
from holdfast.testing.sim.campaign.progress_bar import Goal, Pace
from holdfast.testing.sim.campaign.totals import Totals, replay_command
from holdfast.testing.sim.worlds.faults import Profile
from holdfast.testing.sim.worlds.world import WorldOutcome, run_seed
from mutation.mutants_stores import release_without_compare


def test_clean_worlds_exit_with_zero_and_say_how_much_was_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seeds", "3", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "3 worlds (3 busy with " in out
    assert "simulated lock-hours" in out
    assert "0 with violations" in out
    assert re.search(r"^faults: \d+ \(", out, re.MULTILINE)


def test_a_violation_is_told_in_words_with_the_one_command_that_replays_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    release_without_compare(monkeypatch)
    assert simulate.main(["--seeds", "2", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^C\d+ key-\d: (a holder believed in|the key was released by) ", out, re.MULTILINE)
    assert "python -m holdfast.testing.simulate --seed 0 --trace" in out


@pytest.mark.parametrize("profile", Profile)
def test_a_replay_shows_every_step_and_ends_with_the_digest(
    profile: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    command = replay_command(1, profile).split()
    assert command[:3] == ["python", "-m", "holdfast.testing.simulate"]
    assert simulate.main(command[3:]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 100
    assert lines[-1] == f"seed 1: 0 violations, trace {run_seed(1, profile=profile).digest}"


def test_the_report_can_be_read_by_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seeds", "9", "--first", "7", "--jobs", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["worlds"] == 9
    assert report["failed"] == []
    assert report["counts"]["handed"] > 0
    assert report["cpu_ns"] > 0
    assert (report["profile"], report["first"], report["next"]) == ("busy", 7, 16)


def test_several_processes_find_what_one_finds(capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for jobs in ("1", "2"):
        assert simulate.main(["--seeds", "6", "--jobs", jobs, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        reports.append({name: report[name] for name in ("worlds", "lock_ns", "held_ns", "steps", "counts")})
    assert reports[0] == reports[1]


def test_a_limit_of_time_ends_an_endless_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--minutes", "0.0000001", "--jobs", "1"]) == 0
    assert "\n1 worlds" in f"\n{capsys.readouterr().out}"


def test_a_number_of_lock_hours_is_reached_and_not_gone_far_beyond(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--hours", "0.1", "--profile", "busy", "--jobs", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    last = run_seed(report["worlds"] - 1).lock_ns / 3600e9
    assert report["lock_hours"] - last < 0.1 <= report["lock_hours"]


def test_a_mix_has_long_worlds_and_busy_ones_in_turn() -> None:
    mixed = [world_of("mixed", seed) for seed in range(4)]
    assert [world.profile for world in mixed] == [Profile.LONG, Profile.BUSY, Profile.LONG, Profile.BUSY]
    assert [world.seed for world in mixed] == [0, 1, 2, 3]
    assert world_of("long", 3) == (Profile.LONG, 3)


def test_a_world_that_the_simulator_cannot_live_through_is_a_finding_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trip(seed: int, *, profile: Profile) -> WorldOutcome:
        if seed == 1:
            raise ZeroDivisionError("planted")
        return run_seed(seed, profile=profile)

    monkeypatch.setattr(processes, "run_seed", trip)
    assert simulate.main(["--seeds", "3", "--jobs", "1", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["worlds"] == 3
    (failed,) = report["failed"]
    assert failed["seed"] == 1
    assert "ZeroDivisionError: planted" in failed["violations"][0]


def test_progress_says_how_fast_it_goes_and_when_it_ends() -> None:
    now = 100.0
    totals = Totals(worlds=Counter(busy=40), lock_ns=Counter(busy=int(250 * 3600e9)))
    pace = Pace(Goal(lock_hours=1000), totals, clock=lambda: now)
    now += 10
    totals.worlds["busy"] += 20
    totals.lock_ns["busy"] += int(250 * 3600e9)
    assert pace.text(totals) == (
        "60 worlds (2.0/s), 500.0 of 1,000 lock-hours (25.0/s), 0 with violations, ends in about 20 s"
    )
    totals.lock_ns["busy"] += int(500 * 3600e9)
    assert pace.text(totals).endswith("done")


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_bar, "LINE_EVERY_S", 0.0)
    assert simulate.main(["--seeds", "2", "--jobs", "1"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("1 worlds (")
    assert lines[-1].startswith("2 worlds (")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seeds", "0"],
        ["--jobs", "0"],
        ["--hours", "-1"],
        ["--hours", "nan"],
        ["--minutes", "0"],
        ["--trace"],
        ["--profile", "quiet"],
    ],
)
def test_wrong_usage_exits_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        simulate.main(arguments)
    assert raised.value.code == 2
    assert "usage:" in capsys.readouterr().err
