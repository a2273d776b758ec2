"""The `holdfast` command of a shell: asks `ready_command` for a process, and ends as that process ends.

Run as `python ready_client.py DESCRIPTOR WORDS…`. Passes on its standard streams, and the signals that end commands.
Imports little: its start is all that a command costs here. A command that was started by another one has no such
descriptor, and becomes an interpreter of its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3] / "src"


def main(descriptor: int, words: list[str]) -> int:
    """Ask, wait, and return the return code."""
    try:
        line = socket.socket(fileno=descriptor)
    except OSError:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        os.execve(sys.executable, [sys.executable, "-m", "holdfast", *words], environment)
    status, theirs = os.pipe()
    request = {"words": words, "directory": str(Path.cwd()), "environment": dict(os.environ)}
    with line:
        socket.send_fds(line, [json.dumps(request).encode()], [0, 1, 2, theirs])
    os.close(theirs)
    with os.fdopen(status) as answers:
        pid = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(answers.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
