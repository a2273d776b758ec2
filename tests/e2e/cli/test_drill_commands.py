"""`holdfast drill` as people type it: the list, the verdict, the report, the exit codes, and that nothing is left."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.drills.catalog import DRILLS
from support.cli.sessions import Shell, alive, until


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_drills_are_listed_for_people_and_for_programs(shell: Shell) -> None:
    done = shell.run("drill", "list")
    assert done.code == 0
    for each in DRILLS:
        assert each.name in done.out
        assert each.shows in done.out
    listed = shell.run("drill", "list", "--json").json
    assert [each["drill"] for each in listed] == [each.name for each in DRILLS]
    assert all(each["requirements"] and each["seconds"] > 0 for each in listed)


@pytest.mark.timeout(240)
@pytest.mark.requires("R35", "R39", "R47", "R73", "R115", "R130")
@pytest.mark.parametrize("command", [("drill", "quick"), ("demo",)])
def test_quick_shows_losses_without_fences_and_none_with_them(shell: Shell, command: tuple[str, ...]) -> None:
    temporary = shell.directory / "tmp"
    temporary.mkdir()
    report = shell.directory / "drill.html"
    words = (*command, "--slo", "60", "--json", "--report", str(report))
    done = shell.run(*words, env={"TMPDIR": str(temporary), "HOLDFAST_URL": ""})
    *steps, verdict = _lines(done.out)
    assert (done.code, verdict["event"], verdict["passed"]) == (0, "verdict", True), done
    assert steps[0]["event"] == "begin"
    assert {each["event"] for each in steps[1:]} == {"step"}
    lost = {each["scene"]: each["lost"] for each in verdict["scenes"]}
    assert lost["without guards"] >= 1
    assert lost["fence checked on writes only"] >= 1
    assert lost["compound, without guards"] == 1
    assert (lost["with guards"], lost["holders killed"], lost["compound, with guards"]) == (0, 0, 0)
    claims = {each["text"] for scene in verdict["scenes"] for each in scene["claims"]}
    assert {"a stale renewal is refused", "a stale release is refused", "a late owner notices"} <= claims
    assert list(temporary.iterdir()) == []
    page = report.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") >= 6


@pytest.mark.timeout(240)
@pytest.mark.requires("R140")
def test_a_takeover_beyond_the_slo_is_exit_code_1_and_said_in_plain_words(shell: Shell) -> None:
    done = shell.run("drill", "pause", "--ttl", "0.8", "--slo", "0.05", "--duration", "1", env={"HOLDFAST_URL": ""})
    assert done.code == 1, done
    assert "and the SLO is 0.05 s" in done.out
    assert "FAIL" in done.out
    assert "\x1b" not in done.out


def test_a_store_that_is_not_marked_is_not_touched(shell: Shell) -> None:
    done = shell.run("drill", "pause", "--url", shell.url)
    assert (done.code, done.out) == (64, "")
    assert f"holdfast drill mark --url {shell.url}" in done.err
    settings = shell.directory / "holdfast.toml"
    settings.write_text(f'database = "{shell.url}"\n')
    done = shell.run("drill", "pause", "--config", str(settings))
    assert done.code == 64
    assert "not marked" in done.err


@pytest.mark.timeout(240)
@pytest.mark.requires("R35")
def test_a_marked_store_is_drilled_and_left_as_free_as_it_was(shell: Shell) -> None:
    missing = shell.run("drill", "unmark", "--url", shell.url)
    assert (missing.code, "no lease store at" in missing.err) == (64, True)
    marked = shell.run("drill", "mark", "--url", shell.url, "--for", "600", "--json").json
    assert marked["key"] == "holdfast:drill:allowed"
    with shell.locks() as locks, locks.lock("another key", ttl=600):
        done = shell.run("drill", "compound", "--url", shell.url, "--slo", "60", "--duration", "1", "--json")
        assert done.code == 0, done
        assert shell.url in _lines(done.out)[-1]["replay"]
        assert {look.key for look in locks.list()} == {"another key", "holdfast:drill:allowed"}
    assert [shell.run("drill", "unmark", "--url", shell.url).code for _ in range(2)] == [0, 1]
    assert shell.run("drill", "compound", "--url", shell.url).code == 64


@pytest.mark.parametrize(
    "words",
    [
        ("drill", "tsunami"),
        ("drill", "pause", "--ttl", "0"),
        ("drill", "pause", "--store", "nats"),
        ("drill", "pause", "--report", "no/such/folder/x.html"),
        ("drill", "mark"),
        ("drill", "unmark"),
        ("drill", "rolling-restart", "--url", "redis://127.0.0.1:1"),
    ],
)
def test_bad_usage_is_exit_code_64_and_nothing_is_played(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.run(*words, env={"HOLDFAST_URL": ""})
    assert (done.code, done.out) == (64, ""), done
    assert done.err.startswith("holdfast: ")


def _started(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> tuple[subprocess.Popen[str], list[int]]:
    """A drill in the middle of its first scene, and the workers that it has started."""
    temporary = shell.directory / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = shell.start("drill", "pause", "--ttl", "20", "--json")
    children: list[int] = []

    def found() -> bool:
        path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        children[:] = [int(each) for each in path.read_text().split()]
        return len(children) >= 2 and any(temporary.glob("holdfast-drill-*/scene-1/ledger/*.jsonl"))

    until(found, "two workers at work")
    return process, children


@pytest.mark.timeout(120)
def test_ctrl_c_ends_a_drill_and_everything_of_it(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    process, children = _started(shell, monkeypatch)
    told = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children)
    assert b"leases.db" not in told, "a URL may contain a password, and arguments are public"
    process.send_signal(signal.SIGINT)
    done = shell.finish(process)
    assert done.code == 130, done
    assert "everything was cleaned up" in done.err
    assert not any(alive(pid) for pid in children)
    assert list((shell.directory / "tmp").iterdir()) == []


@pytest.mark.timeout(120)
def test_workers_die_with_a_drill_that_is_killed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    process, children = _started(shell, monkeypatch)
    process.kill()
    shell.finish(process)
    until(lambda: not any(alive(pid) for pid in children), "the workers to die")


@pytest.mark.parametrize(
    ("drill", "told"), [("failover", "cannot fail over a server"), ("clock", "cannot move the clock of a server")]
)
def test_a_store_that_cannot_be_broken_like_that_is_refused(shell: Shell, drill: str, told: str) -> None:
    done = shell.run("drill", drill, "--url", "redis://127.0.0.1:9")
    assert (done.code, done.out) == (64, "")
    assert f"{told} that it has not started itself" in done.err
