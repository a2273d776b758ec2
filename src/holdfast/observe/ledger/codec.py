"""One record on one line, and back: JSON, with a checksum, in which what has its default is left out.

Promises: a line that is read back is the line that was written (the checksum sees torn and changed ones), and reading
never raises anything but `Damaged`, whatever the bytes are. Lines without a checksum, as other programs write them, are
accepted when every field is one of a record, unless others of their file have one: then it was lost. A later version
may add fields: a line with a right checksum is read, and what is not known in it is left out.

Text is cut to `TEXT_CHARS_MAX`, so that a line has a bounded length. Times are wall-clock nanoseconds since 1970.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from sys import intern
from typing import Any, Final

from holdfast.core.history.events import EventKind, Record

LINE_BYTES_MAX: Final = 128 * 1024
TEXT_CHARS_MAX: Final = 1_000
_BITS: Final = 63  # besides the sign

REMARK: Final = b'{"ledger":'
_SUM: Final = b',"crc":"'
_SUM_BYTES: Final = len(_SUM) + 8 + 2  # with the digits, the quote and the brace
_KINDS: Final = {str(kind): kind for kind in EventKind}
_DEFAULTS: Final = {each.name: each.default for each in fields(Record) if each.default is not MISSING}
_NAMES: Final = tuple(each.name for each in fields(Record))
_TEXTS: Final = ("key", "family", "owner", "detail", "resource")
_OPTIONAL_TEXTS: Final = ("risk", "reason")
_NUMBERS: Final = ("fence", "began_ns", "until_ns", "value", "based_on")
_encoder = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False, default=str)
_decoder = json.JSONDecoder()
_quoted = json.encoder.encode_basestring_ascii
_OFTEN: Final = frozenset({EventKind.GRANTED, EventKind.RELEASED})


class Damaged(ValueError):
    """A line that cannot be read; the text explains why."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark of a ledger about itself: `opened`, `closed`, or `dropped` (how many records could not be written)."""

    what: str
    at_ns: int
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)


def line(entry: Record | Remark) -> bytes:
    """The line, with its end."""
    body = None if isinstance(entry, Remark) else _usual_body(entry)
    if body is not None:
        return b'%s%s%08x"}\n' % (body[:-1], _SUM, zlib.crc32(body))
    if isinstance(entry, Remark):
        shown: dict[str, Any] = {"ledger": entry.what, "at_ns": entry.at_ns, **entry.facts}
    else:
        shown = {}
        for name in _NAMES:
            value = getattr(entry, name)
            if name not in _DEFAULTS or value != _DEFAULTS[name]:
                shown[name] = _cut(value)
    body = _encoder.encode(shown).encode("ascii")
    if len(body) + _SUM_BYTES >= LINE_BYTES_MAX:  # texts are cut, so it is the facts, and those are the least of it
        return line(_without_facts(entry))
    return b'%s%s%08x"}\n' % (body[:-1], _SUM, zlib.crc32(body))


def _usual_body(record: Record) -> bytes | None:
    """What `line` makes of a grant or the end of one, at a quarter of the cost; None: it is something else."""
    key, family, owner = record.key, record.family, record.owner
    at_ns, fence, began_ns, until_ns = record.at_ns, record.fence, record.began_ns, record.until_ns
    if (
        record.kind not in _OFTEN
        or record.risk is not None
        or record.reason is not None
        or record.facts is not None
        or record.ok is not True
        or record.detail != ""
        or record.resource != ""
        or record.value is not None
        or record.based_on is not None
    ):
        return None
    if not type(at_ns) is type(fence) is type(began_ns) is int or type(until_ns) not in _NUMBER:
        return None
    if not type(key) is type(family) is type(owner) is str or len(key) + len(family) + len(owner) > TEXT_CHARS_MAX:
        return None
    until = "" if until_ns is None else f',"until_ns":{until_ns}'
    family_shown = "" if family == "default" else f',"family":{_quoted(family)}'
    owner_shown = f',"owner":{_quoted(owner)}' if owner else ""
    return (
        f'{{"kind":"{record.kind}","at_ns":{at_ns},"key":{_quoted(key)}{family_shown}{owner_shown}'
        f',"fence":{fence},"began_ns":{began_ns}{until}}}'
    ).encode("ascii")


def has_sums(text: bytes) -> bool:
    """Whether lines with checksums are in it."""
    return _SUM in text


def parse_block(lines: Sequence[bytes], *, sums: bool = False) -> list[Record | Remark | Damaged]:
    """What many lines say, each in its place, in a fraction of the time that one after the other takes.

    Lines of a ledger are decoded in one batch. If a line is not in the ledger's form, each line is decoded alone.
    """
    with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError):  # also `Damaged`
        return _block(lines, _decoder.decode(f"[{b','.join(lines).decode('ascii')}]"))
    return [_parsed(raw, sums=sums) for raw in lines]


def is_intact(raw: bytes) -> bool:
    """Whether a line has a checksum, and the right one."""
    return raw[-_SUM_BYTES:-10] == _SUM and raw[-10:-2] == _sum(raw).encode()


def needle(key: str) -> bytes:
    """What a line of a ledger contains, if it is about this key."""
    return _encoder.encode(key).encode("ascii")


def _block(lines: Sequence[bytes], decoded: list[dict[str, Any]]) -> list[Record | Remark | Damaged]:
    """The entries, if every line has its checksum. A million times over, so that even a call would cost."""
    entries: list[Record | Remark | Damaged] = []
    crc32, size = zlib.crc32, _SUM_BYTES
    for raw, body in zip(lines, decoded, strict=True):
        sum_of_raw = crc32(b"}", crc32(raw[:-size])).to_bytes(4, "big").hex()
        if raw[-size:-10] != _SUM or body.pop("crc") != sum_of_raw:
            raise Damaged("the checksum is wrong")
        entries.append(_usual(body) or (_remark(body) if "ledger" in body else _record(body)))
    return entries


def _usual(body: dict[str, Any]) -> Record | None:
    """A grant, or the end of one, which nearly all records of a ledger are; None: it is something else."""
    names = tuple(body)
    until_ns: Any
    if names == _GRANT:
        kind, at_ns, key, family, owner, fence, began_ns, until_ns = body.values()
    elif names == _END:
        kind, at_ns, key, family, owner, fence, began_ns = body.values()
        until_ns = None
    else:
        return None
    if not type(at_ns) is type(fence) is type(began_ns) is int or type(until_ns) not in _NUMBER:
        return None
    if (at_ns | fence | began_ns | (until_ns or 0)) >> _BITS:  # negative, or beyond: checked more closely
        return None
    if not type(kind) is type(key) is type(family) is type(owner) is str or kind not in _KINDS:
        return None
    # A history has few keys and owners and many records: one text serves all of them.
    key, family, owner = intern(key), intern(family), intern(owner)
    return Record(_KINDS[kind], at_ns, key, family, owner, fence, None, None, began_ns, until_ns)


def _sum(raw: bytes) -> str:
    """The checksum of a line that ends in one: of everything before it, closed by the brace."""
    return zlib.crc32(b"}", zlib.crc32(raw[:-_SUM_BYTES])).to_bytes(4, "big").hex()


def _parsed(raw: bytes, *, sums: bool) -> Record | Remark | Damaged:
    try:
        return parse(raw, sums=sums)
    except Damaged as damage:
        return damage


def parse(raw: bytes, *, sums: bool = False) -> Record | Remark:
    """The content of a line (without its end). `Damaged` if it cannot be trusted. `sums`: it must have a checksum."""
    summed = raw[-_SUM_BYTES : -_SUM_BYTES + len(_SUM)] == _SUM
    body = raw[:-_SUM_BYTES] + b"}" if summed else raw
    if summed and raw[-10:] != b'%08x"}' % zlib.crc32(body):
        raise Damaged("the checksum is wrong")
    try:
        decoded = _decoder.decode(body.decode())
    except (ValueError, RecursionError):  # also what is not UTF-8
        raise Damaged("it is not JSON; a torn or damaged line") from None
    if not isinstance(decoded, dict):
        raise Damaged("it is not a record")
    if sums and not summed:
        raise Damaged("it has no checksum, as others of its file have")
    if "ledger" in decoded:
        return _remark(decoded)
    if not summed and (unknown := decoded.keys() - _KNOWN):
        raise Damaged(f"it has a field that no record has: {min(unknown)!r}")
    return _record(decoded)


_KNOWN: Final = frozenset(_NAMES)


def _record(body: dict[str, Any]) -> Record:
    get = body.get
    kind, at_ns, key = _KINDS.get(get("kind", "")) if isinstance(get("kind"), str) else None, get("at_ns"), get("key")
    if kind is None:
        raise Damaged(f"it is of no known kind: {str(get('kind'))[:40]!r}")
    if type(at_ns) is not int or type(key) is not str or not _fits(at_ns):
        raise Damaged("it says neither when nor of which key, or not in the right form")
    _check(body)
    return Record(
        kind,
        at_ns,
        intern(key),
        intern(get("family", "default")),
        intern(get("owner", "")),
        get("fence"),
        get("risk"),
        get("reason"),
        get("began_ns"),
        get("until_ns"),
        get("ok", True),
        get("detail", ""),
        get("value"),
        get("based_on"),
        get("resource", ""),
        get("facts"),
    )


def _check(body: dict[str, Any]) -> None:
    for name, value in body.items():
        kinds = _FORMS.get(name)
        if kinds is not None and type(value) not in kinds:
            raise Damaged(f"{name} is not in the right form")
        if type(value) is int and kinds is not None and not _fits(value):
            raise Damaged(f"{name} does not fit into 64 bits")


def _fits(number: int) -> bool:
    """Whether other programs can use it: no process writes a time or a fence of a thousand digits."""
    return -1 <= number >> _BITS <= 0


_NUMBER: Final = frozenset({int, type(None)})
_END: Final = ("kind", "at_ns", "key", "family", "owner", "fence", "began_ns")
_GRANT: Final = (*_END, "until_ns")
_FORMS: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(_OPTIONAL_TEXTS, (str, type(None))),
    **dict.fromkeys(_NUMBERS, (int, type(None))),
    "ok": (bool,),
    "facts": (dict, type(None)),
}


def _remark(body: dict[str, Any]) -> Remark:
    what, at_ns = body.pop("ledger"), body.pop("at_ns", None)
    if not isinstance(what, str) or type(at_ns) is not int or not _fits(at_ns):
        raise Damaged("it is a remark of no known form")
    return Remark(what, at_ns, body)


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        return value[: TEXT_CHARS_MAX - 1] + "…"
    return dict(value) if isinstance(value, Mapping) else value


def _without_facts(entry: Record | Remark) -> Record | Remark:
    return Remark(entry.what, entry.at_ns) if isinstance(entry, Remark) else replace(entry, facts={})
