"""Running `holdfast` in a process that did not have to import it first.

Most of what a command costs is the start of its interpreter and its imports, and hundreds of tests want to see a
command and nothing of that. `Ready.run` runs one to its end, `Ready.start` starts one that stays. Both are processes of
their own, forked from one that has imported everything: they are paused, killed and waited for like any other.
Tests of the start itself, of terminals and of pipes start interpreters; see `sessions`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Final

from support.source_tree import ROOT

LIMIT_S: Final = 60.0
PLANE: Final = ("holdfast.cli", "holdfast.plane", "holdfast.web", "holdfast.stores")


class Started:
    """A command that runs. Has the part of `subprocess.Popen` that tests use."""

    def __init__(self, status: int, stdout: IO[str] | None = None, stderr: IO[str] | None = None) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The return code, or None while it runs."""
        return self._within(0.0)

    def wait(self, timeout: float = LIMIT_S) -> int:
        """The return code, when it has ended."""
        if self._within(timeout) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Tell it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it immediately."""
        self.send_signal(signal.SIGKILL)

    def _within(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            with self._status as status:
                self.returncode = int(status.readline())
        return self.returncode


class Ready:
    """The other side of `ready_command`."""

    def __init__(self, *packages: str, **environment: str) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("ready_command.py")), *packages],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
            )

    def run(
        self, words: Sequence[str], directory: Path, environment: Mapping[str, str], text: bytes
    ) -> tuple[int, bytes, bytes]:
        """Return code, output and errors of a command that is given a text."""
        with contextlib.ExitStack() as ours:
            given, said, complained, ended = (os.pipe() for _ in range(4))
            theirs = [given[0], said[1], complained[1], ended[1]]
            for file in (said[0], complained[0], ended[0]):
                ours.callback(os.close, file)
            try:
                os.write(given[1], text)  # less than what a pipe holds
                self._ask(words, directory, environment, theirs)
            finally:
                for file in (given[1], *theirs):
                    os.close(file)
            out, err, status = _all_of(said[0], complained[0], ended[0])
        return int(status.split()[1]), out, err

    def start(
        self, words: Sequence[str], directory: Path, environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
    ) -> Started:
        """A command that runs, with files for what it prints."""
        return Started(self._started(words, directory, environment, out.fileno(), err.fileno()))

    def start_with_pipes(self, words: Sequence[str], directory: Path, environment: Mapping[str, str]) -> Started:
        """A command that runs, with pipes for what it prints."""
        (out, printed), (err, complained) = os.pipe(), os.pipe()
        try:
            status = self._started(words, directory, environment, printed, complained)
        finally:
            os.close(printed)
            os.close(complained)
        return Started(status, os.fdopen(out), os.fdopen(err))

    def _started(
        self, words: Sequence[str], directory: Path, environment: Mapping[str, str], out: int, err: int
    ) -> int:
        status, theirs = os.pipe()
        try:
            with Path(os.devnull).open("rb") as nothing:
                self._ask(words, directory, environment, [nothing.fileno(), out, err, theirs])
        finally:
            os.close(theirs)
        return status

    def _ask(self, words: Sequence[str], directory: Path, environment: Mapping[str, str], files: Sequence[int]) -> None:
        request = {"words": list(words), "directory": str(directory), "environment": dict(environment)}
        socket.send_fds(self._line, [json.dumps(request).encode()], files)

    def fileno(self) -> int:
        """The descriptor by which other processes can ask too; see `ready_client`."""
        return self._line.fileno()

    def end(self) -> None:
        """No more commands."""
        self._line.close()
        self._process.wait(LIMIT_S)


@cache
def ready() -> Ready:
    """One for all tests of this process."""
    made = Ready(*PLANE)
    atexit.register(made.end)
    return made


@cache
def ready_strict() -> Ready:
    """The same for processes of a plane, in which a warning is an error."""
    made = Ready(*PLANE, PYTHONWARNINGS="error", PYTHONUNBUFFERED="1")
    atexit.register(made.end)
    return made


def _all_of(*files: int) -> list[bytes]:
    """What comes out of each, to its end. The last says who is to be killed if that takes too long."""
    limit, open_files = time.monotonic() + LIMIT_S, set(files)
    read = dict.fromkeys(files, b"")
    while open_files:
        found = select.select(open_files, [], [], max(0.0, limit - time.monotonic()))[0]
        if not found:
            os.kill(int(read[files[-1]].split()[0]), signal.SIGKILL)
            raise AssertionError(f"waited {LIMIT_S:g} s for the end of a command; it said {list(read.values())}")
        for file in found:
            more = os.read(file, 65_536)
            read[file] += more
            if not more:
                open_files.remove(file)
    return [read[file] for file in files]
