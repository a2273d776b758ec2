"""Declares a setting: its default, its values, its help text, and the flag that sets it."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from holdfast.core.lease.timing import DEFAULT_FAILURES
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.settings.types import Choice, Seconds, SettingKind, Whole

KIND: Final = "kind"


def key(default: Any, kind: SettingKind, help: str, flag: str | None = None) -> Any:
    """A field of a section."""
    return field(default=default, metadata={KIND: kind, "help": help, "flag": flag})


def lead() -> Any:
    """How the replicas of a loop share it."""
    return key(
        str(Mode.STICKY),
        Choice(tuple(Mode)),
        "sticky: one leader keeps the lease and ticks every interval; rotating: any replica takes it for one TTL",
    )


def renew_every(ttl: str = "its TTL, which is two intervals") -> Any:
    """How often a lease is renewed. `ttl` names its TTL."""
    return key(None, Seconds(0.001, 86_400.0), f"how often that lease is renewed; unset: a third of {ttl}")


def failures() -> Any:
    """The number of renewals in a row that may fail."""
    return key(
        DEFAULT_FAILURES, Whole(1, 100), "renewals in a row that may fail before it is lost; its deadline still holds"
    )
