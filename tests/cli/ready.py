"""Running `holdfast` to its end in a process that did not have to import it first.

Most of what a command costs is the start of its interpreter, and a hundred tests want to see a command and nothing of
that. Those that are about processes (signals, terminals, planes) start real ones; see `sessions`.
"""

from __future__ import annotations

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
from typing import Final

from repository.source import ROOT

LIMIT_S: Final = 60.0


class Ready:
    """The other side of `ready_command`."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("ready_command.py"))],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            )

    def run(
        self, words: Sequence[str], directory: Path, environment: Mapping[str, str], text: bytes
    ) -> tuple[int, bytes, bytes]:
        """Return code, output and errors of a command that is given a text."""
        request = {"words": list(words), "directory": str(directory), "environment": dict(environment)}
        with contextlib.ExitStack() as ours:
            given, said, complained, ended = (os.pipe() for _ in range(4))
            theirs = [given[0], said[1], complained[1], ended[1]]
            for file in (said[0], complained[0], ended[0]):
                ours.callback(os.close, file)
            try:
                os.write(given[1], text)  # less than what a pipe holds
                socket.send_fds(self._line, [json.dumps(request).encode()], theirs)
            finally:
                for file in (given[1], *theirs):
                    os.close(file)
            out, err, status = _all_of(said[0], complained[0], ended[0])
        return int(status.split()[1]), out, err

    def end(self) -> None:
        """No more commands."""
        self._line.close()
        self._process.wait(LIMIT_S)


@cache
def ready() -> Ready:
    """One for all tests of this process."""
    return Ready()


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
