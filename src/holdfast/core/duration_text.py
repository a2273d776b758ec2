"""Durations as text: `30`, `30s`, `500ms`, `5m`, `1h30m`, `7d`. A number without a unit is seconds.

The only parser of durations: command options, settings, environment variables, URL options and workflow definitions use
it, so each of them accepts the same texts and refuses the others with the same errors. Exact to the nanosecond. Pure.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from holdfast.errors import BadInput
from holdfast.types import MS, NS, duration_ns, out_of_range

EXAMPLES: Final = "give seconds (30), or a number with a unit: 500ms, 30s, 5m, 1h30m, 7d"
YEAR_NS: Final = 366 * 86_400 * NS
_MINUTE: Final = 60 * NS
_UNITS: Final = {
    "ns": 1,
    "us": MS // 1000,
    "ms": MS,
    "s": NS,
    "m": _MINUTE,
    "min": _MINUTE,
    "h": 60 * _MINUTE,
    "d": 1440 * _MINUTE,
}
_NUMBER: Final = r"([0-9]{1,20})(?:\.([0-9]{1,12}))?"
_PART: Final = re.compile(rf"{_NUMBER}\s*(ns|us|ms|s|min|m|h|d)")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern}\s*)+")
_BARE: Final = re.compile(rf"(-?){_NUMBER}")  # negative ones are refused by range, with the range in the error


def parse_duration_ns(field: str, value: object, *, low_ns: int = 0, high_ns: int = YEAR_NS) -> int:
    """A text, a number of seconds or a `timedelta` in nanoseconds, or `BadInput` that names the field and the fix."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | timedelta):
        raise _no_duration(field, value)
    if not isinstance(value, str):
        return duration_ns(field, value, low_ns=low_ns, high_ns=high_ns)
    found = _text_ns(field, value)
    if not low_ns <= found <= high_ns:
        raise out_of_range(field, found, low_ns, high_ns)
    return found


def parse_seconds(field: str, text: str) -> float:
    """The duration in seconds, without a check of its range."""
    return _text_ns(field, text) / NS


def _text_ns(field: str, text: str) -> int:
    typed = text.strip().lower()
    if bare := _BARE.fullmatch(typed):
        found = _exact(bare[2], bare[3], NS)
        return -found if bare[1] else found
    if not _WHOLE.fullmatch(typed):
        raise _no_duration(field, text)
    return sum(_exact(whole, decimals, _UNITS[unit]) for whole, decimals, unit in _PART.findall(typed))


def _exact(whole: str, decimals: str | None, unit: int) -> int:
    return int(whole) * unit + (int(decimals) * unit // 10 ** len(decimals) if decimals else 0)


def _no_duration(field: str, value: object) -> BadInput:
    shown = repr(value)
    return BadInput(field, f"{shown if len(shown) <= 62 else f'{shown[:61]}…'} is not a length of time", EXAMPLES)
