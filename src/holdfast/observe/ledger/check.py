"""Whether a ledger shows a broken promise: the rules of `core.history.invariants`, for files of any length.

A first pass (`prefilter`) lets ordinary keys pass; only the records of the others are read whole and given to the
rules. What is found, in which order and in which words, is what `core.history.invariants.check` says of all records
together: no rule can be broken by an ordinary key, and as long as a ledger has only what ledgers have, no rule asks
about one key because of another. A history with a view of the store, or of faults, is given to the rules as a whole.

The first pass goes through the files in several processes where that pays, and the answer does not depend on how many.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from holdfast.core.history.holds import HoldInterval, lost
from holdfast.core.history.invariants import Breach, check
from holdfast.observe.ledger.prefilter import ColumnSurvey, FilePart, fetch, survey
from holdfast.observe.ledger.reader import Findings, Wanted, files_by_process
from holdfast.runtime.process_pool import cores, spread

_WORTH_BYTES: Final = 64 * 1024 * 1024  # less than this is read before other processes have started
_PARTS_EACH: Final = 4  # so that a process that is slower than the others does not keep them waiting for long
PROCESSES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class LedgerVerdict:
    """What was found in a ledger."""

    records: int
    grants: int
    keys: int  # that were granted
    violations: list[Breach]
    losses: list[HoldInterval]
    findings: Findings


def check_files(
    path: str | os.PathLike[str], wanted: Wanted | None = None, skew_ns: int = 0, processes: int | None = None
) -> LedgerVerdict:
    """Check a ledger (a directory) or one file. `processes`: as many as pay, if not given."""
    files = list(chain.from_iterable(files_by_process(Path(path))))
    with _without_collecting():
        found = _surveyed(files, wanted, processes)
        records = fetch(files, found.places(found.suspects()), found.findings)
        violations = check(records, skew_ns)
        losses = lost(records)
    return LedgerVerdict(len(found), found.grants, found.keys_granted(), violations, losses, found.findings)


def _surveyed(files: Sequence[Path], wanted: Wanted | None, processes: int | None) -> ColumnSurvey:
    sizes = [_size(file) for file in files]
    if processes is None:
        processes = min(cores(), PROCESSES_MAX) if sum(sizes) >= _WORTH_BYTES else 1
    found = ColumnSurvey()
    for each in spread(_survey, _parts(files, sizes, wanted, processes), processes):
        found.add(each)
    return found


def _survey(part: FilePart) -> ColumnSurvey:
    with _without_collecting():
        return survey(part)


def _parts(files: Sequence[Path], sizes: Sequence[int], wanted: Wanted | None, processes: int) -> list[FilePart]:
    """The files in their order, in parts of about the same size."""
    many = processes * _PARTS_EACH if processes > 1 else 1
    enough = sum(sizes) / many
    parts: list[FilePart] = []
    first = size = 0
    for number, each in enumerate(sizes, 1):
        size += each
        if size >= enough or number == len(files):
            parts.append(FilePart(tuple(files[first:number]), first, wanted))
            first, size = number, 0
    return parts


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0  # reading it will say why


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """The many objects made here are kept, or freed immediately: garbage collection would only cost time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
