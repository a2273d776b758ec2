"""Lengths of time as people type them: `30`, `30s`, `500ms`, `2m`, `1h30m`, `7d`. Without a unit they are seconds."""

from __future__ import annotations

import re
from typing import Final

from holdfast.errors import BadInput
from holdfast.types import MS, NS, duration_ns

_UNITS: Final = {"ms": MS, "s": NS, "m": 60 * NS, "h": 3600 * NS, "d": 86_400 * NS}
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(ms|s|m|h|d)")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern}\s*)+")
_BARE: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?")


def length_ns(field: str, text: str, *, low_ns: int = 0) -> int:
    """The length, or `BadInput` that says what can be typed."""
    typed = text.strip().lower()
    if _BARE.fullmatch(typed):
        return duration_ns(field, float(typed), low_ns=low_ns)
    if not _WHOLE.fullmatch(typed):
        raise BadInput(field, f"{text!r} is not a length of time", "give seconds, or 500ms, 30s, 2m, 1h30m, 7d")
    total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(typed))
    return duration_ns(field, total / NS, low_ns=low_ns)
