"""A function that fails with a megabyte of text, or after too deep a recursion, fills no log of a real process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from typing import IO, Any

import pytest

from holdfast.observe.logs import CHARS_MAX, LINES_MAX
from holdfast.plane.model.outcome import ERROR_CHARS_MAX
from support.cli.planes import furnish
from support.cli.sessions import Shell, until

FAILING = """
@app.job("wordy")
def wordy(payload):
    raise ValueError("<" + "x" * 1_000_000 + ">")

def ping():
    pong()

def pong():
    ping()

@app.job("endless")
async def endless(payload):
    ping()
"""
TOPICS = ("wordy", "endless")


class Logging:
    """A process that logs, and what it has written so far."""

    def __init__(self, shell: Shell, *words: str) -> None:
        self.process: subprocess.Popen[str] = shell.start(*words)
        self.lines: list[str] = []
        streams = (self.process.stdout, self.process.stderr)
        self._readers = [threading.Thread(target=self._read, args=(each,)) for each in streams]
        for each in self._readers:
            each.start()

    def end(self) -> list[str]:
        self.process.send_signal(signal.SIGTERM)
        until(lambda: self.process.poll() is not None, "the end of a process")
        for each in self._readers:
            each.join()
        return self.lines

    def _read(self, stream: IO[str]) -> None:
        self.lines.extend(stream)


def fail(shell: Shell, topic: str) -> str:
    submitted = shell.run("jobs", "submit", topic, "--max-attempts", "1", "--follow", "--json")
    told: dict[str, Any] = json.loads(submitted.out.splitlines()[-1])
    return str(told["job"]["reason"])


@pytest.mark.parametrize(
    "flags",
    [(), ("--json",), ("--log-format", "json")],
    ids=["text", "events", "json lines"],
)
@pytest.mark.parametrize("command", ["up", "worker"])
def test_what_a_process_writes_of_a_failure_is_bounded_and_says_what_is_missing(
    shell: Shell, command: str, flags: tuple[str, ...]
) -> None:
    furnish(shell)
    with (shell.directory / "works.py").open("a") as more:
        more.write(FAILING)
    where = ("--url", "sqlite:///plane.db")
    running = [Logging(shell, "up", *flags)] if command == "up" else []
    if command == "worker":
        running = [Logging(shell, "up", "--only", "scheduler"), Logging(shell, "worker", "works:app", *where, *flags)]
    reasons = [fail(shell, topic) for topic in TOPICS]
    written = running[-1]
    until(lambda: sum("left out: " in each for each in written.lines) == 2, "two failures")
    for each in reversed(running):
        each.end()
    assert reasons[0].startswith("ValueError: <xxx")
    assert reasons[1].startswith("RecursionError: maximum recursion depth exceeded")
    assert max(map(len, reasons)) <= ERROR_CHARS_MAX
    size = sum(map(len, written.lines))
    assert size < 4 * CHARS_MAX, f"{size} characters for two failures"
    assert len(written.lines) < 3 * LINES_MAX
    wordy, endless = (each for each in written.lines if "left out: " in each)
    assert re.search(r"left out: 98\d,\d{3} characters", wordy)
    assert re.search(r"left out: .* characters, .* line ends, 9\d\d frames", endless)
    assert any("maximum recursion depth exceeded" in each for each in written.lines)
