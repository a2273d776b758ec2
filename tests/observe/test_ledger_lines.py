"""Lines of the audit ledger: what is written is read back, and what is damaged is never taken for something else."""

from __future__ import annotations

import contextlib
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history import Kind, Record
from holdfast.observe.ledger_lines import LINE_BYTES_MAX, TEXT_CHARS_MAX, Damaged, Remark, line, parse

numbers = st.none() | st.integers(-(2**63), 2**63)
texts = st.text(st.characters(), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
records = st.builds(
    Record,
    kind=st.sampled_from(Kind),
    at_ns=st.integers(0, 2**63),
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
    assert parse(b'{"kind": "granted", "at_ns": 5, "key": "k", "fence": 7}') == Record(Kind.GRANTED, 5, "k", fence=7)


def test_a_field_of_a_later_version_is_left_out_when_the_checksum_is_right() -> None:
    later = line(Remark("x", 1, {}))  # a sum is over whatever the line says
    assert parse(later[:-1]) == Remark("x", 1, {})
    body = b'{"kind":"granted","at_ns":5,"key":"k","weather":"fine"}'
    assert parse(b'%s,"crc":"%08x"}' % (body[:-1], zlib.crc32(body))) == Record(Kind.GRANTED, 5, "k")


def test_a_line_has_a_bounded_length() -> None:
    record = Record(
        Kind.LOST, 1, "k", owner="\U0001f512" * 5000, detail="x" * 10**6, facts={"much": ["y" * 99] * 10**4}
    )
    written = line(record)
    assert len(written) < LINE_BYTES_MAX
    found = parse(written[:-1])
    assert isinstance(found, Record)
    assert (len(found.detail), found.facts) == (TEXT_CHARS_MAX, {})
