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
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.drills.verdict.account import Account, Balance
from holdfast.drills.verdict.resource_usage import Samples, usage
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

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        counts = {"timed_out": self.timed_out, "refused": self.refused, "failed": self.failed}
        return {"who": list(self.who), "came_ns": list(self.came_ns), "got_ns": list(self.got_ns), **counts}


async def stand_in_line(
    locks: Locks,
    account: Account,
    writer: str,
    tell: Tell,
    *,
    key: str,
    bystander: str,
    waiters: int,
    fair: bool,
    ttl: float,
    timeout: float,
    first: int,
    step: int,
) -> dict[str, Any]:
    """Queue so many waiters for one lock, report "in_line" when all are queued, and return when all have finished."""
    served, samples = _Served(), Samples()
    async with locks, _kept(locks, bystander, ttl) as beside:
        before = usage(settled=True)
        asked = locks.statistics()
        lock = locks.lock(key, ttl=ttl, family="drill", fair=fair, timeout=timeout)

        async def wait(number: int) -> None:
            came_ns = time.monotonic_ns()
            try:
                lease = await lock.acquire()
            except AcquireTimeout:
                served.timed_out += 1
                return
            except BackendError:
                served.failed += 1
                return
            for column, value in zip(
                (served.who, served.came_ns, served.got_ns), (number, came_ns, time.monotonic_ns()), strict=True
            ):
                column.append(value)
            # Blocking, on the loop: it takes a fraction of a millisecond, and no other task may write now.
            found = account.read(lease)
            new = None if found is None else Balance(found.balance + 1, first + number * step)
            if found is None or new is None or not account.write(lease, new, found.version, writer):
                served.refused += 1
            await lease.release()

        tasks = [asyncio.create_task(wait(number)) for number in range(waiters)]

        def all_in_line() -> bool:
            """All waiters are in the queue of this process, and the first of them in that of the store."""
            now = locks.statistics()
            return now.waiting >= waiters - 1 and now.busy > asked.busy

        while not all_in_line() and not any(task.done() for task in tasks):  # noqa: ASYNC110 - two looks at counters
            await asyncio.sleep(_LOOK_S)
        in_line = usage()
        tell("in_line", waiting=locks.statistics().waiting)
        await _sampled(asyncio.gather(*tasks), samples, tell, "served", waiters, lambda: len(served.who))
        tasks.clear()
        done, after = locks.statistics(), usage(settled=True)
        return {
            **served.as_dict(),
            "asked": done.granted + done.busy - asked.granted - asked.busy,
            "released": done.released - asked.released,
            "bystander_held": beside.held,
            "before": before,
            "in_line": in_line,
            "after": after,
            "samples": samples.rows(),
        }


async def hoard(
    locks: Locks, tell: Tell, *, prefix: str, first: int, keys: int, ttl: float, timeout: float
) -> dict[str, Any]:
    """Acquire so many leases, keep them until each was renewed a few times, release all of them, and report."""
    async with locks:
        await locks.ping()
        before = usage(settled=True)
        leases: list[Lease] = []
        samples = Samples()
        failed = [0, 0]

        async def take(numbers: Iterator[int]) -> None:
            for number in numbers:
                try:
                    leases.append(await locks.lock(f"{prefix}{number}", ttl=ttl, family="drill").acquire(timeout))
                except HoldfastError:
                    failed[0] += 1

        async def give_back(held: Iterator[Lease]) -> None:
            for lease in held:
                try:
                    failed[1] += not await lease.release()
                except HoldfastError:
                    failed[1] += 1

        numbers = iter(range(first, first + keys))
        taking = asyncio.gather(*(take(numbers) for _ in range(IN_FLIGHT)))
        await _sampled(taking, samples, tell, "taken", keys, lambda: len(leases))
        taken, taken_in_all = time.monotonic_ns(), len(leases)
        wanted = RENEWALS * taken_in_all
        renewing = _renewed(locks, wanted, timeout)
        await _sampled(renewing, samples, tell, "renewed", wanted, lambda: locks.statistics().renewed)
        peak, kept, counts = usage(), time.monotonic_ns(), locks.statistics()
        lost = sum(not lease.held for lease in leases)
        held = iter(leases)
        giving = asyncio.gather(*(give_back(held) for _ in range(IN_FLIGHT)))
        await _sampled(giving, samples, tell, "released", keys, lambda: counts.held - locks.statistics().held)
        del held
        leases.clear()
        after = usage(settled=True)
        return {
            "taken": taken_in_all,
            "not_taken": failed[0],
            "not_given_back": failed[1],
            "lost": lost,
            "renewed": counts.renewed,
            "requests": counts.renew_requests,
            "kept_s": (kept - taken) / 1e9,
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


async def _sampled(work: Any, samples: Samples, tell: Tell, what: str, of: int, done: Callable[[], int]) -> None:
    """Wait for work; sample the resource usage of this process and report progress meanwhile."""
    task = asyncio.ensure_future(work)
    samples.look()
    told = time.monotonic()
    while not task.done():
        await asyncio.wait({task}, timeout=SAMPLE_S)
        samples.look()
        if time.monotonic() - told > _TELL_S:
            told = time.monotonic()
            tell("progress", what=what, done=min(of, done()), of=of)
    await task
