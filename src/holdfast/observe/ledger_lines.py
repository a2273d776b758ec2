"""One record on one line, and back: JSON, with a checksum, in which what has its default is left out.

Promises: a line that is read back is the line that was written (the checksum sees torn and changed ones), and reading
never raises anything but `Damaged`, whatever the bytes are. Lines without a checksum, as other programs write them, are
accepted when every field is one of a record, unless others of their file have one: then it was lost. A later version
may add fields: a line with a right checksum is read, and what is not known in it is left out.

Text is cut to `TEXT_CHARS_MAX`, so that a line has a bounded length. Times are wall-clock nanoseconds since 1970.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Final

from holdfast.core.history import Kind, Record

LINE_BYTES_MAX: Final = 128 * 1024
TEXT_CHARS_MAX: Final = 1_000

_SUM: Final = b',"crc":"'
_SUM_BYTES: Final = len(_SUM) + 8 + 2  # with the digits, the quote and the brace
_KINDS: Final = {str(kind): kind for kind in Kind}
_DEFAULTS: Final = {each.name: each.default for each in fields(Record) if each.default is not MISSING}
_NAMES: Final = tuple(each.name for each in fields(Record))
_TEXTS: Final = ("key", "family", "owner", "detail", "resource")
_OPTIONAL_TEXTS: Final = ("risk", "reason")
_NUMBERS: Final = ("fence", "began_ns", "until_ns", "value", "based_on")
_encoder = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False, default=str)
_decoder = json.JSONDecoder()


class Damaged(ValueError):
    """A line that cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Remark:
    """What a ledger says about itself: `opened`, `closed`, or `dropped` (how many records could not be written)."""

    what: str
    at_ns: int
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)


def line(entry: Record | Remark) -> bytes:
    """The line, with its end."""
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


def has_sums(text: bytes) -> bool:
    """Whether lines with checksums are in it."""
    return _SUM in text


def parse(raw: bytes, *, sums: bool = False) -> Record | Remark:
    """What a line (without its end) says. `Damaged` if it cannot be trusted. `sums`: it must have a checksum."""
    summed = raw[-_SUM_BYTES : -_SUM_BYTES + len(_SUM)] == _SUM
    body = raw[:-_SUM_BYTES] + b"}" if summed else raw
    if summed and raw[-10:] != b'%08x"}' % zlib.crc32(body):
        raise Damaged("the checksum is wrong")
    try:
        said = _decoder.decode(body.decode())
    except (ValueError, RecursionError):  # also what is not UTF-8
        raise Damaged("it is not JSON; a torn or damaged line") from None
    if not isinstance(said, dict):
        raise Damaged("it is not a record")
    if sums and not summed:
        raise Damaged("it has no checksum, as others of its file have")
    if "ledger" in said:
        return _remark(said)
    if not summed and (unknown := said.keys() - _KNOWN):
        raise Damaged(f"it has a field that no record has: {min(unknown)!r}")
    return _record(said)


_KNOWN: Final = frozenset(_NAMES)


def _record(said: dict[str, Any]) -> Record:
    get = said.get
    kind, at_ns, key = _KINDS.get(get("kind", "")) if isinstance(get("kind"), str) else None, get("at_ns"), get("key")
    if kind is None:
        raise Damaged(f"it is of no known kind: {str(get('kind'))[:40]!r}")
    if type(at_ns) is not int or type(key) is not str:
        raise Damaged("it says neither when nor of which key, or not in the right form")
    if len(said) > 3:
        _check(said)
    return Record(
        kind,
        at_ns,
        key,
        get("family", "default"),
        get("owner", ""),
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


def _check(said: dict[str, Any]) -> None:
    for name, value in said.items():
        kinds = _FORMS.get(name)
        if kinds is not None and type(value) not in kinds:
            raise Damaged(f"{name} is not in the right form")


_FORMS: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(_OPTIONAL_TEXTS, (str, type(None))),
    **dict.fromkeys(_NUMBERS, (int, type(None))),
    "ok": (bool,),
    "facts": (dict, type(None)),
}


def _remark(said: dict[str, Any]) -> Remark:
    what, at_ns = said.pop("ledger"), said.pop("at_ns", None)
    if not isinstance(what, str) or type(at_ns) is not int:
        raise Damaged("it is a remark of no known form")
    return Remark(what, at_ns, said)


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        return value[: TEXT_CHARS_MAX - 1] + "…"
    return dict(value) if isinstance(value, Mapping) else value


def _without_facts(entry: Record | Remark) -> Record | Remark:
    return Remark(entry.what, entry.at_ns) if isinstance(entry, Remark) else replace(entry, facts={})
