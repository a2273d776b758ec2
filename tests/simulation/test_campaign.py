"""Campaigns: what was done is kept in a file, and a run that was stopped continues where it was."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import simulate
from holdfast.testing.sim.campaign.campaign_file import this_maker
from holdfast.testing.sim.campaign.processes import Lived, WorldName, live
from mutation.mutants_stores import release_without_compare

ADDED_UP = ("worlds", "worlds_by_profile", "lock_ns", "held_ns", "virtual_ns", "steps", "counts", "failed", "next")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "campaign.json"


def run(file: Path, seeds: int, *more: str) -> int:
    return simulate.main(["--seeds", str(seeds), "--jobs", "1", "--campaign", str(file), "--json", *more])


def added_up(file: Path) -> dict[str, Any]:
    read = json.loads(file.read_text(encoding="utf-8"))
    return {name: read[name] for name in ADDED_UP}


def refusal(capsys: pytest.CaptureFixture[str], act: Callable[[], object]) -> str:
    with pytest.raises(SystemExit) as raised:
        act()
    assert raised.value.code == 2
    return capsys.readouterr().err


def test_a_campaign_in_two_parts_comes_to_the_same_as_in_one(tmp_path: Path) -> None:
    parts, whole = tmp_path / "parts.json", tmp_path / "whole.json"
    assert run(parts, 3) == 0
    assert added_up(parts)["next"] == 3
    assert run(parts, 6) == 0
    assert run(whole, 6) == 0
    assert added_up(parts) == added_up(whole)
    assert added_up(whole)["worlds"] == 6


def test_a_campaign_that_is_done_is_not_done_again(file: Path) -> None:
    assert run(file, 2) == 0
    before = added_up(file)
    assert run(file, 2) == 0
    assert added_up(file) == before


def test_an_interrupted_campaign_keeps_what_it_has_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped, whole = tmp_path / "stopped.json", tmp_path / "whole.json"

    def interrupted(worlds: Iterable[WorldName], jobs: int, enough: Callable[[], bool]) -> Iterator[Lived]:
        for number, lived in enumerate(live(worlds, jobs, enough)):
            if number == 2:
                signal.raise_signal(signal.SIGINT)
            yield lived

    with monkeypatch.context() as patch:
        patch.setattr(simulate, "live", interrupted)
        assert run(stopped, 6) == simulate.INTERRUPTED
    assert f"the same command goes on with {stopped}" in capsys.readouterr().err
    assert added_up(stopped)["next"] == 3
    assert run(stopped, 6) == 0
    assert run(whole, 6) == 0
    assert added_up(stopped) == added_up(whole)


def test_a_failing_seed_is_kept_with_its_replay_and_does_not_stop_the_campaign(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        release_without_compare(patch)
        assert run(file, 2) == 1
    assert run(file, 4) == 1  # what was found stays found
    read = added_up(file)
    assert read["worlds"] == 4
    assert read["failed"][0]["replay"] == "python -m holdfast.testing.simulate --seed 0 --trace"
    assert read["failed"][0]["violations"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b"[]", "is no campaign"),
        (b'{"version": 1}', "is no campaign"),
        (b'{"holdfast_campaign": 99}', "has the format 99, not 1"),
        (b'{"holdfast_campaign": 1}', "is damaged"),
    ],
)
def test_what_is_no_campaign_is_refused_and_left_alone(
    file: Path, content: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(content)
    assert says in refusal(capsys, lambda: run(file, 2))
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "value"),
    [("next", 7), ("next", "x"), ("counts", 3), ("made_by", []), ("failed", [{}]), ("lock_ns", {"busy": "long"})],
)
def test_a_damaged_campaign_is_refused(
    file: Path, name: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, 1) == 0
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | {name: value}), encoding="utf-8")
    assert "is damaged" in refusal(capsys, lambda: run(file, 2))


def test_a_campaign_goes_on_only_with_the_worlds_that_it_began_with(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, 1) == 0
    assert "is of busy worlds from seed 0 on" in refusal(capsys, lambda: run(file, 2, "--profile", "long"))
    assert "not of busy ones from 5" in refusal(capsys, lambda: run(file, 2, "--first", "5"))


@pytest.mark.parametrize("other", [{"python": "3.99"}, {"commit": "0123456789ab"}, {"version": "9.9"}])
def test_what_another_version_has_begun_is_gone_on_with_only_if_one_insists(
    file: Path, other: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = replace(this_maker(), **other)
    with monkeypatch.context() as patch:
        patch.setattr(simulate, "this_maker", lambda: stranger)
        assert run(file, 1) == 0
    assert f"was made by {stranger}, and this is {this_maker()}" in refusal(capsys, lambda: run(file, 2))
    assert run(file, 2, "--anyway") == 0
    made_by = json.loads(file.read_text(encoding="utf-8"))["made_by"]
    assert [maker["python"] for maker in made_by] == [stranger.python, this_maker().python]


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_lived_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "cannot be written" in refusal(capsys, lambda: run(tmp_path / "nowhere" / "campaign.json", 10**6))
    assert "is no file" in refusal(capsys, lambda: run(tmp_path, 10**6))
