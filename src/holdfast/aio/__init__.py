"""Leases for asyncio: the same names as in `holdfast`, awaited.

For example::

    async with holdfast.aio.connect("redis://localhost") as locks:
        async with locks.lock("run:42", ttl=20) as lease:
            ...
"""

from holdfast.aio.client import Locks, connect
from holdfast.aio.leader import Leader
from holdfast.aio.lease import DegradedLease, Lease, Lost
from holdfast.aio.lock import Lock

__all__ = ["DegradedLease", "Leader", "Lease", "Lock", "Locks", "Lost", "connect"]
