"""Where a drill may run: in a store of its own, or in one that somebody has marked as a test deployment.

The mark is a lease like any other, under a reserved name and with an expiry, so every store can carry it, `holdfast
locks` shows it, and it goes away by itself. It is neither renewed nor released, and does not end with the process that
set it. Databases and buses carry marks of their own kind, with the same expiry: see `places`.
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
    """How long a mark lasts, in nanoseconds; `BadInput` if it may not last that long."""
    return duration_ns("--for", seconds, low_ns=NS, high_ns=_LONGEST_NS)


def mark(locks: Locks, seconds: float) -> Inspection:
    """Say that drills may run here, for so long from now."""
    check_length(seconds)
    unmark(locks)
    if locks.hold(KEY, ttl=seconds, family=FAMILY) is None:
        raise BadInput("url", "somebody else marks it at this moment", "look with `holdfast inspect`, and try again")
    return locks.inspect(KEY)


def unmark(locks: Locks) -> bool:
    """Say that drills may not run here. False: they might not anyway."""
    return locks.force_release(KEY, reason="drills are over, or marked anew") is not None


def is_marked(locks: Locks) -> bool:
    """Whether drills may run here; `BadInput` if somebody uses the reserved name for something else."""
    look = locks.inspect(KEY)
    if look.held and look.family != FAMILY:
        raise BadInput("url", f"{KEY} is held by {look.owner} and is not a mark of ours", "ask its owner")
    return look.held


def check_marked(locks: Locks, shown: str) -> None:
    """Return if drills may run here; `BadInput` that says what to type otherwise."""
    if not is_marked(locks):
        raise BadInput(
            "url",
            f"{shown} is not marked as a test deployment, and a drill breaks what it runs on",
            f"mark it if that is what it is: holdfast drill mark --url {shown}; or leave out the URL, and the drill "
            "uses a store of its own",
        )
