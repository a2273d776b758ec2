"""Moments as people type them: `14:03`, `2026-03-01 14:03:05`, an ISO time with its zone, or `10m` for that long ago.

A time without a date is the last one that has been: at 09:00, `14:03` is yesterday's. A time without a zone is local.

The option type of every duration on the command line: `30`, `30s`, `500ms`, `5m`, `1h30m`.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import typer

from holdfast.core.duration_text import parse_seconds
from holdfast.errors import BadInput
from holdfast.types import NS

_AGO = re.compile(r"(.*\d\s*(?:ms|s|min|m|h|d))(?:\s+ago)?")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")


def moment_ns(field: str, text: str, now: datetime | None = None) -> int:
    """The moment on the wall clock, or `BadInput` that says what can be typed."""
    here = datetime.now().astimezone() if now is None else now
    try:
        return round(_moment(text.strip(), here).timestamp() * 1_000_000) * (NS // 1_000_000)
    except (ValueError, OverflowError, OSError):
        raise BadInput(
            field,
            f"{text!r} is not a time",
            "give 14:03, '2026-03-01 14:03:05', an ISO time, or 10m for 10 minutes ago",
        ) from None


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

    Plain numbers are passed on even if they cannot be right: the command knows the range and names it.
    """
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return parse_seconds("", str(value))
    except BadInput as error:
        raise typer.BadParameter(f"{error.problem}; {error.fix}") from None


def duration_option(*flags: str, help: str, **more: Any) -> Any:
    """An option that takes a duration and hands the command seconds, as a float."""
    return typer.Option(*flags, metavar=METAVAR, parser=seconds_of, help=help, **more)
