"""Holdfast: distributed leases that survive incidents.

    with holdfast.connect("sqlite:///leases.db") as locks:
        with locks.lock("invoice:42", ttl=30) as lease:
            table.write(row, fence=lease.fence)

`holdfast.aio` has the same names for asyncio, `holdfast.backoff` the shapes of retry delays, `holdfast.errors` the tree
of errors, `holdfast.testing` what you need to test your own code and your own stores.
"""

from holdfast import aio
from holdfast.core import backoff
from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import (
    AcquireTimeout,
    AlreadyHeld,
    BackendError,
    BadInput,
    Closed,
    FencedOut,
    FenceUnusable,
    HoldfastError,
    LeaseLost,
    LockBusy,
    Misconfigured,
    NotEntered,
    NotOwner,
    PolicyDenied,
    RetryLater,
    RowExists,
    RowMissing,
    Timeout,
    Unavailable,
    Unfenced,
)
from holdfast.leases.inspection import ForcedRelease, Inspection
from holdfast.leases.lock_spec import LockSettings, UsageWarning
from holdfast.leases.ownership import Condition
from holdfast.leases.sync.client import Locks, connect
from holdfast.leases.sync.leader import Leader
from holdfast.leases.sync.lease import DegradedLease, Lease, Lost
from holdfast.leases.sync.lock import Lock
from holdfast.runtime.statistics import Health, Statistics
from holdfast.types import Guarantee, LossReason

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
    "AlreadyHeld",
    "BackendError",
    "BadInput",
    "Closed",
    "Condition",
    "DegradedLease",
    "FenceUnusable",
    "FencedOut",
    "ForcedRelease",
    "Guarantee",
    "Health",
    "HoldfastError",
    "Inspection",
    "Leader",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockBusy",
    "LockSettings",
    "Locks",
    "LossReason",
    "Lost",
    "Misconfigured",
    "NotEntered",
    "NotOwner",
    "PolicyDenied",
    "RetryDelays",
    "RetryLater",
    "RowExists",
    "RowMissing",
    "Statistics",
    "Timeout",
    "Unavailable",
    "Unfenced",
    "UsageWarning",
    "aio",
    "backoff",
    "connect",
]
