"""Who may be given to a guard: a lease that has a fence, or the fence of one that is held elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.aio.lease import DegradedLease as AioDegradedLease
from holdfast.aio.lease import Lease as AioLease
from holdfast.core.lease.fencing import check_fence
from holdfast.leases.sync.lease import DegradedLease, Lease
from holdfast.types import check_key


@dataclass(frozen=True, slots=True)
class CarriedFence:
    """The fence of a lease that another process holds, as it arrived here: in a header, a message, an argument.

    It can be stored, pickled and passed on, and it cannot say whether the lease is still held: only the storage, which
    has seen newer fences or has not, can refuse it.
    """

    key: str
    fence: int

    def __post_init__(self) -> None:
        check_key("key", self.key)
        check_fence("fence", self.fence)


Fenced: TypeAlias = Lease | AioLease | CarriedFence
"""What every guard takes."""

Bearer: TypeAlias = Fenced | DegradedLease | AioDegradedLease
"""What a guard takes that was made with `allow_degraded=True`."""


def carried(lease: Fenced) -> CarriedFence:
    """The part of a lease that may travel to another process: which lock, and under which fence. Never the token."""
    return lease if isinstance(lease, CarriedFence) else granted(lease.key, lease.fence)


def granted(key: str, fence: int) -> CarriedFence:
    """One that needs no check: the key is that of a lock, and the fence is what the store of leases gave for it."""
    made = object.__new__(CarriedFence)
    object.__setattr__(made, "key", key)
    object.__setattr__(made, "fence", fence)
    return made
