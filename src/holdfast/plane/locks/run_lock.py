"""The lock of one run. Every component that advances a run acquires it. Promises: those of `item_lock`.

    async with run_lock(locks, run_id, risk) as lease: ...

Callers of one process queue here first, and one of them at a time goes to the store. When the store fails, the policy
of the run's risk class decides: `fail_closed` and `wait` give the work back (a `RetryLater`), `fail_open` goes on under
the local lock, with a lease that says so (`guaranteed` is False) and has no fence. Then only the version of the stored
run, which is compared with every write, keeps two replicas apart: a write from an outdated view is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from holdfast.aio.client import Locks
from holdfast.aio.lease import DegradedLease, Lease
from holdfast.aio.lock import Lock
from holdfast.core.retry_delays import AnyDelays
from holdfast.plane.locks.item_lock import ItemLockStatistics, item_lock
from holdfast.plane.locks.registry import RETRY_DELAYS, WORKFLOW_RUN, LockFamily
from holdfast.plane.model.records import check_id

NOUN: Final = "run lock"


@asynccontextmanager
async def run_lock(
    locks: Locks,
    run_id: str,
    risk: str,
    delays: AnyDelays = RETRY_DELAYS,
    *,
    statistics: ItemLockStatistics | None = None,
    timeout: float | None = None,
    family: LockFamily = WORKFLOW_RUN,
) -> AsyncIterator[Lease | DegradedLease]:
    """Hold the lock of a run. `timeout`, how long to wait for it, is by default that of the family."""
    counts = statistics if statistics is not None else ItemLockStatistics()
    chosen = family if timeout is None else replace(family, acquire_timeout=timeout)
    check_id("run", run_id)

    def lock() -> Lock[Lease | DegradedLease]:
        return chosen.risky(locks, risk=risk, run=run_id)

    async with item_lock(lock, locks, delays, counts, NOUN) as lease:
        yield lease
