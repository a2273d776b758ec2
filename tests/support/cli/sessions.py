"""The `holdfast` command as a user runs it: in a process of its own, with pipes or with a terminal.

Everything waits for a condition; a limit that is reached is a failure and says what was waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import holdfast
from support.cli.ready import Started, ready
from support.polling import pauses
from support.source_tree import ROOT

LIMIT_S = 60.0

# The terminal of a session has to be taken by its leader, which only then becomes the program.
_LEADER = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


Running = subprocess.Popen[str] | Started


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output as one JSON value."""
        return json.loads(self.out)

    def events(self) -> dict[str, dict[str, Any]]:
        """The JSON lines on stderr, by event."""
        return {each["event"]: each for each in map(json.loads, self.err.splitlines())}


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until it is so."""
    limit, pause = time.monotonic() + LIMIT_S, pauses()
    while not condition():
        assert time.monotonic() < limit, f"waited {LIMIT_S:g} s for: {what}"
        time.sleep(next(pause))


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def state(pid: int) -> str:
    """The state letter of a process: R, S, T, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def pid_in(path: Path) -> int:
    """The pid that a process has written into a file, as soon as it has."""
    until(lambda: path.exists() and path.read_text().endswith("\n"), f"a pid in {path.name}")
    return int(path.read_text())


class Shell:
    """A place to type commands, with a store of its own."""

    def __init__(self, directory: Path, url: str | None = None) -> None:
        self.directory = directory
        self.url = url or f"sqlite:///{directory}/leases.db"
        self._children: list[Running] = []

    def environment(self, **extra: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOLDFAST_URL": self.url, "COLUMNS": "140", **extra}

    def run(self, *words: str, env: Mapping[str, str] | None = None, input: str = "") -> Done:
        """Run `holdfast` with pipes, to its end."""
        code, out, err = ready().run(words, self.directory, self.environment(**(env or {})), input.encode())
        return Done(code, out.decode(), err.decode())

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `holdfast` with pipes."""
        return self._started(words, subprocess.PIPE, subprocess.PIPE)

    def start_plane(self, *words: str) -> Running:
        """Start a part of a plane with pipes, as a fork."""
        process = ready().start_with_pipes(words, self.directory, self.environment())
        self._children.append(process)
        return process

    def start_into(self, log: Path, *words: str) -> subprocess.Popen[str]:
        """Start `holdfast` with a file for all that it prints."""
        with log.open("wb") as file:
            return self._started(words, file, subprocess.STDOUT)

    def _started(self, words: Sequence[str], out: int | IO[bytes], err: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            cwd=self.directory,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
        )
        self._children.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> Done:
        """Wait for its end."""
        out, err = process.communicate(timeout=LIMIT_S)
        return Done(process.returncode, out, err)

    @contextlib.contextmanager
    def locks(self) -> Iterator[holdfast.Locks]:
        """The same store, from Python."""
        with holdfast.connect(self.url, service="test", request_timeout=20) as locks:
            yield locks

    def make_store(self) -> None:
        """Make the store, as the first lease in it does: commands that read create none."""
        with self.locks() as locks, locks.lock("first", ttl=60):
            pass

    def close(self) -> None:
        """End what is still running."""
        for process in self._children:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


class Typing:
    """A program on a terminal of its own, and a user who types."""

    def __init__(self, shell: Shell, *words: str, program: str = sys.executable, module: bool = True) -> None:
        self._master, slave = pty.openpty()
        arguments = ["-m", "holdfast", *words] if module else [*words]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LEADER, program, *arguments],
            cwd=shell.directory,
            env=shell.environment(TERM="xterm", PS1="% ", NO_COLOR="1"),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""
        self._seen = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def sees(self, text: str) -> None:
        """Wait until the terminal shows a text, after everything that was seen before."""
        until(lambda: text in self._read(0.05)[self._seen :], f"{text!r} on a terminal")
        self._seen = self.shown.index(text, self._seen) + len(text)

    def ends(self) -> int:
        """Wait for the end of the program; its return code."""
        until(self._ended, "the end of a program on a terminal")
        self._read(0.0)
        return self._process.wait()

    def _ended(self) -> bool:
        self._read(0.05)  # or else a program with much to say would wait for us
        return self._process.poll() is not None

    def _read(self, seconds: float) -> str:
        """Read all there is, after waiting a little for the first of it; everything that was ever shown."""
        while select.select([self._master], [], [], seconds)[0]:
            try:
                read = os.read(self._master, 65536)
            except OSError:  # the last one on the other side has closed it
                break
            self.shown += read.decode(errors="replace")
            seconds = 0.0
        return self.shown

    def close(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._master)
