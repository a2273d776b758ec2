"""A cache of runs as this process last wrote them, so the next write need not read and encode them again.

Promises: a cached run is used only if the database has exactly this version, in a row of the same age. It is cached
after its transaction was committed, never before. The cache is bounded in characters of documents and evicts the least
recently written run; a run that is larger than the bound is not cached.

Does not promise that a run is cached: the caller reads a missing one.

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
class CachedRun:
    """One version of a run, and the encoder for its next one."""

    run: Run
    version: int
    text: RunText
    size: int

    def is_of(self, row: Row) -> bool:
        """Whether a row, with or without its document, is this version."""
        return bool(row["version"] == self.version and row["created_ns"] == self.run.created_ns)


class RunCache:
    """The runs that one process wrote recently. Belongs to one event loop."""

    def __init__(self, most: int = CHARS_MAX) -> None:
        self._most = most
        self._size = 0
        self._runs: dict[str, CachedRun] = {}  # the latest last

    def get(self, run_id: str) -> CachedRun | None:
        """The last version that this process wrote."""
        return self._runs.get(run_id)

    def put(self, remembered: CachedRun) -> None:
        """Cache a committed version, unless the run has ended or a newer version is cached."""
        run = remembered.run
        self.forget(run.id)
        if run.status.terminal or remembered.size > self._most:
            return
        self._runs[run.id] = remembered
        self._size += remembered.size
        while self._size > self._most:
            self.forget(next(iter(self._runs)))

    def forget(self, run_id: str) -> None:
        """Remove a run."""
        gone = self._runs.pop(run_id, None)
        self._size -= 0 if gone is None else gone.size
