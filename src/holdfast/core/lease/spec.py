"""A lock spec: every checked setting of one lock. The first of the five values in the life of a lease.

    LockSpec → AcquireRequest → AcquireResult → LeaseRecord → Lease

`Locks.lock()` makes the spec, `Lock.acquire()` sends a request for it to the store, the flow returns a result, the
lease manager keeps a record of it, and the caller gets the lease. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from holdfast.core.backoff import Backoff
from holdfast.core.lease.timing import Timing
from holdfast.types import Guarantee

OnLoss: TypeAlias = Literal["cancel", "flag"]


@dataclass(slots=True, unsafe_hash=True)
class LockSpec:
    """The checked settings of a lock. Made for every lock, and never changed."""

    key: str
    family: str
    owner: str
    risk: str | None
    timing: Timing
    retry: Backoff
    fair: bool
    timeout_ns: int | None = None  # how long `with` waits
    on_lost: Callable[[Any], object] | None = None
    on_warning: Callable[[Any], object] | None = None
    on_loss: OnLoss = "cancel"
    guarantee: Guarantee = Guarantee.EFFICIENCY_ONLY  # the least that the store must promise
    detached: bool = False  # the grant outlives this process; a store must not reclaim it when the process ends
