"""A first pass over a whole ledger: which of its keys need a closer check, in a fraction of the reading time.

Nearly all lines of a ledger are grants and the ends of grants, and nearly all keys are ordinary
(`core.history.prefilter`): to know that, when, which key, which fence is enough. So the usual lines are taken apart by
one pattern that knows their exact form, and no record is made of them; everything else goes through `codec`, as
ever. Of each record 29 bytes are kept: when, which key, the fence, what it means to the sweep, and where it stands in
the files, so that those that matter can be fetched.

Promises: what is accepted, what is called damaged, and what is counted are what `reader` returns for the same
files. The pattern accepts only what the JSON of a ledger can be read as in one way (no escapes, no control characters,
numbers below 2^63 without signs or leading zeros, no field twice or out of place), and the checksum of every line is
compared. A key is never called ordinary that a rule could object to.

Surveys of several files can be made apart, also in several processes, and joined in the order of the files.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress, count, groupby, repeat
from operator import gt
from pathlib import Path
from typing import Final, TypeAlias

from holdfast.core.history import prefilter
from holdfast.core.history.events import EventKind, Record
from holdfast.observe.ledger.codec import LINE_BYTES_MAX, Damaged, Remark, parse_block
from holdfast.observe.ledger.reader import TOO_LONG, Block, Findings, Wanted, blocks, met, sums_in

_BLOCK_BYTES: Final = 256 * 1024
_FETCHED_AT_ONCE: Final = 256
_PLACE_BITS: Final = 43  # of a byte in its file; above them is the number of the file
_GRANTS: Final = frozenset({EventKind.GRANTED, EventKind.PROMOTED, EventKind.HANDED})

# A moment between 2001 and 2255 has nineteen digits; so two of them compare as texts as they do as numbers.
_MOMENT: Final = rb"[1-8][0-9]{18}"
_TEXT: Final = rb"[ !#-\[\]-\x7f]{%d,1000}+"  # no quote, no backslash, nothing but ASCII
_USUAL: Final = re.compile(
    rb'(\{"kind":"(?=granted"|released")([gr])[a-z]++","at_ns":(' + _MOMENT + rb'),"key":"(' + _TEXT % 0 + rb')"'
    rb'(?:,"family":"(' + _TEXT % 1 + rb')")?+(?:,"owner":"' + _TEXT % 1 + rb'")?+'
    rb',"fence":([1-9][0-9]{0,17}+),"began_ns":(' + _MOMENT + rb')(?:,"until_ns":' + _MOMENT + rb")?+)"
    rb',"crc":"([0-9a-f]{8})"\}\n'
    rb"|([^\n]*)\n"
)
_SUM_AND_END_BYTES: Final = len(',"crc":"01234567"}\n')
_MEANINGS: Final = bytes.maketrans(b"gr", bytes((prefilter.GRANT, prefilter.END)))


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some of the files of a ledger."""

    files: tuple[Path, ...]
    first: int = 0  # the number of the first of them among all
    wanted: Wanted | None = None


class _Numbers(dict[bytes, int]):
    """A number for each key, given when it is first asked for."""

    def __missing__(self, key: bytes) -> int:
        self[key] = number = len(self)
        return number


@dataclass(slots=True)
class ColumnSurvey:
    """The result of the first pass over the files: a part of each record, in columns."""

    findings: Findings = field(default_factory=Findings)
    keys: _Numbers = field(default_factory=_Numbers)
    granted: set[int] = field(default_factory=set)  # keys with a grant that is not a usual one
    kinds: set[EventKind] = field(default_factory=set)  # besides those of the usual lines
    grants: int = 0
    at_ns: array[int] = field(default_factory=lambda: array("q"))
    fence: array[int] = field(default_factory=lambda: array("q"))
    place: array[int] = field(default_factory=lambda: array("q"))
    key: array[int] = field(default_factory=lambda: array("I"))  # its number
    meaning: bytearray = field(default_factory=bytearray)  # `ordinary.meaning`

    def __len__(self) -> int:
        """How many records were asked for and are there."""
        return len(self.meaning)

    def add(self, others: ColumnSurvey) -> None:
        """What is known of files that come after these."""
        numbers = [self.keys[key] for key in others.keys]
        self.findings.add(others.findings)
        self.granted.update(map(numbers.__getitem__, others.granted))
        self.kinds |= others.kinds
        self.grants += others.grants
        self.at_ns += others.at_ns
        self.fence += others.fence
        self.place += others.place
        self.key.extend(map(numbers.__getitem__, others.key))
        self.meaning += others.meaning

    def keys_granted(self) -> int:
        """How many keys were granted at least once."""
        usual = set(compress(self.key, map(prefilter.GRANT.__eq__, self.meaning)))
        return len(usual | self.granted)

    def suspects(self) -> set[int] | None:
        """The numbers of the keys that are not ordinary. None: the history as a whole is not."""
        if not self.kinds <= prefilter.LEDGER:
            return None
        order = sorted(range(len(self)), key=self.at_ns.__getitem__)
        columns = (map(column.__getitem__, order) for column in (self.key, self.fence, self.meaning))
        return prefilter.out_of_turn(zip(*columns, strict=True))

    def places(self, keys: set[int] | None) -> list[int]:
        """Where the records of these keys are (None: of all), in the order of the files."""
        chosen = self.place if keys is None else compress(self.place, map(keys.__contains__, self.key))
        return sorted(chosen)


def survey(part: FilePart) -> ColumnSurvey:
    """Read these files."""
    found = ColumnSurvey()
    found.findings.files = len(part.files)
    for number, file in enumerate(part.files, part.first):
        sums = sums_in(file)
        for block in blocks(file, found.findings, _BLOCK_BYTES):
            whole = _without_its_head(found, file, block) if block.headless else block
            unusual = _look(found, whole, number << _PLACE_BITS | whole.place, part.wanted)
            if unusual:
                _look_closer(found, file, unusual, part.wanted, sums=sums)
    return found


def _without_its_head(found: ColumnSurvey, file: Path, block: Block) -> Block:
    found.findings.skip(str(file), block.number, TOO_LONG)
    head = block.text.index(b"\n") + 1
    return Block(block.place + head, block.number + 1, block.text[head:], headless=False)


_Line: TypeAlias = tuple[int, int, bytes]  # its number, its place, and itself without its end


def _look(found: ColumnSurvey, block: Block, first: int, wanted: Wanted | None) -> list[_Line]:
    """Take in the usual lines of a block that begins at this place, and return the others.

    Column by column, and not line by line: a few steps of Python for each of millions of lines are what takes time.
    """
    lines: list[tuple[bytes, ...]] = _USUAL.findall(block.text)
    sizes = [len(each[0]) + _SUM_AND_END_BYTES if each[0] else len(each[-1]) + 1 for each in lines]
    places: Sequence[int] = list(accumulate(sizes[:-1], initial=first))
    unusual: list[_Line] = []
    usual = [each[0] != b"" for each in lines]
    if not all(usual):
        numbered = zip(count(block.number), places, lines, usual, strict=False)
        unusual = [(number, place, each[-1]) for number, place, each, is_usual in numbered if not is_usual]
        lines, places = list(compress(lines, usual)), list(compress(places, usual))
    if not lines:
        return unusual
    bodies, kind, at, key, family, fence, began, sums, _ = zip(*lines, strict=True)
    if not _are_intact(bodies, sums):  # then which of them, and why, is reported line by line
        return _each_line(block, first)
    found.findings.records += len(lines)
    if wanted is not None:
        about = zip(key, family, at, strict=True)
        chosen = [wanted.includes(k.decode(), f.decode() or "default", int(ns)) for k, f, ns in about]
        kind, at, key, fence, began, places = (
            tuple(compress(c, chosen)) for c in (kind, at, key, fence, began, places)
        )
    meaning = bytearray(b"".join(kind)).translate(_MEANINGS)
    found.grants += meaning.count(prefilter.GRANT)
    for row, is_back in enumerate(map(gt, began, at)) if any(map(gt, began, at)) else ():
        if is_back:  # a clock was set back while it was read
            if meaning[row] == prefilter.GRANT:
                found.granted.add(found.keys[key[row]])
            meaning[row] = prefilter.ODD
    found.at_ns.extend(_numbers(at))
    found.fence.extend(_numbers(fence))
    found.place.extend(places)
    found.key.extend(map(found.keys.__getitem__, key))
    found.meaning += meaning
    return unusual


def _numbers(digits: Iterable[bytes]) -> list[int]:
    """Many numbers in one step, in half the time that it takes one by one. The pattern has matched digits only."""
    numbers: list[int] = json.loads(f"[{b','.join(digits).decode()}]")
    return numbers


def _are_intact(bodies: Iterable[bytes], sums: Iterable[bytes]) -> bool:
    """Whether all checksums are right: each is of its body, closed by the brace."""
    said = array("I", bytes.fromhex(b"".join(sums).decode()))
    if sys.byteorder == "little":
        said.byteswap()
    return said == array("I", map(zlib.crc32, repeat(b"}"), map(zlib.crc32, bodies)))


def _each_line(block: Block, first: int) -> list[_Line]:
    raws = block.text[:-1].split(b"\n")
    places = accumulate((len(raw) + 1 for raw in raws[:-1]), initial=first)
    return list(zip(count(block.number), places, raws, strict=False))


def _look_closer(
    found: ColumnSurvey, file: Path, unusual: Sequence[_Line], wanted: Wanted | None, *, sums: bool
) -> None:
    """Take in lines that are not the usual ones: other records, remarks, damage, and what other programs write."""
    fitting = [raw for _, _, raw in unusual if 0 < len(raw) <= LINE_BYTES_MAX]
    entries = iter(parse_block(fitting, sums=sums))
    for number, place, raw in unusual:
        if len(raw) > LINE_BYTES_MAX:
            found.findings.skip(str(file), number, TOO_LONG)
        elif raw:
            entry = next(entries)
            if isinstance(entry, Record):
                found.findings.records += 1
                if wanted is None or wanted(entry):
                    _take(found, place, entry)
            else:
                met(found.findings, file, number, entry)


def _take(found: ColumnSurvey, place: int, record: Record) -> None:
    number = found.keys[record.key.encode("utf-8", "surrogatepass")]  # of a usual line these are the same bytes
    found.kinds.add(record.kind)
    if record.kind in _GRANTS:
        found.grants += 1
        found.granted.add(number)
    found.at_ns.append(record.at_ns)
    found.fence.append(record.fence or 0)
    found.place.append(place)
    found.key.append(number)
    found.meaning.append(prefilter.meaning(record))


def fetch(files: Sequence[Path], places: Iterable[int], findings: Findings) -> list[Record]:
    """The records at these places (`ColumnSurvey.places`) of all files of a ledger.

    A ledger that is in use may lose its oldest file in between. That is reported, and its records are missing.
    """
    records: list[Record] = []
    for number, group in groupby(places, lambda place: place >> _PLACE_BITS):
        file, missing = files[number], 0
        offsets = [place & ((1 << _PLACE_BITS) - 1) for place in group]
        for entry in _entries(file, offsets):
            if isinstance(entry, Record):
                records.append(entry)
            else:
                missing += 1
        if missing:
            findings.skip(str(file), 1, f"it was changed or deleted while it was read; {missing:,} records are missing")
    return records


def _entries(file: Path, offsets: Sequence[int]) -> Iterator[Record | Remark | Damaged]:
    """What stands at these places. One entry for each, also when the file is gone."""
    done = 0
    sums = sums_in(file)
    try:
        with file.open("rb") as opened:
            for first in range(0, len(offsets), _FETCHED_AT_ONCE):
                lines = []
                for offset in offsets[first : first + _FETCHED_AT_ONCE]:
                    opened.seek(offset)
                    lines.append(opened.readline(LINE_BYTES_MAX + 1).removesuffix(b"\n"))
                entries = parse_block(lines, sums=sums)
                done += len(entries)
                yield from entries
    except OSError:
        yield from (Damaged("the file is gone") for _ in offsets[done:])
