"""`holdfast policy set busy_jitter`: the jitter of busy retries, switched by an operator at a shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.app import run_app
from support.cli.sessions import Done


@pytest.mark.requires("R168")
def test_the_jitter_of_busy_retries_is_switched_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> Done:
        capsys.readouterr()
        return Done(run_app(words), *capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    database = 'database = "sqlite:///plane.db?synchronous=normal"\n'
    (tmp_path / "holdfast.toml").write_text(f"{database}[scheduler]\nbusy_delay = 0.3\n")
    assert run("up", "--prepare").code == 0
    refused = run("policy", "set", "busy_jitter", "400ms", "--reason", "waves")
    assert refused.code == 64
    assert "busy_jitter: a jitter of 0.4 s is not below the delay of 0.3 s" in refused.err
    assert run("policy", "set", "busy_jitter", "often", "--reason", "waves").code == 64
    on = run("policy", "set", "busy_jitter", "200ms", "--reason", "waves")
    assert (on.code, on.out) == (0, "")
    assert "busy_jitter is 0.2 s now; processes that can reach the database follow within seconds" in on.err
    assert "busy_jitter is 0.2 s already" in run("policy", "set", "busy_jitter", "0.2", "--reason", "again").err
    shown = run("policy", "show").out
    assert "busy_jitter: 0.2 s since" in shown
    assert "to return to the fixed delay: holdfast policy set busy_jitter 0" in shown
    off = run("policy", "set", "busy_jitter", "0", "--reason", "p99 rose", "--expect", "1", "--json").json
    assert (off["changed"], off["seconds"], off["revision"], off["source"]) == (True, 0.0, 2, "command")
    assert run("policy", "show", "--json").json["busy_jitter"]["seconds"] == 0.0
    late = run("policy", "set", "busy_jitter", "0.1", "--reason", "too late", "--expect", "1")
    assert (late.code, "revision 1, now 2" in late.err) == (1, True)
    history = run("policy", "history", "busy_jitter").out.splitlines()
    assert [row.split()[-1] for row in history[1:]] == ["2", "1"]
