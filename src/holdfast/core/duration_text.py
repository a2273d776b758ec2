"""Durations as text: `30`, `30s`, `500ms`, `5m`, `1h30m`, `7d`. A number without a unit is seconds.

The only parser of durations in text: command options, settings, environment variables and URL options use it, so that
a duration that one of them accepts is accepted by all of them. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.errors import BadInput
from holdfast.types import MS, NS, duration_ns

EXAMPLES: Final = "give seconds (30), or a number with a unit: 500ms, 30s, 5m, 1h30m, 7d"
_YEAR_NS: Final = 366 * 86_400 * NS
_UNITS: Final = {"ms": MS, "s": NS, "min": 60 * NS, "m": 60 * NS, "h": 3600 * NS, "d": 86_400 * NS}
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(ms|s|min|m|h|d)")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern}\s*)+")
_BARE: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?")


def parse_duration_ns(field: str, text: str, *, low_ns: int = 0, high_ns: int = _YEAR_NS) -> int:
    """The duration in nanoseconds, or `BadInput` that names the field and shows what is accepted."""
    return duration_ns(field, parse_seconds(field, text), low_ns=low_ns, high_ns=high_ns)


def parse_seconds(field: str, text: str) -> float:
    """The duration in seconds, without a check of its range."""
    typed = text.strip().lower()
    if _BARE.fullmatch(typed):
        return float(typed)
    if not _WHOLE.fullmatch(typed):
        raise BadInput(field, f"{text[:60]!r} is not a length of time", EXAMPLES)
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(typed)) / NS
