"""Starting other processes and talking to them. Each is ended by its own pid, whatever the test did."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.faults.freeze import freeze
from support.polling import pauses

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LIMIT_S = 60.0


def environment() -> dict[str, str]:
    """The child finds the package and the tests where this process found them."""
    paths = [str(ROOT / "src"), str(ROOT / "tests")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "error"}


class Process:
    """Another process that does what it is told."""

    def __init__(self, url: str, table: Path | None = None) -> None:
        self._url = url
        arguments = [sys.executable, str(HERE / "worker.py"), url, *([str(table)] if table else [])]
        self.popen = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )
        assert self._answer() == {"ready": True}

    def do(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """Have something done and return the answer."""
        self.tell(verb, **arguments)
        return self._answer()

    def tell(self, verb: str, **arguments: Any) -> None:
        """Have something done; the answer is asked for later."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps({"do": verb, **arguments}).encode() + b"\n")
        self.popen.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The answer to what was told."""
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.popen.stdout is not None
        ready, _, _ = select.select([self.popen.stdout], [], [], LIMIT_S)
        line = self.popen.stdout.readline() if ready else b""
        if not line:
            self.popen.kill()
            _, errors = self.popen.communicate(timeout=LIMIT_S)
            pytest.fail(f"the worker did not answer: {errors.decode(errors='replace')[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def pause(self) -> None:
        """Stop it from running, as a long collection of garbage or a suspended machine does."""
        freeze(self.popen.pid, self._url)

    def resume(self) -> None:
        """Let it run again."""
        self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it immediately, without any chance to clean up."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(LIMIT_S)

    def interrupted(self) -> str:
        """Press Ctrl-C, and return the last thing it says when it has ended by that."""
        self.popen.send_signal(signal.SIGINT)
        _, errors = self.popen.communicate(timeout=LIMIT_S)
        assert self.popen.returncode != 0
        return errors.decode(errors="replace").strip()

    def end(self) -> None:
        """End it in any case."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.kill()
        if self.popen.stdout is not None and not self.popen.stdout.closed:
            self.popen.communicate(timeout=LIMIT_S)


@contextmanager
def processes(url: str, count: int, table: Path | None = None) -> Iterator[list[Process]]:
    """So many processes on one store, ended at the end."""
    started: list[Process] = []
    try:
        for _ in range(count):
            started.append(Process(url, table))
        yield started
    finally:
        for each in started:
            each.end()


def until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait for a condition, bounded."""
    limit, pause = time.monotonic() + limit_s, pauses()
    while not condition():
        assert time.monotonic() < limit, f"{what}: did not come true"
        time.sleep(next(pause))
