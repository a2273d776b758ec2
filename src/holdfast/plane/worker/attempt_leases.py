"""The leases of a worker's attempts: acquired with the claim of their messages, or in one request for several attempts.

Promises: each attempt gets the lease of its own lock, or None if that is held, as from `Lock.try_acquire`. A caller
that is cancelled leaves no lease behind. Where the store acquires one lock per request, there is no batch.

**With the claim** (`ClaimedLeases`). Where bus and leases are in one file, a worker needs one commit, and one trip to
the writer thread, for an attempt and its lease. Each is valid from before the transaction requested it. A lease that no
attempt uses is released, and so is one of a transaction with an unknown outcome. If the lock was busy, the attempt
requests it again. `worker.claim_leases` switches this off.

Clock: the one of the locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from holdfast.aio import batch as many
from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.core.lease.timing import settle
from holdfast.core.ports import AcquiresMany, SharesTransactions
from holdfast.errors import BackendError
from holdfast.flows.acquire import CLEANUP_WAIT_NS
from holdfast.plane.db.batcher import Batcher
from holdfast.plane.db.ports import SharedTx, Tx
from holdfast.plane.locks.registry import WORKER_JOB, LockFamily
from holdfast.types import NS, AcquireRequest, Duration, Grant, Instant, duration_ns, elapsed_ns


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


class AttemptLeases:
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


_KEPT_MAX: Final = 4096


class _Claimed(NamedTuple):
    grant: Grant
    sent: Instant  # before it was requested


class ClaimedLeases:
    """See the module. Belongs to one event loop, but for `work`, which runs where the transaction does."""

    def __init__(self, locks: Locks, family: LockFamily, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._locks = locks
        self._family = family
        self._ttl_ns = round(family.ttl * NS)
        self._asked: list[AcquireRequest] = []  # by the current transaction
        self._got: list[_Claimed] = []
        self._unused: dict[str, _Claimed] = {}  # by the name of the lock: acquired, and not yet used
        self.answered = False  # the store has answered once
        self._riding: SharesTransactions | None = None

    @property
    def ready(self) -> bool:
        """See `ports.Along`."""
        if self._enabled and self._riding is None and self.answered:
            store = self._locks.ports.store
            self._riding = store if isinstance(store, SharesTransactions) and store.rides else None
        return self._riding is not None

    async def work(self, tx: Tx, keys: Sequence[str]) -> None:
        """See `ports.Along`: the keys are the ids of jobs."""
        self._got = []  # the grants of a transaction that was undone, and is run again, do not exist
        if not keys:
            return
        ports = self._locks.ports
        store = cast("SharesTransactions", ports.store)
        family: LockFamily = self._family  # a test reads from this that the lock is a declared one
        owner, sent = self._locks.manager.owner, ports.clock.now()
        asks = [
            AcquireRequest(family.key(job=job), ports.entropy.token(), owner, family.name, self._ttl_ns)
            for job in sorted({*keys})
        ]
        self._asked += asks
        answers = cast("SharedTx", tx).step(store.granting(asks))
        self._got = [_Claimed(each, sent) for each in answers if isinstance(each, Grant)]

    def done(self) -> None:
        """See `ports.Along`."""
        got, self._got, self._asked = self._got, [], []
        if len(self._unused) + len(got) > _KEPT_MAX:
            self._forget_expired()
        self._unused.update((each.grant.key, each) for each in got)

    def undone(self) -> None:
        """See `ports.Along`."""
        asked, self._asked, self._got = self._asked, [], []
        for ask in asked:
            self._locks.ports.reaper.reap(ask.key, ask.token, ask.ttl_ns)

    async def take(self, lock: Lock[Lease]) -> Lease | None:
        """The lease of a lock, if it was claimed and is still valid."""
        had = self._unused.pop(lock.name, None)
        return None if had is None else await many.taken_along(self._locks, lock, *had)

    async def leave(self, job: str) -> None:
        """Release the lease of a job if its message is settled without using it.

        Before other workers get the message, so that they do not find its job busy.
        """
        if not self._unused or (had := self._unused.pop(self._family.key(job=job), None)) is None:
            return
        ports = self._locks.ports
        try:
            await cast("AcquiresMany", ports.store).release_many([had.grant], ports.request_timeout_ns)
        except BaseException as error:
            self._reap(had)
            if not isinstance(error, BackendError):
                raise

    def close(self) -> None:
        """Release all leases that are left."""
        here, self._unused = self._unused, {}
        for had in here.values():
            self._reap(had)

    def _forget_expired(self) -> None:
        """Forget leases that have expired: unreadable messages leave them behind."""
        now = self._locks.ports.clock.now()
        self._unused = {key: had for key, had in self._unused.items() if elapsed_ns(had.sent, now) < self._ttl_ns}

    def _reap(self, had: _Claimed) -> None:
        self._locks.ports.reaper.reap(had.grant.key, had.grant.token, self._ttl_ns)
