"""Checking a ledger by a first look and a closer one: the answer is that of the rules, asked of every record."""

from __future__ import annotations

import json
import tempfile
import zlib
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history import prefilter
from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.holds import lost
from holdfast.core.history.invariants import check
from holdfast.observe.ledger.check import LedgerVerdict, check_files
from holdfast.observe.ledger.codec import LINE_BYTES_MAX, Damaged, Remark, line, parse_block
from holdfast.observe.ledger.prefilter import ColumnSurvey, FilePart, fetch, survey
from holdfast.observe.ledger.reader import Findings, Wanted, files_by_process, load

START = 1_772_366_400_000_000_000
GRANTS = {EventKind.GRANTED, EventKind.PROMOTED, EventKind.HANDED}


def granted(at: int, fence: int, key: str = "k", owner: str = "a@h:1/x") -> Record:
    return Record(
        EventKind.GRANTED, START + at, key, "jobs", owner, fence, began_ns=START + at - 1, until_ns=START + at + 50
    )


def released(at: int, fence: int, key: str = "k", owner: str = "a@h:1/x") -> Record:
    return Record(EventKind.RELEASED, START + at, key, "jobs", owner, fence, began_ns=START + at - 1)


def by_the_rules(path: Path, wanted: Wanted | None = None, skew_ns: int = 0) -> LedgerVerdict:
    """What is found when every record is made, and every rule is asked about each."""
    findings = Findings()
    records = load(path, wanted, findings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefilter, "suspects", lambda records, kinds: None)
        violations = check(records, skew_ns)
    given_out = [record.key for record in records if record.kind in GRANTS]
    return LedgerVerdict(len(records), len(given_out), len(set(given_out)), violations, lost(records), findings)


def write(directory: Path, files: dict[str, list[bytes]]) -> Path:
    for name, lines in files.items():
        (directory / f"{name}.jsonl").write_bytes(b"".join(each + b"\n" for each in lines))
    return directory


moments = st.integers(0, 40).map(lambda ns: START + ns)
anything = st.builds(
    Record,
    kind=st.sampled_from(sorted(prefilter.LEDGER)) | st.sampled_from(EventKind),
    at_ns=moments,
    key=st.sampled_from(["k", "l", "é", "a\\b", "\ud800"]),
    family=st.sampled_from(["jobs", "default"]),
    owner=st.sampled_from(["a@h:1/x", "b@h:2/y", ""]),
    fence=st.none() | st.integers(-1, 6),
    reason=st.none() | st.just("expired"),
    began_ns=st.none() | moments,
    until_ns=st.none() | moments,
    ok=st.booleans(),
    facts=st.none() | st.fixed_dictionaries({"seen": st.integers(0, 6) | st.booleans() | st.just("7")}),
)
damage = st.binary(max_size=20).filter(lambda raw: b"\n" not in raw) | st.sampled_from(
    [
        b"",
        line(granted(3, 3))[:-4],
        line(Remark("dropped", START, {"count": 3}))[:-1],
        b'{"kind":"granted","at_ns":5,"key":"k"}',
    ]
)


@st.composite
def ledgers(draw: st.DrawFn) -> dict[str, list[bytes]]:
    """Turns of holders in the files of two processes, with a few lines thrown in that may be anything."""
    files: dict[str, list[bytes]] = {"p.000001": [], "p.000002": [], "q.000001": []}
    names = sorted(files)
    at = 0
    turns = st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(["k", "l", "m"]), st.sampled_from(names))
    for fence, (wait, work, key, name) in enumerate(draw(st.lists(turns, max_size=8)), 1):
        at += wait
        lines = [line(granted(at, fence, key))]
        if draw(st.booleans()):
            lines.append(line(Record(EventKind.WRITE, START + at, key, fence=fence, began_ns=START + at, resource="r")))
        at += work
        lines.append(line(released(at, fence, key)))
        files[name] += [each[:-1] for each in lines]
    for odd in draw(st.lists(anything.map(lambda record: line(record)[:-1]) | damage, max_size=4)):
        lines = files[draw(st.sampled_from(names))]
        lines.insert(draw(st.integers(0, len(lines))), odd)
    return files


wishes = st.none() | st.builds(
    Wanted,
    key=st.none() | st.just("k"),
    family=st.none() | st.just("jobs"),
    since_ns=st.none() | moments,
    until_ns=st.none() | moments,
)


@given(ledgers(), wishes, st.integers(0, 3))
def test_a_check_of_files_says_what_the_rules_say_of_every_record(
    files: dict[str, list[bytes]], wanted: Wanted | None, skew_ns: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = write(Path(directory), files)
        assert check_files(path, wanted, skew_ns, processes=1) == by_the_rules(path, wanted, skew_ns)


@given(ledgers())
def test_surveys_of_files_apart_are_together_that_of_all(files: dict[str, list[bytes]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        paths = list(chain.from_iterable(files_by_process(write(Path(directory), files))))
        joined = ColumnSurvey()
        for number, path in enumerate(paths):
            joined.add(survey(FilePart((path,), number)))
        assert joined == survey(FilePart(tuple(paths)))


def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    files = {
        f"p{process}.00000{number}": [
            line(each)[:-1]
            for n in range(40)
            for each in (
                granted(9 * n, 8 * n + process + 1, f"k{n % 3}"),
                released(9 * n + 4, 8 * n + process + 1, f"k{n % 3}"),
            )
        ]
        for process in range(3)
        for number in (1, 2)
    }
    files["p1.000001"][5:5] = [b"torn", line(Remark("dropped", START, {"count": 2}))[:-1]]
    path = write(tmp_path, files)
    found = check_files(path, processes=2)
    assert found == check_files(path, processes=1) == by_the_rules(path)
    assert {each.rule for each in found.violations} == {"C1", "C4"}
    assert (found.findings.damaged, found.findings.dropped, found.findings.files) == (1, 2, 6)


fields = {
    "kind": st.sampled_from(["granted", "released", "lost", "gr\\u0061nted", "geleased"]),
    "at_ns": st.sampled_from(
        [str(START), "0", "-1", "01", "9" * 19, "1.5", "1e18", "true", f'"{START}"', str(2**63), "1_0"]
    ),
    "key": st.sampled_from(
        ['"k"', '"\\u006b"', '"é"', '"a\tb"', '""', '"a","key":"b"', "null", '"' + "x" * 1001 + '"']
    ),
    "family": st.sampled_from(['"jobs"', '""', "null", '"\x7f"']),
    "owner": st.sampled_from(['"a@h"', '""', "7"]),
    "fence": st.sampled_from(["7", "0", "-7", "07", "null", "7.0", str(2**63 - 1), str(2**63), "9" * 18, " 7", '"7"']),
    "began_ns": st.sampled_from([str(START), str(START + 1), "5", "null", "9" * 19]),
    "until_ns": st.sampled_from([str(START), "null", "9" * 18]),
    "colour": st.just('"red"'),
}


@st.composite
def forged(draw: st.DrawFn) -> bytes:
    """A line with a right checksum that is nearly what a ledger writes."""
    usual = {"kind": "granted", "at_ns": str(START), "key": '"k"', "family": '"jobs"', "owner": '"a@h"', "fence": "7"}
    usual |= {"began_ns": str(START), "until_ns": str(START)}
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=2)):
        usual[name] = draw(fields[name])
    for name in draw(st.lists(st.sampled_from(sorted(usual)), max_size=1)):
        del usual[name]
    shown = [f'"{name}":' + (f'"{value}"' if name == "kind" else value) for name, value in usual.items()]
    if draw(st.integers(0, 4)) == 0:
        shown = draw(st.permutations(shown))
    if shown and draw(st.integers(0, 4)) == 0:
        shown.append(shown[0])
    body = ("{" + draw(st.sampled_from([",", ",", ", "])).join(shown) + "}").encode()
    return b'%s,"crc":"%08x"}' % (body[:-1], zlib.crc32(body) ^ draw(st.sampled_from([0, 0, 0, 1])))


@given(forged())
def test_no_forged_line_is_taken_for_more_than_it_says(raw: bytes) -> None:
    """The pattern for usual lines and the reader of JSON agree, on what is damaged and on what is said."""
    with tempfile.TemporaryDirectory() as directory:
        file = write(Path(directory), {"p.000001": [raw]}) / "p.000001.jsonl"
        found = survey(FilePart((file,)))
    [entry] = parse_block([raw], sums=True)
    if not isinstance(entry, Record):
        assert (len(found), found.findings.damaged) == (0, int(isinstance(entry, Damaged)))
        return
    assert list(found.keys) == [entry.key.encode("utf-8", "surrogatepass")]
    said = (found.at_ns[0], found.fence[0], found.meaning[0], found.grants, found.keys_granted())
    grants = int(entry.kind in GRANTS)
    assert said == (entry.at_ns, entry.fence or 0, prefilter.meaning(entry), grants, grants)


def test_the_usual_lines_are_recognised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Or all would take the slow path unnoticed."""
    short = Record(EventKind.GRANTED, START, "k", fence=1, began_ns=START)
    lines = [line(each)[:-1] for each in (granted(1, 7), released(2, 7), short)]

    def no_json(*_: object, **__: object) -> list[Record]:
        raise AssertionError("a usual line was read as JSON")

    monkeypatch.setattr("holdfast.observe.ledger.prefilter.parse_block", no_json)
    assert len(survey(FilePart((write(tmp_path, {"p.000001": lines}) / "p.000001.jsonl",)))) == 3


@pytest.mark.parametrize("length", [LINE_BYTES_MAX + 1, 3 * LINE_BYTES_MAX, 9 * LINE_BYTES_MAX])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_that_is_too_long_costs_no_other(tmp_path: Path, length: int, end: bytes) -> None:
    before, after = line(granted(1, 1)), line(released(2, 1))
    (tmp_path / "p.000001.jsonl").write_bytes(before + b"x" * length + b"\n" + after + b'{"y":' * (length // 5) + end)
    found = check_files(tmp_path, processes=1)
    assert found == by_the_rules(tmp_path)
    assert (found.records, found.findings.damaged) == (2, 2)


def test_a_file_that_goes_away_meanwhile_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, {"p.000001": [line(granted(1, 5))[:-1]], "q.000001": [line(granted(9, 4))[:-1]]})
    files = list(chain.from_iterable(files_by_process(path)))
    found = survey(FilePart(tuple(files)))
    places = found.places(found.suspects())
    assert [record.fence for record in fetch(files, places, found.findings)] == [5, 4]
    files[0].unlink()
    assert [record.fence for record in fetch(files, places, found.findings)] == [4]
    files[1].write_bytes(json.dumps({"other": 1}).encode() + b"\n")
    assert fetch(files, places, found.findings) == []
    assert [Path(each.file).name for each in found.findings.skipped] == ["p.000001.jsonl"] * 2 + ["q.000001.jsonl"]
