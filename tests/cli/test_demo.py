"""`holdfast demo`: it runs, it keeps its promises, and it would say so if it did not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.sessions import Shell
from holdfast.cli.demo import Promise, _finish
from holdfast.cli.demo_account import Account, Deed
from holdfast.cli.demo_stage import Show


@pytest.mark.requires("R39", "R47", "R115")
def test_the_demonstration_ends_with_every_promise_kept(shell: Shell) -> None:
    done = shell.run("demo", "--fast", "--json", "--url", f"sqlite:///{shell.directory}/demo.db")
    events = [json.loads(line) for line in done.out.splitlines()]
    verdict = events[-1]
    assert (done.code, done.err, verdict["event"], verdict["kept"]) == (0, "", "verdict", True), done
    assert [each["number"] for each in events if each["event"] == "act"] == [1, 2, 3]
    promises = {each["promise"]: each["numbers"] for each in verdict["promises"]}
    assert promises["a stale write changes nothing"] == "1 tried, 0 accepted"
    assert promises["no update is lost"] == "20 additions, balance 20"
    attempts = {each["attempt"]: each["refused"] for each in events if "attempt" in each}
    assert attempts == {"renewal": True, "release": True, "write": True}


def test_the_demonstration_is_readable_without_colours_and_leaves_nothing_behind(shell: Shell) -> None:
    temporary = shell.directory / "tmp"
    temporary.mkdir()
    done = shell.run("demo", "--fast", env={"TMPDIR": str(temporary), "HOLDFAST_URL": ""})
    assert done.code == 0, done
    assert "\x1b" not in done.out
    assert "all 8 promises kept" in done.out
    assert "holdfast run nightly" in done.out
    assert list(temporary.iterdir()) == []


def test_the_demonstration_does_not_disturb_a_store_that_is_in_use(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("account:42", ttl=600) as lease:
        done = shell.run("demo", "--fast", "--url", shell.url)
        assert done.code == 64
        assert lease.owner in done.err


def test_a_broken_promise_is_shown_and_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = [Promise("first", kept=True, numbers="1"), Promise("second", kept=False, numbers="2")]
    assert _finish(Show(as_json=False, fast=True), verdict) == 1
    assert "1 of 2 promises BROKEN" in capsys.readouterr().out
    assert _finish(Show(as_json=True, fast=True), verdict) == 1
    assert json.loads(capsys.readouterr().out)["kept"] is False


@pytest.mark.requires("R47")
def test_the_guarded_balance_refuses_an_older_fence_and_remembers_that(tmp_path: Path) -> None:
    with Account(str(tmp_path / "a.db"), "old") as old, Account(str(tmp_path / "a.db"), "new") as new:
        assert old.enter(5)
        assert new.enter(6)
        assert new.write(6, 10)
        assert not old.write(5, 99)
        assert not old.enter(5)
        assert (new.balance(), new.fence()) == (10, 6)
        assert old.history() == [
            Deed("old", 5, "enter", True),
            Deed("new", 6, "enter", True),
            Deed("new", 6, "write", True),
            Deed("old", 5, "write", False),
            Deed("old", 5, "enter", False),
        ]
