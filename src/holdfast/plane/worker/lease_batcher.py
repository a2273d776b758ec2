"""The leases of a worker's attempts: concurrent attempts share a request.

Promises: each attempt gets the lease of its own lock, or None if that is held, as from `Lock.try_acquire`. A caller
that is cancelled leaves no lease behind. Where the store answers for one lock at a time, there is no batch. A lease
that came with the claim of its message (`claim_leases`) is not requested again.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.aio import batch as many
from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.core.lease.timing import settle
from holdfast.flows.acquire import CLEANUP_WAIT_NS
from holdfast.plane.db.batcher import Batcher
from holdfast.plane.locks.registry import WORKER_JOB, LockFamily
from holdfast.plane.worker.claim_leases import ClaimedLeases
from holdfast.types import NS, Duration, duration_ns


def lease_family(
    ttl: Duration | None, renew_every: Duration | None, failures: int | None, family: LockFamily = WORKER_JOB
) -> LockFamily:
    """The family of the leases of attempts, with valid times; those that are not given are the declared ones."""
    chosen = family.timed(
        None if ttl is None else duration_ns("lease_ttl", ttl, low_ns=1) / NS,
        None if renew_every is None else duration_ns("lease_renew_every", renew_every, low_ns=1) / NS,
        failures,
    )
    settle(ttl=chosen.ttl, renew_every=chosen.renew_every, failures=chosen.failures)
    return chosen


class _Pending:
    """A request for a lease, whose caller may have gone when the lease comes."""

    __slots__ = ("gone", "lease", "lock")

    def __init__(self, lock: Lock[Lease]) -> None:
        self.lock = lock
        self.lease: Lease | None = None
        self.gone = False


class LeaseBatcher:
    """Acquires and releases the leases of one worker in one pool. Belongs to its event loop."""

    def __init__(self, locks: Locks, family: LockFamily = WORKER_JOB, *, claims: bool = True) -> None:
        self._locks = locks
        self.claimed = ClaimedLeases(locks, family, enabled=claims)
        self._acquisitions: Batcher[_Pending, Lease | None] = Batcher(self._acquire, apart=lambda each: each.lock.name)
        self._releases: Batcher[Lease, None] = Batcher(self._release)

    async def acquire(self, lock: Lock[Lease]) -> Lease | None:
        """The lease of a lock that is free; None if it is busy. Raises what the store does."""
        if not many.takes_many(self._locks):
            return await lock.try_acquire()
        if (lease := await self.claimed.take(lock)) is not None:
            return lease
        pending = _Pending(lock)
        try:
            return await self._acquisitions.ask(pending)
        except BaseException:
            pending.gone = True
            if pending.lease is not None:
                await self._locks.runtime.finish(self._unwanted([pending.lease]), CLEANUP_WAIT_NS)
            raise

    async def release(self, lease: Lease) -> None:
        """Release a lease, in the way of `Lease.release`: safe in `finally`, and one that was lost is not touched."""
        if many.takes_many(self._locks):
            await self._releases.ask(lease)
        else:
            await lease.release()

    async def _acquire(self, requests: Sequence[_Pending]) -> Sequence[Lease | None]:
        found = await many.try_acquire(self._locks, [each.lock for each in requests])
        self.claimed.answered = True
        leases = [each if isinstance(each, Lease) else None for each in found]
        left: list[Lease] = []
        for each, lease in zip(requests, leases, strict=True):
            each.lease = lease
            if each.gone and lease is not None:
                left.append(lease)
        if left:
            await self._unwanted(left)
        return leases

    async def _unwanted(self, leases: Sequence[Lease]) -> None:
        await many.release(self._locks, leases)

    async def _release(self, leases: Sequence[Lease]) -> Sequence[None]:
        await many.release(self._locks, leases)
        return [None] * len(leases)
