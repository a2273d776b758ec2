"""Lengths of time as definitions write them: seconds, or texts such as "90s", "5m" and "1h30m". Pure, and exact."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any, Final

from holdfast.errors import BadInput
from holdfast.types import NS

TIME_MAX_NS: Final = 366 * 86_400 * NS

_UNITS: Final = {"d": 86_400 * NS, "h": 3_600 * NS, "m": 60 * NS, "s": NS, "ms": NS // 1_000, "us": 1_000, "ns": 1}
_ONE: Final = r"([0-9]{1,20})(?:\.([0-9]{1,9}))?(ms|us|ns|[dhms])"
_ALL: Final = re.compile(rf"(?:{_ONE}\s*)+\Z")
_PART: Final = re.compile(_ONE)
_FIX: Final = 'give seconds, such as 90, or a text such as "90s", "5m" or "1h30m"'


def duration(value: Any, field: str = "") -> int:
    """A time as it is written, in nanoseconds, or `BadInput`."""
    found: int | None = None
    if isinstance(value, str):
        text = value.strip()
        if _ALL.match(text):
            found = sum(_part(*each.groups()) for each in _PART.finditer(text))
    elif isinstance(value, timedelta):
        found = (value.days * 86_400 + value.seconds) * NS + value.microseconds * 1_000
    elif isinstance(value, int) and not isinstance(value, bool):
        found = value * NS
    elif isinstance(value, float) and math.isfinite(value):
        found = round(value * NS) if abs(value) <= TIME_MAX_NS / NS else TIME_MAX_NS + 1
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "…"
    if found is None:
        raise BadInput(field, f"{shown} is not a length of time", _FIX)
    if not 0 <= found <= TIME_MAX_NS:
        raise BadInput(field, f"{shown} is out of range", "give between 0 seconds and 366 days")
    return found


def _part(whole: str, decimals: str | None, unit: str) -> int:
    size = _UNITS[unit]
    return int(whole) * size + (int(decimals) * size // 10 ** len(decimals) if decimals else 0)


def written_duration(value_ns: int) -> int | float | str:
    """A time as it is written: seconds, unless a number of seconds would not be exact."""
    seconds, rest = divmod(value_ns, NS)
    if not rest:
        return seconds
    return value_ns / NS if round(value_ns / NS * NS) == value_ns else f"{value_ns}ns"
