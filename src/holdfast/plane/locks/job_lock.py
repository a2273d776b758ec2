"""The lock of one job. Every handler of the scheduler acquires it. Promises: those of `item_lock`.

    async with job_lock(locks, job_id, delays) as lease: ...

What prevents the work is a `RetryLater`: `job lock busy`, trouble with a store, or `job lock abandoned`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.core.retry_delays import AnyDelays
from holdfast.plane.locks.item_lock import ItemLockStatistics, item_lock
from holdfast.plane.locks.registry import RETRY_DELAYS, SCHEDULER_JOB, LockFamily
from holdfast.plane.model.records import check_id

__all__ = ["JobLockStatistics", "job_lock"]

NOUN: Final = "job lock"

JobLockStatistics = ItemLockStatistics


@asynccontextmanager
async def job_lock(
    locks: Locks,
    job_id: str,
    delays: AnyDelays = RETRY_DELAYS,
    *,
    statistics: JobLockStatistics | None = None,
    timeout: float | None = None,
    family: LockFamily = SCHEDULER_JOB,
) -> AsyncIterator[Lease]:
    """Hold the lock of a job. `timeout`, how long to wait for it, is by default that of the family."""
    counts = statistics if statistics is not None else JobLockStatistics()
    chosen = family if timeout is None else replace(family, acquire_timeout=timeout)
    check_id("job", job_id)
    async with item_lock(lambda: chosen.lock(locks, job=job_id), locks, delays, counts, NOUN) as lease:
        yield lease
