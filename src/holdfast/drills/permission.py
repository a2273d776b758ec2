"""Where a drill may run: in its own store, or in one that an operator has marked as a test deployment.

The mark is a lease under a reserved key with an expiry. So every store can carry it, `holdfast locks` lists it, and it
expires. It is neither renewed nor released, and outlives the process that set it. Databases and buses carry marks of
their own kind, with the same expiry: see `env.backends`.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import BadInput
from holdfast.leases.inspection import Inspection
from holdfast.leases.sync.client import Locks
from holdfast.types import NS, duration_ns

KEY: Final = "holdfast:drill:allowed"
PREFIX: Final = "holdfast:drill:"
FAMILY: Final = "drill"
_LONGEST_NS: Final = 7 * 86_400 * NS


def check_length(seconds: float) -> int:
    """The duration of a mark in nanoseconds; `BadInput` if it is out of range."""
    return duration_ns("--for", seconds, low_ns=NS, high_ns=_LONGEST_NS)


def mark(locks: Locks, seconds: float) -> Inspection:
    """Allow drills here for so many seconds."""
    check_length(seconds)
    unmark(locks)
    if locks.hold(KEY, ttl=seconds, family=FAMILY) is None:
        raise BadInput("url", "another process is marking it now", "check with `holdfast inspect`, and try again")
    return locks.inspect(KEY)


def unmark(locks: Locks) -> bool:
    """Disallow drills here. False: they were not allowed."""
    return locks.force_release(KEY, reason="drills are over, or marked again") is not None


def is_marked(locks: Locks) -> bool:
    """Whether drills may run here; `BadInput` if the reserved key has another use."""
    look = locks.inspect(KEY)
    if look.held and look.family != FAMILY:
        raise BadInput("url", f"{KEY} is held by {look.owner} and is no mark of Holdfast", "ask its owner")
    return look.held


def check_marked(locks: Locks, shown: str) -> None:
    """Return if drills may run here; otherwise raise `BadInput` with the fix."""
    if not is_marked(locks):
        raise BadInput(
            "url",
            f"{shown} is not marked as a test deployment, and a drill disrupts its store",
            f"if it is a test deployment, mark it: holdfast drill mark --url {shown}; or omit the URL to run the drill "
            "on its own store",
        )
