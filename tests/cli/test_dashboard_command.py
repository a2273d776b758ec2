"""`holdfast dashboard`: a document on stdout or in a file, a list for people, and nothing half-written."""

from __future__ import annotations

import importlib
import json
import os
import stat
import sys
from pathlib import Path

import pytest

from cli.sessions import Shell
from holdfast.cli.outfile import write_whole
from holdfast.errors import BadInput, Misconfigured
from holdfast.ops.dashboard_answers import Answers


def test_it_prints_a_document_with_the_lines_of_the_settings(shell: Shell) -> None:
    (shell.directory / "holdfast.toml").write_text("[worker]\nlease_ttl = 9\n")
    done = shell.run("dashboard")
    assert (done.code, done.err) == (0, "")
    (held,) = [panel for panel in done.json["panels"] if panel["title"] == "Hold of worker.job"]
    assert [step["value"] for step in held["fieldConfig"]["defaults"]["thresholds"]["steps"]] == [None, 3.0, 9.0]
    assert shell.run("dashboard", "--json").json == done.json


def test_it_writes_a_whole_file_and_keeps_the_one_before_when_it_cannot(shell: Shell) -> None:
    target = shell.directory / "board.json"
    done = shell.run("dashboard", "--out", "board.json")
    assert (done.code, done.out) == (0, "")
    assert "panels; import it into Grafana" in done.err
    assert json.loads(target.read_text())["uid"] == "holdfast-plane"
    (shell.directory / "holdfast.toml").write_text("[worker]\nlease_ttl = 'long'\n")
    before = target.read_bytes()
    refused = shell.run("dashboard", "--out", "board.json")
    assert (refused.code, refused.out) == (64, "")
    assert "worker.lease_ttl" in refused.err
    assert target.read_bytes() == before
    (shell.directory / "holdfast.toml").unlink()
    assert shell.run("dashboard", "--out", "board.json", "--json").json["file"] == "board.json"
    for place, problem in (("none/board.json", "No such file or directory"), (".", "is a directory")):
        wrong = shell.run("dashboard", "--out", place)
        assert (wrong.code, wrong.out) == (64, "")
        assert problem in wrong.err
    assert sorted(path.name for path in shell.directory.iterdir() if "board" in path.name) == ["board.json"]


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole("--out", pipe, b"rules")
        assert os.read(reader, 100) == b"rules"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_file_keeps_its_rights_and_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real", tmp_path / "link"
    target.write_text("before")
    target.chmod(0o600)
    link.symlink_to(target)
    write_whole("--out", link, b"after")
    assert link.is_symlink()
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("after", 0o600)


def test_it_lists_rows_panels_and_queries(shell: Shell) -> None:
    done = shell.run("dashboard", "--list")
    head, *lines = done.out.splitlines()
    assert head.split() == ["ROW", "PANEL", "LINE", "QUERY"]
    assert lines[0].startswith("Is anything wrong?")
    found = shell.run("dashboard", "--list", "--json").json
    assert len(lines) == sum(len(each["queries"]) for each in found)
    assert set(found[0]) == {"row", "question", "panel", "text", "unit", "queries"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--list", "--out", "x.json"), "choose one of them"),
        (("--preview", "x.png"), "belong together"),
        (("--prometheus", "http://127.0.0.1:1"), "belong together"),
        (("--preview", "x.png", "--prometheus", "ftp://nowhere"), "prometheus: is not an address"),
        (("--preview", "x.png", "--prometheus", "http://127.0.0.1:1", "--range", "0"), "range: 0 s cannot be drawn"),
    ],
)
def test_bad_usage_is_said_and_nothing_is_written(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell.run("dashboard", *words)
    assert (done.code, done.out) == (64, "")
    assert said in done.err
    assert not list(shell.directory.glob("x.*"))


def test_a_prometheus_that_does_not_answer_is_said(shell: Shell) -> None:
    done = shell.run("dashboard", "--preview", "x.png", "--prometheus", "http://127.0.0.1:1")
    assert (done.code, done.out) == (69, "")
    assert "could not be reached" in done.err
    assert not (shell.directory / "x.png").exists()


@pytest.mark.parametrize(
    "said", [b"<html>", b"[]", b'{"data": {}}', b'{"data": {"resultType": "vector", "result": [1]}}']
)
def test_something_else_than_a_prometheus_is_said(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr("holdfast.ops.dashboard_answers.ask", lambda *_, **__: said)
    with pytest.raises(Misconfigured, match="does not answer as a Prometheus does"):
        Answers("http://127.0.0.1:9090", 60)


def test_a_prometheus_without_our_metrics_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: set[object] = set()

    def ask(url: str, *, token: str | None) -> bytes:
        tokens.add(token)
        clock = b'{"data": {"resultType": "scalar", "result": [1, "1"]}}'
        return clock if "time" in url else b'{"data": {"resultType": "vector", "result": []}}'

    monkeypatch.setattr("holdfast.ops.dashboard_answers.ask", ask)
    with pytest.raises(Misconfigured, match="knows no metrics of Holdfast") as said:
        Answers("http://127.0.0.1:9090", 60, "a-token")
    assert tokens == {"a-token"}
    assert "a-token" not in str(said.value)


def test_a_preview_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "holdfast.ops.dashboard_preview", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Misconfigured, match=r"holdfast\[plots\]"):
        importlib.import_module("holdfast.ops.dashboard_preview")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a directory"):
        write_whole("--out", tmp_path, b"")
