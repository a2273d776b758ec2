"""The lock of one job, as every handler takes it: waited for briefly, held while the work runs, and judged at the end.

    async with job_lock(locks, job_id, delays) as lease: ...

Promises: the work gets the lease and passes it down, so that nobody takes it twice. Whatever prevents the work is a
`RetryLater` that says for how long: `job lock busy` (exactly 500 ms, unless the delays have jitter), trouble with the
store of leases or the database (1 s), and `JobLockAbandoned` when the lease was lost on the way, or storage has met a
newer one. Then the body was cancelled, the lock is not released (it may be another's by now), and the outcome is never
a success, whatever the body had done: another may own the job already. Release is bounded and survives cancellation.

Does not promise that a body which never awaits is stopped: its writes are refused by their fence.

Clock: that of the locks. Waiting and holding are measured on the monotonic one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.aio.lease import Lease
from holdfast.aio.locks import Locks
from holdfast.core.retry import RetryDelays
from holdfast.errors import BackendError, Closed, FencedOut, LeaseLost, LockBusy, NotEntered, RetryLater, Unavailable
from holdfast.plane.families import RETRY_DELAYS, SCHEDULER_JOB
from holdfast.plane.model import check_id
from holdfast.types import NS

BUSY: Final = "job lock busy"
ABANDONED: Final = "job lock abandoned"


class JobLockAbandoned(RetryLater):
    """The lease was lost while the work ran, or somebody newer has written. What was done may have to be done again.

    The cause is the `LeaseLost`, `FencedOut` or `NotEntered` that said so.
    """

    def __init__(self, delay: float, cause: BaseException | str = ABANDONED) -> None:
        super().__init__(delay, cause)
        self.args = (f"retry after {self.delay * 1000:g}ms: {ABANDONED}: {cause}",)


@dataclass(slots=True)
class Spread:
    """How long something took, over many times: enough for a mean, a rate and a worst case."""

    count: int = 0
    total_ns: int = 0
    longest_ns: int = 0

    def add(self, ns: int) -> None:
        """Count one."""
        self.count += 1
        self.total_ns += ns
        self.longest_ns = max(self.longest_ns, ns)


@dataclass(slots=True)
class JobLockStatistics:
    """What became of the attempts to have a job's lock since this was made."""

    waited: Spread = field(default_factory=Spread)  # for locks that were had
    waited_in_vain: Spread = field(default_factory=Spread)  # busy, or no store
    held: Spread = field(default_factory=Spread)
    busy: int = 0
    backend_errors: int = 0
    abandoned: int = 0


@asynccontextmanager
async def job_lock(
    locks: Locks,
    job_id: str,
    delays: RetryDelays = RETRY_DELAYS,
    *,
    statistics: JobLockStatistics | None = None,
    timeout: float | None = None,
) -> AsyncIterator[Lease]:
    """Hold the lock of a job. `timeout` is how long to wait for it, by default the two seconds of its family."""
    counts = statistics if statistics is not None else JobLockStatistics()
    draw, clock = locks.ports.entropy.below, locks.ports.clock
    family = SCHEDULER_JOB if timeout is None else replace(SCHEDULER_JOB, acquire_timeout=timeout)
    check_id("job", job_id)
    asked = clock.now().mono
    taken: int | None = None
    try:
        async with family.lock(locks, job=job_id) as lease:
            taken = clock.now().mono
            counts.waited.add(taken - asked)
            yield lease
    except LockBusy as error:
        if taken is not None:
            raise  # of some other lock, which is the body's own affair
        counts.busy += 1
        raise delays.later(error, draw, text=BUSY) from error
    except (BackendError, Closed) as error:
        counts.backend_errors += 1
        # Closing is this process's end: somebody else will have it, as after any other trouble.
        trouble = error if isinstance(error, BackendError) else Unavailable(str(error))
        raise delays.later(trouble, draw) from error
    except (LeaseLost, FencedOut, NotEntered) as error:
        counts.abandoned += 1
        raise JobLockAbandoned(delays.busy.delay_ns(0, 0, draw) / NS, error) from error
    finally:
        now = clock.now().mono
        if taken is None:
            counts.waited_in_vain.add(now - asked)
        else:
            counts.held.add(now - taken)
