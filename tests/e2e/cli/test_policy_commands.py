"""`holdfast policy`: what a tired person at a shell sees and can do, with a plane, and with a file alone."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from holdfast.cli.app import run_app
from holdfast.core.duration_text import parse_seconds
from holdfast.errors import BadInput
from support.cli.planes import Up, furnish
from support.cli.sessions import LIMIT_S, Done, Shell, until


class Here:
    """`holdfast` as this process runs it, which is enough where nothing depends on the process being its own."""

    def __init__(self, directory: Path, said: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self._said = said

    def run(self, *words: str) -> Done:
        self._said.readouterr()
        code = run_app(words)
        return Done(code, *self._said.readouterr())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    monkeypatch.chdir(tmp_path)
    return Here(tmp_path, capsys)


@pytest.fixture
def plane(here: Here) -> Here:
    (here.directory / "holdfast.toml").write_text('database = "sqlite:///plane.db?synchronous=normal"\n')
    assert here.run("up", "--prepare").code == 0
    return here


@pytest.mark.requires("R76", "R91", "R104")
def test_an_incident_from_look_to_history(plane: Here) -> None:
    assert "the policy was never switched" in plane.run("policy", "show").out
    nameless = plane.run("policy", "set", "high", "fail_closed")
    assert (nameless.code, nameless.out) == (64, "")
    assert "--reason: is missing" in nameless.err
    opened = plane.run("policy", "set", "high", "fail_open", "--reason", "release night", "--json").json
    assert (opened["changed"], opened["mode"], opened["source"]) == (True, "fail_open", "command")
    closed = plane.run("policy", "set", "high", "fail_closed", "--reason", "duplicates", "--expect", "1")
    assert (closed.code, closed.out) == (0, "")
    assert "class high is fail_closed now" in closed.err
    late = plane.run("policy", "set", "high", "wait", "--reason", "too late", "--expect", "1")
    assert late.code == 1
    assert "revision 1, now 2" in late.err
    shown = plane.run("policy", "show").out.splitlines()
    assert shown[0].split()[:2] == ["CLASS", "WHEN"]
    assert shown[1].split()[:2] == ["high", "fail_closed"]
    assert "duplicates: none" in shown
    assert shown[-1] == "next: nothing; no lock falls back"
    history = plane.run("policy", "history", "high").out.splitlines()
    assert [row.split()[-1] for row in history[1:]] == ["2", "1"]
    assert [each["reason"] for each in plane.run("policy", "history", "--json").json] == ["duplicates", "release night"]


@pytest.mark.requires("R103")
def test_an_exercise_is_begun_shown_and_ended(plane: Here) -> None:
    refused = plane.run("policy", "exercise", "workflow.run", "0.01")
    assert refused.code == 64
    assert "no risk class is fail_open" in refused.err
    plane.run("policy", "set", "low", "fail_open", "--reason", "as agreed")
    begun = plane.run("policy", "exercise", "workflow.run", "0.01", "--for", "2h", "--risk", "low")
    assert begun.code == 0
    assert "1.0000% of workflow.run" in begun.err
    (running,) = plane.run("policy", "show", "--json").json["exercises"]
    assert (running["share"], running["risk"]) == (0.01, "low")
    assert running["until_ns"] - running["since_ns"] == 7200 * 10**9
    assert "exercise: 1.0000% of workflow.run in class low" in plane.run("policy", "show").out
    assert plane.run("policy", "exercise", "workflow.run", "0").code == 0
    assert plane.run("policy", "exercise", "workflow.run", "0").code == 1
    assert plane.run("policy", "exercise").out.splitlines()[1].startswith("workflow.run")


@pytest.mark.requires("R84", "R92", "R104")
def test_a_running_plane_follows_a_command_and_its_metrics_say_so(shell: Shell) -> None:
    furnish(shell)
    up = Up(shell)

    def metrics() -> str:
        return httpx.get(f"{up.address}/metrics", timeout=LIMIT_S).text

    assert 'holdfast_policy_mode{mode="fail_open",risk="low"} 1.0' in metrics()
    assert "holdfast_workflow_lock_fallback_total 0.0" in metrics()
    assert shell.run("policy", "set", "low", "fail_closed", "--reason", "drill").code == 0
    until(lambda: 'holdfast_policy_mode{mode="fail_closed",risk="low"} 1.0' in metrics(), "the switch to arrive")
    shown = httpx.get(f"{up.address}/api/v1/policy", timeout=LIMIT_S).json()
    assert {each["risk"]: each["mode"] for each in shown["classes"]} == {"high": "fail_closed", "low": "fail_closed"}
    assert up.end().code == 0


@pytest.mark.requires("R104")
def test_without_a_plane_a_file_is_edited(here: Here) -> None:
    file = here.directory / "policy.toml"
    file.write_text('# ours\n[risk]\nlow = "wait"  # crawls\n')
    done = here.run("policy", "set", "--file", "policy.toml", "low", "fail_open")
    assert (done.code, done.out) == (0, "")
    assert "class low was wait and is fail_open" in done.err
    assert file.read_text() == '# ours\n[risk]\nlow = "fail_open"  # crawls\n'
    assert here.run("policy", "set", "--file", "policy.toml", "low", "often").code == 64
    done = here.run("policy", "set", "--file", "policy.toml", "busy_jitter", "200ms")
    assert "busy_jitter was 0 s and is 0.2 s" in done.err
    here.run("policy", "set", "--file", "policy.toml", "busy_jitter", "0")
    wanted = '# ours\n[risk]\nlow = "fail_open"  # crawls\n\n[scheduler]\nbusy_jitter = 0\n'
    assert file.read_text() == wanted


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5 h", 5400), ("1d", 86_400)])
def test_a_length_of_time_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_seconds("--for", text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-5m", "1w", "1e3", "10 m s", "٣m"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--for"):
        parse_seconds("--for", text)
