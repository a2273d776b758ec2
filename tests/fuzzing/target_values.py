"""Small values that people type and programs pass on: names, times, fences, cursors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from fuzzing.target import Target, argument, refused, whole
from holdfast.cli.output.screen import printable
from holdfast.cli.parse_time import moment_ns
from holdfast.core.duration_text import parse_duration_ns
from holdfast.core.lease.fencing import FENCE_MAX, parse_fence
from holdfast.errors import BadInput
from holdfast.guards.http.headers import decode_key, encode_key
from holdfast.plane.model.paging import LATEST_NS
from holdfast.plane.workflows.core.definition_codec import duration, written_duration
from holdfast.types import KEY_BYTES_MAX, LABEL_CHARS_MAX, NS, check_key, check_label
from holdfast.web.cursors import cursor_of, place_in

NOON: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
YEAR_NS: Final = 366 * 86_400 * NS


def names(data: bytes) -> None:
    """Names of locks, and labels. What is taken survives the way through a header."""
    text = argument(data)
    try:
        key = check_key("name", text)
    except BadInput as error:
        refused(error)
    else:
        assert len(key.encode()) <= KEY_BYTES_MAX
        assert decode_key(encode_key(key)) == key
        assert printable(key) == key
    try:
        label = check_label("family", text)
    except BadInput as error:
        refused(error)
    else:
        assert len(label) <= LABEL_CHARS_MAX
        assert not {" ", "\n", '"', "{", ","} & set(label)
    assert printable(text).isprintable()


def times(data: bytes) -> None:
    """Lengths and moments, as the shell and definitions of workflows take them."""
    text = argument(data)
    try:
        whole(parse_duration_ns("ttl", text), 0, YEAR_NS)
    except BadInput as error:
        refused(error)
    try:
        moment_ns("since", text, NOON)
    except BadInput as error:
        refused(error)
    try:
        found = duration(text, "timeout")
    except BadInput as error:
        refused(error)
    else:
        whole(found, 0, YEAR_NS)
        assert duration(written_duration(found), "timeout") == found


def fence_text(data: bytes) -> None:
    """A fence in a header: exactly one text for each number, so that two readers never disagree."""
    text = argument(data)
    try:
        fence = parse_fence("Holdfast-Fence", text)
    except BadInput as error:
        refused(error)
        return
    whole(fence, 0, FENCE_MAX)
    assert str(fence) == text


def encoded_key(data: bytes) -> None:
    """The name of a lock in a header."""
    try:
        key = decode_key(data.decode("latin-1"))
    except BadInput as error:
        refused(error)
        return
    assert decode_key(encode_key(key)) == key
    assert check_key("name", key) == key


def cursor(data: bytes) -> None:
    """Where a page ended, as a caller says it. It is no secret, so any client can make one up."""
    text = argument(data)
    for kind in ("jobs", "lines"):
        try:
            place, number = place_in(kind, text)
        except BadInput as error:
            refused(error)
        else:
            whole(number, 0, LATEST_NS)
            assert place.isprintable()
            assert place_in(kind, cursor_of(kind, place, number)) == (place, number)


_NUMBERS: Final = (b"1h30m", b"ms", b"0.5", b"\xd9\xa7", b"1e9", b"-1", b"9" * 30, b"NaN", b"ago", b"24:00", b"+00:00")
_CURSORS: Final = (b"WyJqb2JzIiwi", b"WyJsaW5lcyIsIjEiLDFd", b"==", b"-_")

TARGETS: Final = (
    Target("names", names, "a name that is taken is safe on every store and in every header", (b"{", b"\xed\xa0\x80")),
    Target("times", times, "a length within a year, a moment, or what can be typed instead", _NUMBERS),
    Target("fence-text", fence_text, "one text for each fence", (*_NUMBERS, b"9223372036854775807", b"00")),
    Target("encoded-key", encoded_key, "one name for each header value", (b"%2C", b"%25", b"%ff", b"%C3%A9", b"%7B")),
    Target("cursor", cursor, "a place, or refused", _CURSORS),
)
