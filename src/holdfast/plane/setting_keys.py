"""How one value of the settings is declared: its default, what it takes, what it is for, and the flag that sets it."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from holdfast.core.looping import Mode
from holdfast.plane.setting_kinds import Choice, Kind

KIND: Final = "kind"


def key(default: Any, kind: Kind, help: str, flag: str | None = None) -> Any:
    """A field of a section."""
    return field(default=default, metadata={KIND: kind, "help": help, "flag": flag})


def lead() -> Any:
    """How the replicas of a loop share it."""
    return key(
        str(Mode.STICKY),
        Choice(tuple(Mode)),
        "sticky: one leader keeps the lease and ticks every interval; rotating: held for its TTL, then anybody's",
    )
