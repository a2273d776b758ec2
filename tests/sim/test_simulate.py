"""The command that lives through simulated worlds: what it prints, and how it exits."""

from __future__ import annotations

import json
import re

import pytest

from holdfast.testing import simulate
from zoo.planted_stores import release_without_compare


def test_clean_worlds_exit_with_zero_and_say_how_much_was_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seeds", "3", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "3 worlds" in out
    assert "simulated lock-hours" in out
    assert "0 with violations" in out


def test_a_violation_is_told_in_words_with_the_one_command_that_replays_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    release_without_compare(monkeypatch)
    assert simulate.main(["--seeds", "2", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^C\d+ key-\d: (a holder believed in|the key was released by) ", out, re.MULTILINE)
    assert "python -m holdfast.testing.simulate --seed 0 --trace" in out


def test_a_replay_shows_every_step_and_ends_with_the_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seed", "1", "--trace"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 100
    assert "0 violations, trace" in lines[-1]


def test_the_report_can_be_read_by_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seeds", "4", "--first", "7", "--jobs", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["worlds"] == 4
    assert report["failed"] == []
    assert report["counts"]["handed"] > 0


def test_a_limit_of_time_ends_an_endless_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--hours", "0.0000001", "--jobs", "1"]) == 0
    assert f"{simulate.CHUNK} worlds" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--jobs", "0"], ["--hours", "-1"], ["--trace"]])
def test_wrong_usage_exits_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        simulate.main(arguments)
    assert raised.value.code == 2
    assert "usage:" in capsys.readouterr().err
