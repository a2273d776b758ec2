"""The `holdfast` commands of an incident: some run to their end, others stay. Tests fork them instead.

Promises: processes that stay die with the process that started them (Linux).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from holdfast.drills.env.plane import TIED_RUN

LIMIT_S: Final = 60.0


class CommandEnd(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class StayingCommand(Protocol):
    """A command that stays, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """The process."""
        ...

    def poll(self) -> int | None:
        """The exit code; None: it runs."""
        ...

    def kill(self) -> None:
        """End it immediately."""
        ...

    def wait(self) -> int:
        """Wait for its end."""
        ...


class HoldfastCommands(Protocol):
    """Runs `holdfast` commands."""

    def run(self, words: Sequence[str], directory: Path, environment: Mapping[str, str]) -> CommandEnd:
        """Run one to its end."""
        ...

    def start(self, words: Sequence[str], directory: Path, environment: Mapping[str, str], log: Path) -> StayingCommand:
        """Start one that stays. `log` gets all that it prints."""
        ...


class OwnProcesses:
    """See `HoldfastCommands`: each is a process of this interpreter and package."""

    def run(self, words: Sequence[str], directory: Path, environment: Mapping[str, str]) -> CommandEnd:
        """See `HoldfastCommands`."""
        done = subprocess.run(  # noqa: S603 - our own interpreter and package
            [sys.executable, "-m", "holdfast", *words],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return CommandEnd(done.returncode, done.stdout, done.stderr)

    def start(self, words: Sequence[str], directory: Path, environment: Mapping[str, str], log: Path) -> StayingCommand:
        """See `HoldfastCommands`."""
        with log.open("wb") as file:
            return subprocess.Popen(  # noqa: S603 - our own interpreter and package
                [sys.executable, "-c", TIED_RUN, str(os.getpid()), *words],
                cwd=directory,
                env={**environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
