"""The settings of what a process of the plane writes on its standard error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.plane.setting_keys import key
from holdfast.plane.setting_kinds import Choice

TEXT: Final = "text"
JSON: Final = "json"
LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log lines of a process. See docs/logs.md."""

    format: str = key(TEXT, Choice((TEXT, JSON)), "how lines are written; with --json they are JSON", "--log-format")
    level: str = key("warning", Choice(LEVELS), "below which nothing is written; debug: of drivers too", "--log-level")
