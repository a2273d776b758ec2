"""The worker's half of `soak`: a process that acquires, waits for, keeps, guards and releases leases for hours.

It does what services do, concurrently: tasks that alternate at a lock and write under it, a lease that is kept and
renewed, a caller with a short deadline, a cancelled caller, and a thread with the blocking API. Meanwhile the link to
the store fails repeatedly, so it reconnects, loses leases, and acquires new ones. Its resource usage is sampled at a
fixed rate.

Clock: monotonic.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final

from holdfast.aio.client import Locks as AioLocks
from holdfast.drills.verdict.account import Account, Balance
from holdfast.drills.verdict.resource_usage import UsageSamples
from holdfast.errors import AcquireTimeout, BackendError, HoldfastError, LeaseLost
from holdfast.leases.sync.client import Locks

PATIENCE_S: Final = 2.0
HASTE_S: Final = 0.05
TURNS: Final = 3  # tasks that alternate at one lock
KEPT: Final = 20  # checks of a lease before it is released and acquired again


class Resident:
    """Runs until it is told to stop."""

    def __init__(
        self,
        locks: AioLocks,
        blocking: Locks,
        account: Account,
        writer: str,
        stop: threading.Event,
        *,
        key: str,
        ttl: float,
        pace: float,
        every: float,
    ) -> None:
        """`pace`: seconds between two operations of a task. `every`: seconds between two samples."""
        self._locks = locks
        self._blocking = blocking
        self._account = account
        self._writer = writer
        self._stop = stop
        self._key, self._ttl, self._pace, self._every = key, ttl, pace, every
        self._versions: Iterator[int] = itertools.count(1)
        self._counts: Counter[str] = Counter()
        self._samples = UsageSamples()

    async def live(self) -> dict[str, Any]:
        """Run all tasks until told to stop; then release everything and return the counts."""
        async with self._locks:
            deeds: list[Callable[[], Coroutine[Any, Any, None]]] = [self._turn] * TURNS
            tasks = [asyncio.create_task(self._again(each)) for each in (*deeds, self._haste, self._change_of_mind)]
            tasks += [asyncio.create_task(self._keep()), asyncio.create_task(asyncio.to_thread(self._block))]
            while not self._stop.is_set():
                self._samples.sample(settled=True)
                await asyncio.sleep(self._every)
            await asyncio.gather(*tasks)
            counts, statistics = dict(self._counts), self._locks.statistics()
        return {"samples": self._samples.rows(), "counts": {**counts, "renewed": statistics.renewed}}

    async def _again(self, deed: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while not self._stop.is_set():
            try:
                await deed()
            except AcquireTimeout:
                self._counts["timed out"] += 1
            except LeaseLost:
                self._counts["lost"] += 1
            except BackendError:
                self._counts["store errors"] += 1
            await asyncio.sleep(self._pace)

    async def _turn(self) -> None:
        """Wait for a lock that other tasks want too, and write under it."""
        async with self._locks.lock(self._key, ttl=self._ttl, family="drill", timeout=PATIENCE_S) as lease:
            self._counts["grants"] += 1
            found = self._account.read(lease)  # blocking, on the loop, for a fraction of a millisecond
            new = None if found is None else Balance(found.balance + 1, next(self._versions))
            if found is None or new is None or not self._account.write(lease, new, found.version, self._writer):
                self._counts["refused"] += 1
            else:
                self._counts["writes"] += 1

    async def _haste(self) -> None:
        """Wait for the same lock with a very short deadline."""
        lease = await self._locks.lock(self._key, ttl=self._ttl, family="drill", timeout=HASTE_S).acquire()
        self._counts["grants"] += 1
        await lease.release()

    async def _change_of_mind(self) -> None:
        """Request it, and be cancelled at some moment."""
        task = asyncio.create_task(self._locks.lock(self._key, ttl=self._ttl, family="drill").acquire())
        await asyncio.sleep(0)
        await asyncio.wait({task}, timeout=HASTE_S / 10)
        task.cancel()
        with suppress(asyncio.CancelledError):
            lease = await task
            self._counts["grants"] += 1
            await lease.release()
        self._counts["cancelled"] += task.cancelled()

    async def _keep(self) -> None:
        """Keep an own lease for a while, and check whether it was kept."""
        lock = self._locks.lock(f"{self._key}:kept", ttl=self._ttl, family="drill", timeout=PATIENCE_S)
        while not self._stop.is_set():
            try:
                lease = await lock.acquire()
                self._counts["grants"] += 1
                for _ in range(KEPT):
                    if self._stop.is_set() or not lease.held:
                        break
                    await asyncio.sleep(self._pace)
                self._counts["lost"] += not lease.held
                await lease.release()
            except HoldfastError:
                self._counts["store errors"] += 1
                await asyncio.sleep(self._pace)

    def _block(self) -> None:
        """The same in a thread, with the blocking API."""
        lock = self._blocking.lock(self._key, ttl=self._ttl, family="drill", timeout=PATIENCE_S)
        while not self._stop.is_set():
            try:
                with lock:
                    self._counts["grants"] += 1
            except LeaseLost:
                self._counts["lost"] += 1
            except AcquireTimeout:
                self._counts["timed out"] += 1
            except BackendError:
                self._counts["store errors"] += 1
            time.sleep(self._pace)
