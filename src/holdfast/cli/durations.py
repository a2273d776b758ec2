"""The option type of every duration on the command line: `30`, `30s`, `500ms`, `5m`, `1h30m`."""

from __future__ import annotations

from typing import Any

import typer

from holdfast.core.duration_text import parse_seconds
from holdfast.errors import BadInput

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
