"""`holdfast dashboard`: a document on stdout or in a file, a list for people, and nothing half-written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from holdfast.cli.output.atomic_file import write_whole
from holdfast.errors import BadInput
from support.cli.sessions import Shell


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
    assert head.split() == ["ROW", "PANEL", "SERIES", "QUERY"]
    assert lines[0].startswith("Is anything wrong?")
    found = shell.run("dashboard", "--list", "--json").json
    assert len(lines) == sum(len(each["queries"]) for each in found)
    assert set(found[0]) == {"row", "question", "panel", "text", "unit", "queries"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--list", "--out", "x.json"), "use one of them"),
    ],
)
def test_bad_usage_is_said_and_nothing_is_written(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell.run("dashboard", *words)
    assert (done.code, done.out) == (64, "")
    assert said in done.err
    assert not list(shell.directory.glob("x.*"))


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a directory"):
        write_whole("--out", tmp_path, b"")
