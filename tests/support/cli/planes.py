"""A plane as a user starts it: settings and functions in a directory, and `holdfast up` in a process of its own."""

from __future__ import annotations

import json
import signal
import threading
from typing import Any

from support.cli.sessions import Done, Running, Shell, until

SETTINGS = """
database = "sqlite:///plane.db?synchronous=normal"

[api]
port = 0

[worker]
app = "works:app"
count = 1
heartbeat = 0.2
cancel_grace = 1

[replayer]
interval = 1
"""

FUNCTIONS = """
import pathlib, time
from holdfast.plane import App, Fatal

app = App("works")

@app.job("double")
async def double(payload):
    return 2 * payload

@app.job("hopeless")
def hopeless(payload):
    raise Fatal("this will never work")

@app.job("slow")
def slow(payload, *, ctx):
    pathlib.Path(payload, "begun").touch()
    while not pathlib.Path(payload, "go").exists() and not ctx.cancelled.wait(0.02):
        pass
    return "done"
"""


def furnish(shell: Shell) -> None:
    """Write settings and functions into the directory of a shell."""
    (shell.directory / "holdfast.toml").write_text(SETTINGS)
    (shell.directory / "works.py").write_text(FUNCTIONS)


class Up:
    """A running `holdfast up --json`."""

    def __init__(self, shell: Shell, *words: str) -> None:
        self._shell = shell
        self.process: Running = shell.start_plane("up", "--json", *words)
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        until(lambda: self.said("started") or self.process.poll() is not None, "a plane that runs")
        if self.process.poll() is not None:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read())

    @property
    def address(self) -> str:
        """Where it answers HTTP."""
        return str(self.said("started")[0]["address"])

    def said(self, event: str) -> list[dict[str, Any]]:
        """What it has printed so far of one kind."""
        return [each for each in self.events if each["event"] == event]

    def end(self, number: int = signal.SIGTERM) -> Done:
        """Tell it to end, and wait for that."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> Done:
        """Wait for its end."""
        until(lambda: self.process.poll() is not None, "the end of a plane")
        self._reader.join()
        assert self.process.stderr is not None
        assert self.process.returncode is not None
        return Done(self.process.returncode, "", self.process.stderr.read())

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
