"""How one value of the settings is declared: its default, what it takes, what it is for, and the flag that sets it."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from holdfast.core.lease.timing import DEFAULT_FAILURES
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.settings.types import Choice, Kind, Seconds, Whole

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


def renew_every(ttl: str = "its TTL, which is two intervals") -> Any:
    """How often a lease is renewed, whose TTL is what `ttl` names."""
    return key(None, Seconds(0.001, 86_400.0), f"how often that lease is renewed; not given: a third of {ttl}")


def failures() -> Any:
    """How many renewals of a lease may fail."""
    return key(
        DEFAULT_FAILURES, Whole(1, 100), "renewals in a row that may fail before it is given up; its deadline stands"
    )
