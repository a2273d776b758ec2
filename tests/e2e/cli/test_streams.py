"""Whatever standard output is, a command does what it does, and its exit code says its outcome."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli.sessions import LIMIT_S, Shell

PAYLOAD = json.dumps({"to": "Zo\u00eb \u2192 \U0001f512"}, ensure_ascii=False)


def typed(shell: Shell, redirection: str, *words: str, **extra: str) -> subprocess.CompletedProcess[bytes]:
    """A command as a shell runs it, with its output somewhere."""
    script = f"{shlex.join([sys.executable, '-m', 'holdfast', *words])} {redirection}"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=shell.directory,
        env=shell.environment(HOLDFAST_DATABASE="sqlite:///plane.db", PYTHONUNBUFFERED="", **extra),
        capture_output=True,
        check=False,
        timeout=LIMIT_S,
    )


def submitted(shell: Shell) -> list[str]:
    """The topics of all jobs."""
    done = shell.run("jobs", "list", "--json", env={"HOLDFAST_DATABASE": "sqlite:///plane.db"})
    return [each["topic"] for each in done.json["items"]]


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["people", "programs"])
def test_an_encoding_without_a_character_shows_its_number_and_json_stays_json(
    shell: Shell, words: tuple[str, ...]
) -> None:
    done = typed(shell, "", "jobs", "submit", "s.ok", "--payload", PAYLOAD, "--json", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr.count(b"\n")) == (0, 2)
    assert done.stderr.startswith(b"holdfast: warning: no worker serves topic s.ok")
    assert done.stderr.endswith(b"holdfast: database: sqlite:///plane.db (from $HOLDFAST_DATABASE)\n")
    job = json.loads(done.stdout.decode("ascii"))["job"]
    shown = typed(shell, "", "jobs", "show", job["id"], *words, PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (
        0,
        b"holdfast: database: sqlite:///plane.db (from $HOLDFAST_DATABASE)\n",
    )
    assert b"Zo\\u00eb \\u2192 \\ud83d\\udd12" in shown.stdout
    if words:
        assert json.loads(shown.stdout)["job"]["payload"] == json.loads(PAYLOAD)


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_written_to_in_vain(shell: Shell, redirection: str) -> None:
    done = typed(shell, redirection, "jobs", "submit", "s.ok")
    assert done.returncode == 0, done
    assert submitted(shell) == ["s.ok"]
    assert b"SQLite format 3" in (shell.directory / "plane.db").read_bytes()[:100]


@pytest.mark.parametrize("words", [("jobs", "submit", "s.ok"), ("jobs", "list", "--json"), ("locks",)], ids=" ".join)
def test_output_that_has_no_room_is_74_and_what_was_done_is_done(shell: Shell, words: tuple[str, ...]) -> None:
    assert typed(shell, "", "up", "--prepare").returncode == 0
    done = typed(shell, "> /dev/full", *words)
    assert done.returncode == 74
    assert done.stderr.endswith(b"holdfast: standard output cannot be written: No space left on device\n")
    assert submitted(shell) == (["s.ok"] if "submit" in words else [])


def test_a_working_directory_that_is_gone_is_said(shell: Shell) -> None:
    gone = Path(shell.directory, "gone")
    gone.mkdir()
    script = f"cd gone && rmdir ../gone && {sys.executable} -m holdfast jobs list"
    done = subprocess.run(
        ["bash", "-c", script], cwd=shell.directory, env=shell.environment(), capture_output=True, check=False
    )
    assert done.returncode == 74
    assert done.stderr == b"holdfast: the current directory does not exist any more; change to an existing one\n"
