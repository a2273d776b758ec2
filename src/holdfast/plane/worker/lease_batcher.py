"""Where the attempts of a worker get their leases: those that come at the same time share a request.

Promises: each gets the lease of its own lock or is told that somebody has it, as from `Lock.try_acquire`; whoever was
cancelled on the way leaves no lease behind. Where the store answers for one lock at a time, each asks by itself. What
came with the claim of its message (`claimed_leases`) is not asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.aio import batch as many
from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.flows.acquire import CLEANUP_WAIT_NS
from holdfast.plane.db.batcher import Batcher
from holdfast.plane.locks.registry import WORKER_JOB, LockFamily
from holdfast.plane.worker.claim_leases import ClaimedLeases


class _Asked:
    """Somebody who asks for a lease, and may have left when it comes."""

    __slots__ = ("gone", "lease", "lock")

    def __init__(self, lock: Lock[Lease]) -> None:
        self.lock = lock
        self.lease: Lease | None = None
        self.gone = False


class LeaseBatcher:
    """The desk of one worker. Belongs to its event loop."""

    def __init__(self, locks: Locks, family: LockFamily = WORKER_JOB) -> None:
        self._locks = locks
        self.claimed = ClaimedLeases(locks, family)
        self._takes: Batcher[_Asked, Lease | None] = Batcher(self._take, apart=lambda each: each.lock.name)
        self._returns: Batcher[Lease, None] = Batcher(self._give_back)

    async def take(self, lock: Lock[Lease]) -> Lease | None:
        """The lease of a lock that is free; None if it is busy. Raises what the store does."""
        if not many.takes_many(self._locks):
            return await lock.try_acquire()
        if (lease := await self.claimed.take(lock)) is not None:
            return lease
        asked = _Asked(lock)
        try:
            return await self._takes.ask(asked)
        except BaseException:
            asked.gone = True
            if asked.lease is not None:
                await self._locks.runtime.finish(self._unwanted([asked.lease]), CLEANUP_WAIT_NS)
            raise

    async def give_back(self, lease: Lease) -> None:
        """Release a lease, in the way of `Lease.release`: safe in `finally`, and one that was lost is not touched."""
        if many.takes_many(self._locks):
            await self._returns.ask(lease)
        else:
            await lease.release()

    async def _take(self, asking: Sequence[_Asked]) -> Sequence[Lease | None]:
        found = await many.try_acquire(self._locks, [each.lock for each in asking])
        self.claimed.answered = True
        leases = [each if isinstance(each, Lease) else None for each in found]
        left: list[Lease] = []
        for asked, lease in zip(asking, leases, strict=True):
            asked.lease = lease
            if asked.gone and lease is not None:
                left.append(lease)
        if left:
            await self._unwanted(left)
        return leases

    async def _unwanted(self, leases: Sequence[Lease]) -> None:
        await many.release(self._locks, leases)

    async def _give_back(self, leases: Sequence[Lease]) -> Sequence[None]:
        await many.release(self._locks, leases)
        return [None] * len(leases)
