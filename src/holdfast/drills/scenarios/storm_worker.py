"""The worker's half of `storm`: thousands of waiters for one lock in one process, and thousands of leases.

Each waiter is a task of one event loop, as in a service. It does one small piece of work under the lock, on the guarded
balance of the drill. Beside them the process keeps an unrelated lease, which it loses if renewals starve. The report is
small and in arrays, so that it adds nothing to the reported memory.


Clock: monotonic, which all processes of a host share, so that arrivals in different processes can be ordered.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.drills.verdict.account import Account, Balance
from holdfast.drills.verdict.resource_usage import UsageSamples, usage
from holdfast.errors import AcquireTimeout, BackendError, HoldfastError

SAMPLE_S: Final = 0.25
IN_FLIGHT: Final = 16  # tasks that acquire and release many leases; more do not make a store faster
RENEWALS: Final = 2  # how often every lease is renewed before it is released
_LOOK_S: Final = 0.02
_TELL_S: Final = 2.0

Tell = Callable[..., None]


@dataclass(slots=True)
class _Served:
    """The results of the waiters: which ones, and the times of arrival and of the grant."""

    who: array[int] = field(default_factory=lambda: array("q"))
    came_ns: array[int] = field(default_factory=lambda: array("q"))
    got_ns: array[int] = field(default_factory=lambda: array("q"))
    timed_out: int = 0
    refused: int = 0  # granted, but the lease was lost before the work was done
    failed: int = 0  # the store gave no answer

    def note(self, number: int, came_ns: int) -> None:
        """Record a grant to a waiter."""
        self.who.append(number)
        self.came_ns.append(came_ns)
        self.got_ns.append(time.monotonic_ns())

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        counts = {"timed_out": self.timed_out, "refused": self.refused, "failed": self.failed}
        return {"who": list(self.who), "came_ns": list(self.came_ns), "got_ns": list(self.got_ns), **counts}


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of each waiter: 1 is added to a balance under the lock. Versions are unique over all processes."""

    account: Account
    writer: str
    first: int
    step: int

    async def wait(self, lock: Lock[Lease], number: int, served: _Served) -> None:
        """Wait for the lock, do the work, and release the lock."""
        came_ns = time.monotonic_ns()
        try:
            lease = await lock.acquire()
        except AcquireTimeout:
            served.timed_out += 1
            return
        except BackendError:
            served.failed += 1
            return
        served.note(number, came_ns)
        # Blocking, on the loop: it takes a fraction of a millisecond, and no other task may write now.
        found = self.account.read(lease)
        new = None if found is None else Balance(found.balance + 1, self.first + number * self.step)
        if found is None or new is None or not self.account.write(lease, new, found.version, self.writer):
            served.refused += 1
        await lease.release()


async def queue_waiters(
    locks: Locks,
    account: Account,
    writer: str,
    report: Tell,
    *,
    key: str,
    unrelated: str,
    waiters: int,
    fair: bool,
    ttl: float,
    timeout: float,
    first: int,
    step: int,
) -> dict[str, Any]:
    """Queue so many waiters for one lock, report "queued" when all are queued, and return when all have finished."""
    served, samples, work = _Served(), UsageSamples(), _Work(account, writer, first, step)
    async with locks, _kept(locks, unrelated, ttl) as beside:
        before = usage(settled=True)
        asked = locks.statistics()
        lock = locks.lock(key, ttl=ttl, family="drill", fair=fair, timeout=timeout)
        tasks = [asyncio.create_task(work.wait(lock, number, served)) for number in range(waiters)]
        await _all_queued(locks, tasks, asked.busy)
        queued = usage()
        report("queued", waiting=locks.statistics().waiting)
        await _sampled(asyncio.gather(*tasks), samples, report, "served", waiters, lambda: len(served.who))
        tasks.clear()
        done, after = locks.statistics(), usage(settled=True)
        return {
            **served.as_dict(),
            "asked": done.granted + done.busy - asked.granted - asked.busy,
            "released": done.released - asked.released,
            "unrelated_held": beside.held,
            "before": before,
            "queued": queued,
            "after": after,
            "samples": samples.rows(),
        }


async def _all_queued(locks: Locks, tasks: Sequence[asyncio.Task[None]], busy: int) -> None:
    """Return when all waiters are in the queue of this process, and the first of them in that of the store."""
    while not any(task.done() for task in tasks):
        now = locks.statistics()
        if now.waiting >= len(tasks) - 1 and now.busy > busy:
            return
        await asyncio.sleep(_LOOK_S)


@dataclass(slots=True)
class _Leases:
    """Many leases of one process, and the acquisitions and releases that failed."""

    locks: Locks
    held: list[Lease] = field(default_factory=list)
    not_taken: int = 0
    not_released: int = 0

    async def take(self, keys: Iterator[str], ttl: float, timeout: float) -> None:
        """Acquire locks until no key is left."""
        for key in keys:
            try:
                self.held.append(await self.locks.lock(key, ttl=ttl, family="drill").acquire(timeout))
            except HoldfastError:
                self.not_taken += 1

    async def release(self, leases: Iterator[Lease]) -> None:
        """Release leases until none is left."""
        for lease in leases:
            try:
                self.not_released += not await lease.release()
            except HoldfastError:
                self.not_released += 1


async def hold_leases(
    locks: Locks, report: Tell, *, prefix: str, first: int, keys: int, ttl: float, timeout: float
) -> dict[str, Any]:
    """Acquire so many leases, keep them until each was renewed a few times, release all of them, and report."""
    async with locks:
        await locks.ping()
        before, samples, leases = usage(settled=True), UsageSamples(), _Leases(locks)
        names = (f"{prefix}{number}" for number in range(first, first + keys))
        taking = asyncio.gather(*(leases.take(names, ttl, timeout) for _ in range(IN_FLIGHT)))
        await _sampled(taking, samples, report, "taken", keys, lambda: len(leases.held))
        taken_ns, taken = time.monotonic_ns(), len(leases.held)
        wanted = RENEWALS * taken
        renewing = _renewed(locks, wanted, timeout)
        await _sampled(renewing, samples, report, "renewed", wanted, lambda: locks.statistics().renewed)
        peak, kept_ns, counts = usage(), time.monotonic_ns(), locks.statistics()
        lost = sum(not lease.held for lease in leases.held)
        rest = iter(leases.held)
        releasing = asyncio.gather(*(leases.release(rest) for _ in range(IN_FLIGHT)))
        await _sampled(releasing, samples, report, "released", keys, lambda: counts.held - locks.statistics().held)
        del rest
        leases.held.clear()
        after = usage(settled=True)
        return {
            "taken": taken,
            "not_taken": leases.not_taken,
            "not_released": leases.not_released,
            "lost": lost,
            "renewed": counts.renewed,
            "requests": counts.renew_requests,
            "kept_s": (kept_ns - taken_ns) / 1e9,
            "before": before,
            "peak": peak,
            "after": after,
            "samples": samples.rows(),
        }


async def _renewed(locks: Locks, wanted: int, timeout: float) -> None:
    """Return after so many renewals, or at the time limit; the counts show which."""
    end = time.monotonic() + timeout
    while locks.statistics().renewed < wanted and time.monotonic() < end:  # noqa: ASYNC110 - two looks at a counter
        await asyncio.sleep(SAMPLE_S)


@asynccontextmanager
async def _kept(locks: Locks, key: str, ttl: float) -> AsyncIterator[Lease]:
    """A lease unrelated to the storm, held throughout."""
    lease = await locks.lock(key, ttl=ttl, family="drill").acquire()
    try:
        yield lease
    finally:
        await lease.release()


async def _sampled(work: Any, samples: UsageSamples, report: Tell, what: str, of: int, done: Callable[[], int]) -> None:
    """Wait for work; sample the resource usage of this process and report progress meanwhile."""
    task = asyncio.ensure_future(work)
    samples.sample()
    told = time.monotonic()
    while not task.done():
        await asyncio.wait({task}, timeout=SAMPLE_S)
        samples.sample()
        if time.monotonic() - told > _TELL_S:
            told = time.monotonic()
            report("progress", what=what, done=min(of, done()), of=of)
    await task
