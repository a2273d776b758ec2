"""Lines of the audit ledger: what is written is read back, and what is damaged is never taken for something else."""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from dataclasses import MISSING, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history.events import EventKind, Record
from holdfast.observe.ledger.codec import LINE_BYTES_MAX, TEXT_CHARS_MAX, Damaged, Remark, line, parse, parse_block

numbers = st.none() | st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
records = st.builds(
    Record,
    kind=st.sampled_from(EventKind),
    at_ns=st.integers(0, 2**63 - 1),
    key=texts,
    family=texts,
    owner=texts,
    fence=numbers,
    risk=st.none() | texts,
    reason=st.none() | texts,
    began_ns=numbers,
    until_ns=numbers,
    ok=st.booleans(),
    detail=texts,
    value=numbers,
    based_on=numbers,
    resource=texts,
    facts=st.none() | st.dictionaries(texts, json_values, max_size=4),
)


@given(records)
def test_a_record_is_read_back_as_it_was_written(record: Record) -> None:
    written = line(record)
    assert written.endswith(b"\n")
    assert written.count(b"\n") == 1
    assert parse(written[:-1]) == record
    assert json.loads(written)["kind"] == record.kind  # any tool that reads JSON can read it


@given(records, st.data())
def test_a_line_that_was_changed_or_torn_is_never_taken_for_a_record(record: Record, data: st.DataObject) -> None:
    written = line(record)[:-1]
    at = data.draw(st.integers(0, len(written) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != written[at]))
    for damaged in (written[:at], written[:at] + bytes([byte]) + written[at + 1 :]):
        with pytest.raises(Damaged):
            parse(damaged)


@given(st.binary(max_size=200))
def test_reading_never_raises_anything_else(raw: bytes) -> None:
    with contextlib.suppress(Damaged):
        assert isinstance(parse(raw), Record | Remark)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"[1]", "not a record"),
        (b'{"kind":"granted"}', "neither when nor of which key"),
        (b'{"kind":"eaten","at_ns":1,"key":"k"}', "no known kind"),
        (b'{"kind":["granted"],"at_ns":1,"key":"k"}', "no known kind"),
        (b'{"kind":"granted","at_ns":1,"key":"k","fence":"7"}', "fence is not in the right form"),
        (b'{"kind":"granted","at_ns":1,"key":"k","ok":1}', "ok is not in the right form"),
        (b'{"kind":"granted","at_ns":1,"key":"k","colour":1}', "'colour'"),
        (b'{"ledger":1,"at_ns":1}', "remark"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(raw: bytes, problem: str) -> None:
    with pytest.raises(Damaged, match=problem):
        parse(raw)


def test_lines_of_other_programs_need_no_checksum() -> None:
    assert parse(b'{"kind": "granted", "at_ns": 5, "key": "k", "fence": 7}') == Record(
        EventKind.GRANTED, 5, "k", fence=7
    )


def test_a_field_of_a_later_version_is_left_out_when_the_checksum_is_right() -> None:
    later = line(Remark("x", 1, {}))  # a sum is over whatever the line says
    assert parse(later[:-1]) == Remark("x", 1, {})
    body = b'{"kind":"granted","at_ns":5,"key":"k","weather":"fine"}'
    assert parse(b'%s,"crc":"%08x"}' % (body[:-1], zlib.crc32(body))) == Record(EventKind.GRANTED, 5, "k")


def test_a_line_has_a_bounded_length() -> None:
    record = Record(
        EventKind.LOST, 1, "k", owner="\U0001f512" * 5000, detail="x" * 10**6, facts={"much": ["y" * 99] * 10**4}
    )
    written = line(record)
    assert len(written) < LINE_BYTES_MAX
    found = parse(written[:-1])
    assert isinstance(found, Record)
    assert (len(found.detail), found.facts) == (TEXT_CHARS_MAX, {})


usual = st.builds(
    Record,
    kind=st.sampled_from((EventKind.GRANTED, EventKind.RELEASED)),
    at_ns=st.integers(0, 2**63 - 1),
    key=texts,
    family=texts | st.just("default"),
    owner=texts,
    fence=st.integers(0, 2**63 - 1),
    began_ns=st.integers(0, 2**63 - 1),
    until_ns=numbers,
)


@given(usual)
def test_the_usual_records_are_written_as_all_others_are(record: Record) -> None:
    """They have a shorter way, and the same line at its end."""
    shown = {name: value for name in Record.__slots__ if (value := getattr(record, name)) != _DEFAULTS.get(name, ...)}
    body = json.dumps(shown, separators=(",", ":")).encode()
    assert line(record) == body[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(body)
    assert parse(line(record)[:-1]) == record


_DEFAULTS = {each.name: each.default for each in fields(Record) if each.default is not MISSING}


@given(
    st.lists(records | usual | st.builds(Remark, texts, st.integers(0, 2**63 - 1)), max_size=6),
    st.data(),
    st.booleans(),
)
def test_lines_read_together_say_what_they_say_one_by_one(
    entries: list[Record | Remark], data: st.DataObject, sums: bool
) -> None:
    lines = [line(entry)[:-1] for entry in entries]
    assert parse_block(lines, sums=sums) == entries
    if lines:
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at] = data.draw(st.binary(max_size=30) | st.just(lines[at][:-1]) | st.just(b"{},{}") | st.just(b"[]"))
    found = parse_block(lines, sums=sums)
    for raw, entry in zip(lines, found, strict=True):
        if isinstance(entry, Damaged):
            with pytest.raises(Damaged, match=re.escape(str(entry))):
                parse(raw, sums=sums)
        else:
            assert parse(raw, sums=sums) == entry


def test_a_number_that_is_none_is_damage_also_among_others() -> None:
    good, shown = (
        line(Record(EventKind.GRANTED, 1, "k", fence=1, began_ns=1))[:-1],
        {"kind": "granted", "at_ns": 1, "key": "k"},
    )
    for wrong in ({"fence": "1", "began_ns": 1}, {"fence": 1, "began_ns": 1.5}, {"fence": True, "began_ns": 1}):
        body = json.dumps({**shown, **wrong}, separators=(",", ":")).encode()
        bad = body[:-1] + b',"crc":"%08x"}' % zlib.crc32(body)
        found = parse_block([good, bad, good])
        assert [type(each) for each in found] == [Record, Damaged, Record]
