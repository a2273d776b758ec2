"""What a lock's value says: `<owner> hf1 <family> <granted µs> <fence> <token>`, and what operators are shown of it.

The owner comes first, so that `redis-cli GET name` answers "who" at a glance. No part contains a space. A value of any
other form is another library's, and nothing of it is shown: it is that library's token.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final

from holdfast.types import MS, AuditRecord, Holding

MARK = "hf1"
FOREIGN_OWNER = "another library"
VALUE_MAX = 4095  # longer strings are not locks
_KEPT = "-"  # stands for the token of a lease that was released but is kept for a minimum time
_OURS: Final = re.compile(r"(\S+) hf1 (\S+) (\d{1,16}) (\d{1,16}) (\S+)")


def milliseconds(ns: int) -> bytes:
    """Whole milliseconds for a command, rounded up: the server must not let go before the holder does."""
    return b"%d" % -(-ns // MS)


def remaining_ns(left_ms: int) -> int | None:
    """The meaning of PTTL: None for a key that does not expire."""
    return left_ms * MS if left_ms >= 0 else None


def holding(key: str, value: bytes, left_ms: int, waiters: int) -> Holding:
    """What is known about a key, from its value and its PTTL."""
    text = value.decode(errors="replace")
    ours = _OURS.fullmatch(text)
    if ours is None:
        return Holding(key, FOREIGN_OWNER, None, "", None, remaining_ns(left_ms), _fingerprint(value), waiters)
    owner, family, granted_us, fence, token = ours.groups()
    mark = "" if token == _KEPT else _fingerprint(token.encode())
    return Holding(key, owner, int(fence), family, int(granted_us) * 1000, remaining_ns(left_ms), mark, waiters)


def audit_record(fields: Sequence[bytes]) -> AuditRecord:
    """One entry of the audit stream. Raises `ValueError` or `KeyError` for what is not one of ours."""
    texts = [field.decode(errors="replace") for field in fields]
    entry: dict[str, Any] = dict(zip(texts[::2], texts[1::2], strict=True))
    return AuditRecord(
        wall_ns=int(entry["us"]) * 1000,
        action=entry["action"],
        key=entry["key"],
        actor=entry["actor"],
        reason=entry["reason"],
        previous_owner=entry["owner"] or FOREIGN_OWNER,
        previous_fence=int(entry["previous"]) if entry["previous"] else None,
        fence=int(entry["fence"]),
    )


def text_or_none(name: bytes) -> str | None:
    """A key's name, unless it is no text: then it is none of ours."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def glob_escaped(text: str) -> str:
    """A text that matches only itself in a pattern of SCAN."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", text)


def _fingerprint(token: bytes) -> str:
    return hashlib.sha256(token).hexdigest()[:6]
