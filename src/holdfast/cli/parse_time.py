"""Points in time and durations on the command line.

A point in time is a duration ago (`15m`), an ISO 8601 time (`2026-03-01T14:03:05+01:00`), or a time of day (`14:03`,
the last one that has passed). A time without a zone is local. A bare number is refused: it could be seconds or a date.

A duration is `30`, `30s`, `500ms`, `5m` or `1h30m`; a number without a unit is seconds.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, Final

import typer

from holdfast.core.duration_text import parse_seconds
from holdfast.errors import BadInput
from holdfast.types import NS

WHEN: Final = "WHEN"
"""The metavar of options that take a point in time."""

_AGO = re.compile(r"(.*\d\s*(?:ms|s|min|m|h|d))(?:\s+ago)?", re.IGNORECASE)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")
_BARE = re.compile(r"\d+(\.\d+)?")
_FIX = "give 15m for 15 minutes ago, a time such as 14:03, or an ISO time such as 2026-03-01T14:03:05"


def moment_ns(option: str, text: str, now: datetime | None = None) -> int:
    """The wall-clock time in nanoseconds, or `BadInput` that names the option."""
    here = datetime.now().astimezone() if now is None else now
    typed = text.strip()
    if _BARE.fullmatch(typed):
        raise BadInput(option, f"{text!r} has no unit", f"write {typed}s for {typed} seconds ago, or {_FIX}")
    try:
        return _ns(_moment(typed, here))
    except (ValueError, OverflowError, OSError):
        raise BadInput(option, f"{text!r} is not a time", _FIX) from None


def seconds_ago(option: str, text: str, now: datetime | None = None) -> float:
    """The time since a moment that is given like that of `moment_ns`."""
    here = datetime.now().astimezone() if now is None else now
    return (_ns(here) - moment_ns(option, text, here)) / NS


def _ns(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * (NS // 1_000_000)


def _moment(text: str, now: datetime) -> datetime:
    if ago := _AGO.fullmatch(text):
        return now - timedelta(seconds=parse_seconds("time", ago[1]))
    if _CLOCK.fullmatch(text):
        hours, _, rest = text.partition(":")
        today = datetime.fromisoformat(f"{now.date().isoformat()}T{hours:0>2}:{rest}").replace(tzinfo=now.tzinfo)
        return today if today <= now else today - timedelta(days=1)
    given = datetime.fromisoformat(text)
    return given if given.tzinfo is not None else given.astimezone()


METAVAR = "TIME"


def seconds_of(value: str | float) -> float:
    """The value of an option in seconds, for Typer, which adds the name of the option to a refusal.

    The range is not checked: the command knows it and names it.
    """
    if not isinstance(value, str):
        return value  # a default
    try:
        return parse_seconds("", value)
    except BadInput as error:
        raise typer.BadParameter(f"{error.problem}; {error.fix}") from None


def duration_option(*flags: str, help: str, **more: Any) -> Any:
    """An option that takes a duration and hands the command seconds, as a float."""
    return typer.Option(*flags, metavar=METAVAR, parser=seconds_of, help=help, **more)
