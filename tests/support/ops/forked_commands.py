"""The `holdfast` commands of incidents, forked from a process that has imported them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.drills.incidents.holdfast_commands import CommandEnd, OwnProcesses, StayingCommand
from support.cli.ready import ready
from support.source_tree import ROOT


class ForkedCommands:
    """Runs `holdfast` commands as forks of a process that has imported it."""

    def run(self, words: Sequence[str], directory: Path, environment: Mapping[str, str]) -> CommandEnd:
        """See `HoldfastCommands`."""
        code, out, err = ready().run(words, directory, _here(environment), b"")
        return CommandEnd(code, out.decode(), err.decode())

    def start(self, words: Sequence[str], directory: Path, environment: Mapping[str, str], log: Path) -> StayingCommand:
        """See `HoldfastCommands`."""
        if "LD_PRELOAD" in environment:  # which takes effect at the start of a program only
            return OwnProcesses().start(words, directory, _here(environment), log)
        with log.open("wb") as file:
            return ready().start(words, directory, _here(environment), file, file)


def _here(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "PYTHONPATH": str(ROOT / "src")}
