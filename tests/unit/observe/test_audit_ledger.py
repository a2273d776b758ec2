"""The audit ledger: it never disturbs, it loses nothing silently, it is bounded, and what befalls its files is seen."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import check
from holdfast.observe.ledger.codec import LINE_BYTES_MAX, line
from holdfast.observe.ledger.reader import Findings, Wanted, read
from holdfast.observe.ledger.writer import Ledger
from holdfast.types import NS, Instant
from support.campaigns import campaign


def granted(number: int, key: str = "k", **more: Any) -> Record:
    return Record(EventKind.GRANTED, number, key, fence=number, **more)


class InFlight:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.wall = 1_000 * NS

    def now(self) -> Instant:
        return Instant(self.wall, self.wall, self.wall)


def fences(path: Path, findings: Findings | None = None) -> list[int]:
    return [record.fence or 0 for record in read(path, findings=findings)]


def test_what_is_noted_is_read_back_in_its_order(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        for number in range(1, 501):
            ledger.note(granted(number))
    assert fences(tmp_path / "ledger") == list(range(1, 501))
    assert (ledger.statistics().written, ledger.statistics().dropped) == (500, 0)


def test_it_takes_what_an_auditor_asks_for_and_all_of_it_when_told_so(tmp_path: Path) -> None:
    history = [Record(kind, 1, "k", fence=1, ok=ok) for kind in EventKind for ok in (True, False)]
    for everything in (False, True):
        with Ledger(tmp_path / str(everything), everything=everything) as ledger:
            for record in history:
                ledger.note(record)
    assert list(read(tmp_path / "True")) == history
    taken = {(record.kind, record.ok) for record in read(tmp_path / "False")}
    assert {
        (EventKind.WRITE, False),
        (EventKind.READ, False),
        (EventKind.FORCED, True),
        (EventKind.LOST, False),
    } <= taken
    assert taken.isdisjoint(
        {(EventKind.WRITE, True), (EventKind.READ, True), (EventKind.BUSY, True), (EventKind.STEP, True)}
    )


def test_rotation_loses_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    with Ledger(tmp_path, file_bytes=4096) as ledger:
        for number in range(1, 1001):
            ledger.note(granted(number))
            if number % 50 == 0:
                assert ledger.flush()
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == ledger.statistics().files > 5
    assert fences(tmp_path) == list(range(1, 1001))


def test_a_file_is_also_full_when_it_is_old(tmp_path: Path) -> None:
    clock = InFlight()
    with Ledger(tmp_path, file_age=60, clock=clock) as ledger:
        for number in range(1, 5):
            ledger.note(granted(number))
            assert ledger.flush()
            clock.wall += 31 * NS
    assert ledger.statistics().files == 2
    assert fences(tmp_path) == [1, 2, 3, 4]


def test_the_disk_that_it_uses_is_bounded_and_the_oldest_goes_first(tmp_path: Path) -> None:
    with Ledger(tmp_path, file_bytes=4096, keep_bytes=40_960) as ledger:
        for number in range(1, 2001):
            ledger.note(granted(number))
            if number % 40 == 0:
                assert ledger.flush()
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 40_960 + 2 * 4096
        left = fences(tmp_path)
    assert ledger.statistics().bytes > 100_000
    assert left == list(range(left[0], 2001))
    assert left[0] > 1


def test_the_files_of_a_process_that_still_writes_are_left_alone(tmp_path: Path) -> None:
    quiet = Ledger(tmp_path, file_bytes=4096, keep_bytes=4096)
    quiet.note(granted(1, "quiet"))
    assert quiet.flush()
    (mine,) = tmp_path.iterdir()
    dead = tmp_path / "dead-1-1.000001.jsonl"
    dead.write_bytes(line(granted(1)))
    os.utime(mine, (1, 1))
    with Ledger(tmp_path, file_bytes=4096, keep_bytes=4096) as busy:
        busy.note(granted(2))
        assert busy.flush()
    assert mine.exists()
    assert not dead.exists()
    quiet.close()


def test_files_are_deleted_by_age_too(tmp_path: Path) -> None:
    old = tmp_path / "old-1-1.000001.jsonl"
    old.write_bytes(line(granted(1)))
    os.utime(old, (1, 1))
    with Ledger(tmp_path, keep_age=3600) as ledger:
        ledger.note(granted(2))
    assert fences(tmp_path) == [2]


def test_a_full_line_drops_the_newest_counts_them_and_says_so_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, gate = threading.Event(), threading.Event()
    write = os.write

    def slow(file: int, data: Any) -> int:
        if threading.current_thread().name == "holdfast-ledger":
            inside.set()
            gate.wait(60)
        return write(file, data)

    monkeypatch.setattr(os, "write", slow)
    ledger = Ledger(tmp_path, room=100)
    ledger.note(granted(1))
    assert inside.wait(60)  # the disk hangs with the first one
    for number in range(2, 1002):
        ledger.note(granted(number))
    ledger.note(Record(EventKind.LOST, 1002, "k", fence=1, ok=False))  # it has room of its own
    assert (ledger.statistics().queued, ledger.statistics().dropped) == (101, 900)
    gate.set()
    ledger.close()
    findings = Findings()
    assert fences(tmp_path, findings) == [*range(1, 102), 1]
    assert findings.dropped == ledger.statistics().dropped == 900


@pytest.mark.parametrize("truncates", [True, False])
def test_a_full_disk_disturbs_no_caller_and_lost_records_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, truncates: bool
) -> None:
    write, full = os.write, threading.Event()

    def sometimes(file: int, data: Any) -> int:
        if not full.is_set() or threading.current_thread().name != "holdfast-ledger":
            return write(file, data)
        if len(data) > 10:
            return write(file, data[: len(data) // 2])  # half of it still fits
        raise OSError(errno.ENOSPC, "no space")

    def refuse(file: int, size: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "write", sometimes)
    if not truncates:
        monkeypatch.setattr(os, "ftruncate", refuse)
    ledger = Ledger(tmp_path)
    ledger.note(granted(1))
    assert ledger.flush()
    full.set()
    ledger.note(granted(2))
    assert ledger.flush()
    full.clear()
    ledger.note(granted(3))
    ledger.close()
    findings = Findings()
    assert fences(tmp_path, findings) == [1, 3]
    assert findings.dropped == ledger.statistics().dropped == 1
    assert findings.damaged == (0 if truncates else 1)  # the torn line is seen, and said


def test_noting_never_raises_whatever_is_noted_and_whenever(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.note(granted(1, facts={"not a number": float("nan")}))
    ledger.note(granted(2, facts={"an object": object()}))
    ledger.close()
    ledger.close()
    ledger.note(granted(3))
    findings = Findings()
    assert fences(tmp_path, findings) == [2]
    assert (findings.dropped, ledger.statistics().dropped) == (1, 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"path": ""},
        {"path": 7},
        {"path": "\0"},
        {"file_bytes": 1},
        {"file_bytes": True},
        {"keep_bytes": 4096, "file_bytes": 8192},
        {"room": 0},
        {"file_age": 0},
        {"sync": -1},
        {"keep_age": "a day"},
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(holdfast.BadInput):
        Ledger(**{"path": tmp_path / "new", **settings})


def test_a_file_is_no_ledger_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(holdfast.BadInput, match="cannot be a directory"):
        Ledger(tmp_path / "file")


LINES = [line(granted(number, "k" * (number % 7))) for number in range(1, 31)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=campaign(50, 150))
@given(
    st.lists(
        st.tuples(
            st.integers(0, sum(map(len, LINES))),
            st.integers(0, 300),
            st.binary(max_size=50) | st.just(b"\n") | st.just(b"\0" * 300) | st.just(b"x" * (LINE_BYTES_MAX + 70_000)),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_damage_anywhere_costs_only_the_lines_that_it_touches(
    tmp_path: Path, wounds: list[tuple[int, int, bytes]]
) -> None:
    """A wound takes bytes away at a place, and puts others there."""
    whole = b"".join(LINES)
    starts = [sum(map(len, LINES[:number])) for number in range(len(LINES))]
    pieces, place, touched = [], 0, set[int]()
    for at, removed, put in sorted(wounds):
        at = max(at, place)
        pieces += [whole[place:at], put]
        place = min(len(whole), at + removed)
        # The end of the line before is part of what a wound at the beginning of a line touches, unless whole lines go.
        touched |= {
            number for number, start in enumerate(starts) if start - 1 < place and start + len(LINES[number]) >= at
        }
    file = tmp_path / "h-1-1.000001.jsonl"
    file.write_bytes(b"".join([*pieces, whole[place:]]))
    findings = Findings()
    found = list(read(tmp_path, findings=findings))
    expected = {number + 1 for number in range(len(LINES))}
    assert {record.fence for record in found} <= expected
    assert {record.fence for record in found} >= {number + 1 for number in range(len(LINES)) if number not in touched}
    assert all(record == granted(record.fence or 0, "k" * ((record.fence or 0) % 7)) for record in found)
    assert findings.damaged == len(findings.skipped)
    assert all(str(file) in str(each) for each in findings.skipped)


def test_a_line_that_lost_its_checksum_and_is_still_json_is_damaged_and_not_of_other_software(tmp_path: Path) -> None:
    file = tmp_path / "h-1-1.000001.jsonl"
    whole = line(granted(2))
    cut = whole[: whole.index(b',"fence"')] + b"}\n"
    file.write_bytes(line(granted(1)) + cut + line(granted(3)))
    findings = Findings()
    assert fences(tmp_path, findings) == [1, 3]
    assert str(findings.skipped[0]) == f"{file}:2: skipped, it has no checksum, as others of its file have"


def test_a_torn_last_line_is_recognised_skipped_and_said(tmp_path: Path) -> None:
    file = tmp_path / "h-1-1.000001.jsonl"
    file.write_bytes(line(granted(1)) + line(granted(2))[:-9])
    findings = Findings()
    assert fences(tmp_path, findings) == [1]
    assert str(findings.skipped[0]) == f"{file}:2: skipped, it is unfinished: torn by a crash, or being written"


def test_the_files_of_several_processes_are_one_history_in_the_order_of_time(tmp_path: Path) -> None:
    for process in range(3):
        data = b"".join(line(granted(number)) for number in range(1 + process, 301, 3))
        (tmp_path / f"h-{process}-0.000001.jsonl").write_bytes(data)
    assert fences(tmp_path) == list(range(1, 301))


def test_a_process_whose_clock_was_set_back_keeps_its_order(tmp_path: Path) -> None:
    one = [Record(EventKind.GRANTED, at, "k", fence=fence) for at, fence in ((100, 1), (50, 2), (120, 4))]
    (tmp_path / "h-1-0.000001.jsonl").write_bytes(b"".join(map(line, one)))
    (tmp_path / "h-2-0.000001.jsonl").write_bytes(line(granted(110, "k")))
    assert fences(tmp_path) == [1, 2, 110, 4]


def test_records_are_filtered_by_key_family_and_time(tmp_path: Path) -> None:
    history = [granted(1, "a"), granted(2, "b", family="x"), granted(3, "a", family="x")]
    (tmp_path / "h-1-0.000001.jsonl").write_bytes(b"".join(map(line, history)))

    def chosen(wanted: Callable[[Record], bool]) -> list[int | None]:
        return [record.fence for record in read(tmp_path, wanted)]

    assert chosen(Wanted(key="a")) == [1, 3]
    assert chosen(Wanted(family="x")) == [2, 3]
    assert chosen(Wanted(since_ns=2)) == [2, 3]
    assert chosen(Wanted(until_ns=2)) == [1]


@pytest.mark.parametrize("path", ["nothing", "."])
def test_that_there_is_no_ledger_is_said(tmp_path: Path, path: str) -> None:
    with pytest.raises(holdfast.BadInput, match="ledger"):
        list(read(tmp_path / path))


def test_a_lease_leaves_its_story_and_never_its_token(tmp_path: Path) -> None:
    with Ledger(tmp_path, everything=True) as ledger, holdfast.connect("memory://", observers=[ledger]) as locks:
        tokens = []
        with locks.lock("invoice:42", ttl=30) as lease:
            tokens.append(lease._lease_record.token)
        stuck = locks.lock("invoice:42", ttl=0.3).acquire()
        tokens.append(stuck._lease_record.token)
        locks.force_release("invoice:42", reason="stuck", actor="ops")
        assert stuck.lost.wait(60)
    text = b"".join(file.read_bytes() for file in tmp_path.iterdir()).decode()
    assert not [token for token in tokens if token in text]
    found = list(read(tmp_path, Wanted(key="invoice:42")))
    story = [
        record.kind
        for record in found
        if record.kind in {EventKind.GRANTED, EventKind.RELEASED, EventKind.FORCED, EventKind.LOST}
    ]
    assert story == [EventKind.GRANTED, EventKind.RELEASED, EventKind.GRANTED, EventKind.FORCED, EventKind.LOST]
    lost = next(record for record in found if record.kind is EventKind.LOST)
    assert lost.reason == "stolen"
    assert lost.facts is not None
    assert lost.facts["ttl_ns"] == 300_000_000
    assert check(found) == []
