"""A reader of a plane's output may disappear, stall or have a full disk: jobs, the drain and the exit code stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from support.cli.planes import SETTINGS, Up
from support.cli.sessions import LIMIT_S, Shell

FUNCTIONS = """
import asyncio
from holdfast.plane import App

app = App("works")

@app.job("talk")
async def talk(payload, *, ctx):
    for number in range(payload):
        ctx.log.info("line %d %s", number, "x" * 60)
        if number % 50 == 0:
            await asyncio.sleep(0)
    return "talked"

@app.job("fail")
def fail(payload):
    raise ValueError("on purpose")
"""

MANY = 2000  # lines: more than a pipe holds


@pytest.fixture
def furnished(shell: Shell) -> Shell:
    (shell.directory / "holdfast.toml").write_text(SETTINGS)
    (shell.directory / "works.py").write_text(FUNCTIONS)
    return shell


@contextmanager
def running(shell: Shell, *words: str, out: int | IO[Any], err: int | IO[Any]) -> Iterator[subprocess.Popen[bytes]]:
    """`holdfast …` with Python's default buffers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        cwd=shell.directory,
        env=shell.environment(PYTHONUNBUFFERED=""),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def serves(shell: Shell) -> None:
    """Wait until jobs are run here."""
    assert shell.run("jobs", "submit", "talk", "--payload", "0", "--follow", "--timeout", "30").code == 0


def state(shell: Shell, topic: str, payload: int = 1) -> str:
    """How a job ends."""
    words = ("--payload", str(payload), "--max-attempts", "1", "--json")
    job = shell.run("jobs", "submit", topic, *words).json["job"]["id"]
    shell.run("jobs", "follow", job, "--timeout", "30")
    return str(shell.run("jobs", "show", job, "--json").json["job"]["state"])


def check_an_end_in_peace(shell: Shell, process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    held = shell.run("locks", "holdfast:", "--url", "sqlite:///plane.db").out
    assert held == "No locks with the prefix holdfast: found.\n"


@pytest.mark.parametrize("place", ["gone", "full"])
def test_unreadable_events_cost_no_job_and_no_drain(furnished: Shell, tmp_path: Path, place: str) -> None:
    with ExitStack() as stack:
        err = stack.enter_context((tmp_path / "err").open("wb"))
        out = subprocess.PIPE if place == "gone" else stack.enter_context(Path("/dev/full").open("wb"))
        process = stack.enter_context(running(furnished, "up", "--json", out=out, err=err))
        if process.stdout is not None:
            assert json.loads(process.stdout.readline())["event"] == "started"
            process.stdout.close()
        serves(furnished)
        assert state(furnished, "talk", 3) == "SUCCEEDED"
        assert state(furnished, "fail") == "FAILED"
        check_an_end_in_peace(furnished, process)
    said = [json.loads(line)["event"] for line in (tmp_path / "err").read_text().splitlines()]
    assert said == ["standard output cannot be written; events are not shown there"]


def test_a_stalled_reader_of_events_blocks_no_job(furnished: Shell) -> None:
    with running(furnished, "up", "--json", out=subprocess.PIPE, err=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "started"
        assert state(furnished, "talk", MANY) == "SUCCEEDED"
        check_an_end_in_peace(furnished, process)


def test_what_people_read_may_go_away_too(furnished: Shell) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with running(furnished, "up", out=writing, err=writing) as process:
        os.close(writing)
        serves(furnished)
        assert state(furnished, "talk", 3) == "SUCCEEDED"
        check_an_end_in_peace(furnished, process)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_reader_of_standard_error_who_stalls_holds_up_no_worker(furnished: Shell, form: str) -> None:
    words = ("worker", "works:app", "--url", "sqlite:///plane.db", "--log-format", form, "--log-level", "info")
    scheduler = Up(furnished, "--only", "scheduler")
    with running(furnished, *words, out=subprocess.DEVNULL, err=subprocess.PIPE) as process:
        assert state(furnished, "talk", MANY) == "SUCCEEDED"
        assert state(furnished, "talk", 1) == "SUCCEEDED"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert scheduler.end().code == 0


def test_a_reader_of_lines_for_people_who_stalls_holds_up_no_plane(furnished: Shell) -> None:
    with running(furnished, "up", out=subprocess.DEVNULL, err=subprocess.PIPE) as process:
        assert state(furnished, "talk", MANY) == "SUCCEEDED"
        check_an_end_in_peace(furnished, process)
