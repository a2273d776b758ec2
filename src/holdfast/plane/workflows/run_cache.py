"""Runs as this process has last written them, so that the next write need not read and encode them as a whole again.

Promises: a remembered run is used only if the database has the very version that it is of, in a row of the same age. It
is remembered after its transaction was committed, never before. What is remembered is bounded in characters of its
documents; the run that was written longest ago goes first, and one that is larger than the bound is not remembered.

Does not promise that a run is remembered: whoever does not find one reads it.

Clock: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.plane.db.ports import Row
from holdfast.plane.workflows.core.run import Run
from holdfast.plane.workflows.core.run_codec import RunText

CHARS_MAX: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class Remembered:
    """A run in one version, and what encodes its next one."""

    run: Run
    version: int
    text: RunText
    size: int

    def is_of(self, row: Row) -> bool:
        """Whether a row, perhaps without its document, is this very version."""
        return bool(row["version"] == self.version and row["created_ns"] == self.run.created_ns)


class RunMemory:
    """The runs that one process has written lately. Belongs to one event loop."""

    def __init__(self, most: int = CHARS_MAX) -> None:
        self._most = most
        self._size = 0
        self._runs: dict[str, Remembered] = {}  # the latest last

    def get(self, run_id: str) -> Remembered | None:
        """The last version that was written here."""
        return self._runs.get(run_id)

    def put(self, remembered: Remembered) -> None:
        """Remember a version that was committed, unless its run has ended, and nothing older of it."""
        run = remembered.run
        self.forget(run.id)
        if run.status.terminal or remembered.size > self._most:
            return
        self._runs[run.id] = remembered
        self._size += remembered.size
        while self._size > self._most:
            self.forget(next(iter(self._runs)))

    def forget(self, run_id: str) -> None:
        """Remember nothing of a run."""
        gone = self._runs.pop(run_id, None)
        self._size -= 0 if gone is None else gone.size
