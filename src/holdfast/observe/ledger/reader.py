"""Reads audit ledgers: the files of several processes as one history, in the order of time, whatever befell the files.

Promises: reading never raises because of what is in a file; a line that cannot be read is skipped and reported with its
file and line number, and every intact line is returned. Memory is bounded by the number of processes, not by the length
of the history: one block of each process's current file. Records of one process keep their order even when its wall
clock was set back; between processes the wall clocks decide, so that the order is as good as those.

A ledger that is being written can be read at the same time; its last line may then be unfinished, and is reported.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.core.history.events import Record
from holdfast.errors import BadInput
from holdfast.observe.ledger.codec import (
    LINE_BYTES_MAX,
    REMARK,
    Damaged,
    Remark,
    has_sums,
    is_intact,
    needle,
    parse_block,
)
from holdfast.observe.ledger.writer import SUFFIX

_PEEK_BYTES: Final = 1 << 20
BLOCK_BYTES: Final = 64 * 1024
TOO_LONG: Final = "it is longer than any line of a ledger"
SKIPPED_MAX: Final = 1_000  # kept with their places; more are only counted


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that could not be read."""

    file: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: skipped, {self.problem}"


@dataclass(slots=True)
class Findings:
    """What was met while reading, besides records. Complete when the reading is."""

    files: int = 0
    records: int = 0
    dropped: int = 0  # records that writers say they could not write
    damaged: int = 0
    skipped: list[Skipped] = field(default_factory=list)  # the first of them

    def skip(self, file: str, line: int, problem: str) -> None:
        """One more line that could not be read."""
        self.damaged += 1
        if len(self.skipped) < SKIPPED_MAX:
            self.skipped.append(Skipped(file, line, problem))

    def add(self, others: Findings) -> None:
        """What was met in files that come after these."""
        self.files += others.files
        self.records += others.records
        self.dropped += others.dropped
        self.damaged += others.damaged
        self.skipped += others.skipped[: SKIPPED_MAX - len(self.skipped)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records are requested. Times are wall-clock nanoseconds; `until_ns` is not included."""

    key: str | None = None
    family: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None

    def __call__(self, record: Record) -> bool:
        """Whether this is one of them."""
        return self.includes(record.key, record.family, record.at_ns)

    def includes(self, key: str, family: str, at_ns: int) -> bool:
        """Whether records of this key, family and time are requested."""
        return (
            (self.key is None or key == self.key)
            and (self.family is None or family == self.family)
            and (self.since_ns is None or at_ns >= self.since_ns)
            and (self.until_ns is None or at_ns < self.until_ns)
        )


def read(
    path: str | os.PathLike[str], wanted: Callable[[Record], bool] | None = None, findings: Findings | None = None
) -> Iterator[Record]:
    """The records of a ledger (a directory) or of one file, merged by time. What was skipped is in `findings`."""
    found = Findings() if findings is None else findings
    processes = files_by_process(Path(path))
    found.files = sum(map(len, processes))
    key = wanted.key if isinstance(wanted, Wanted) else None
    if len(processes) == 1:
        streams: Iterator[Record] = (record for _, record in _process(processes[0], found, key))
    else:
        merged = heapq.merge(*(_process(files, found, key) for files in processes), key=lambda stamped: stamped[0])
        streams = (record for _, record in merged)
    return streams if wanted is None else filter(wanted, streams)


def load(
    path: str | os.PathLike[str], wanted: Callable[[Record], bool] | None = None, findings: Findings | None = None
) -> list[Record]:
    """All records in one list, process by process: for checkers, which sort them themselves.

    Half the time of `read`, and about 350 bytes of memory for each record.
    """
    found = Findings() if findings is None else findings
    processes = files_by_process(Path(path))
    found.files = sum(map(len, processes))
    key = wanted.key if isinstance(wanted, Wanted) else None
    records: list[Record] = []
    for file in chain.from_iterable(processes):
        for block in _records(file, found, key):
            records.extend(block if wanted is None else filter(wanted, block))
    return records


def files_by_process(path: Path) -> list[list[Path]]:
    """The files, those of one process together and in their order."""
    if path.is_dir():
        processes: dict[str, list[Path]] = {}
        for file in sorted(path.glob(f"*{SUFFIX}")):
            processes.setdefault(file.name.removesuffix(SUFFIX).rpartition(".")[0], []).append(file)
        if not processes:
            raise BadInput("ledger", f"{path} has no files of a ledger (*{SUFFIX})", "give the directory of a ledger")
        return list(processes.values())
    if not path.exists():
        raise BadInput("ledger", f"{path} does not exist", "give the directory of a ledger, or one file")
    return [[path]]


def _process(files: list[Path], findings: Findings, key: str | None) -> Iterator[tuple[int, Record]]:
    """The records of one process, each with a time that never goes back."""
    latest = -(2**63)
    for file in files:
        for block in _records(file, findings, key):
            for record in block:
                if record.at_ns > latest:
                    latest = record.at_ns
                yield latest, record


def _records(file: Path, findings: Findings, key: str | None) -> Iterator[list[Record]]:
    """The records of a file, some at a time. With a key: those that are about others may be left out."""
    sums = sums_in(file)
    about = None if key is None else needle(key)
    for all_numbers, all_lines in _lines(file, findings):
        numbers, lines = all_numbers, all_lines
        if about is not None:
            theirs = [about not in raw and not raw.startswith(REMARK) and is_intact(raw) for raw in lines]
            findings.records += sum(theirs)
            numbers, lines = _without(theirs, numbers, lines)
        entries = parse_block(lines, sums=sums)
        records = [entry for entry in entries if type(entry) is Record]
        findings.records += len(records)
        if len(records) < len(entries):
            for number, entry in zip(numbers, entries, strict=True):
                met(findings, file, number, entry)
        if records:
            yield records


def met(findings: Findings, file: Path, number: int, entry: Record | Remark | Damaged) -> None:
    """Note what a line was, if it was no record."""
    if isinstance(entry, Damaged):
        findings.skip(str(file), number, str(entry))
    elif isinstance(entry, Remark):
        count = entry.facts.get("count")
        findings.dropped += count if entry.what == "dropped" and type(count) is int and 0 <= count < 2**63 else 0


def _without(
    left_out: Sequence[bool], numbers: Sequence[int], lines: Sequence[bytes]
) -> tuple[Sequence[int], list[bytes]]:
    kept = [not each for each in left_out]
    return list(compress(numbers, kept)), list(compress(lines, kept))


def sums_in(file: Path) -> bool:
    """Whether a file has checksums: then a line without one has lost it, and does not come from other software."""
    try:
        with file.open("rb") as opened:
            return has_sums(opened.read(_PEEK_BYTES))
    except OSError:
        return False  # reading it will say why


def _lines(file: Path, findings: Findings) -> Iterator[tuple[Sequence[int], list[bytes]]]:
    """Lines of a file and their numbers, some at a time. Empty ones are left out, and those that are too long said."""
    for block in blocks(file, findings):
        whole = block.text[:-1].split(b"\n")
        numbers: Sequence[int] = range(block.number, block.number + len(whole))
        if block.headless or min(map(len, whole)) == 0 or max(map(len, whole)) > LINE_BYTES_MAX:
            long = [len(raw) > LINE_BYTES_MAX for raw in whole]
            long[0] |= block.headless
            for each in compress(numbers, long):
                findings.skip(str(file), each, TOO_LONG)
            empty_or_long = [each or not raw for each, raw in zip(long, whole, strict=True)]
            numbers, whole = _without(empty_or_long, numbers, whole)
        if whole:
            yield numbers, whole


class Block(NamedTuple):
    """Some lines of a file."""

    place: int  # of the first byte, in the file
    number: int  # of the first line
    text: bytes  # whole lines, each with its end
    headless: bool  # the first line is only the end of one that is too long


def blocks(file: Path, findings: Findings, size: int = BLOCK_BYTES) -> Iterator[Block]:
    """All finished lines of a file. It is open only while a block is read: there may be many files."""
    number, place, rest, headless = 1, 0, b"", False
    while True:
        try:
            with file.open("rb") as opened:
                opened.seek(place + len(rest))
                more = opened.read(size)
        except OSError as error:
            findings.skip(str(file), number, f"the file cannot be read from here on ({error.strerror})")
            return
        if not more:
            break
        end = more.rfind(b"\n") + 1
        if end:
            text = rest + more[:end]
            yield Block(place, number, text, headless)
            number, place, rest, headless = number + text.count(b"\n"), place + len(text), more[end:], False
        else:
            rest += more
        if len(rest) > LINE_BYTES_MAX:
            place, rest, headless = place + len(rest), b"", True
    if rest or headless:
        findings.skip(str(file), number, "it is unfinished: torn by a crash, or being written")
