"""The lock of one item, as every handler takes it: waited for briefly, held while the work runs, judged at the end.

Promises: the work gets the lease and passes it down, so that it is not acquired twice. Whatever prevents the work is a
`RetryLater` that says for how long: contention (exactly 500 ms, unless the delays have jitter), trouble with the store
of leases or the database (1 s), and `Abandoned` when the lease was lost on the way, or storage has met a newer one.
Then the body was cancelled, the lock is not released (it may be another's by now), and the outcome is never a success,
whatever the body had done: another may own the item already. Release is bounded and survives cancellation.

Does not promise that a body which never awaits is stopped: its writes are refused by their fence.

Clock: that of the locks. Waiting and holding are measured on the monotonic one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from holdfast.aio.client import Locks
from holdfast.aio.lease import DegradedLease, Lease
from holdfast.aio.lock import Lock
from holdfast.core.histogram import Distribution
from holdfast.core.retry_delays import AnyDelays
from holdfast.errors import (
    BackendError,
    Closed,
    FencedOut,
    LeaseLost,
    LockBusy,
    NotEntered,
    PolicyDenied,
    RetryLater,
    Unavailable,
)
from holdfast.types import NS

L = TypeVar("L", Lease, Lease | DegradedLease)
Draw: TypeAlias = Callable[[int], int]


class Abandoned(RetryLater):
    """The lease was lost while the work ran, or a newer holder has written. What was done may have to be done again.

    The cause is the `LeaseLost`, `FencedOut` or `NotEntered` that said so.
    """

    def __init__(self, delay: float, noun: str, cause: BaseException | str) -> None:
        super().__init__(delay, cause)
        self.args = (f"retry after {self.delay * 1000:g}ms: {noun} abandoned: {cause}",)


@dataclass(slots=True)
class ItemLockStatistics:
    """The outcome of the attempts to have the locks of one family since this was made."""

    waited: Distribution = field(default_factory=Distribution)  # for locks that were had
    waited_in_vain: Distribution = field(default_factory=Distribution)  # busy, or no store
    held: Distribution = field(default_factory=Distribution)
    busy: int = 0
    backend_errors: int = 0
    abandoned: int = 0
    degraded: int = 0  # had without the store, because the risk class allows it


def in_trouble(error: BackendError | Closed, delays: AnyDelays, draw: Draw, counts: ItemLockStatistics) -> RetryLater:
    """The work was not done, or it is unknown whether it was: a store did not answer."""
    counts.backend_errors += 1
    # Closing is the end of this process: another one will get the message, as after any other trouble.
    return delays.later(error if isinstance(error, BackendError) else Unavailable(str(error)), draw)


def given_up(
    error: LeaseLost | FencedOut | NotEntered, delays: AnyDelays, draw: Draw, counts: ItemLockStatistics, noun: str
) -> Abandoned:
    """Another process may have the item by now."""
    counts.abandoned += 1
    return Abandoned(delays.busy.delay_ns(0, 0, draw) / NS, noun, error)


@asynccontextmanager
async def item_lock(
    lock: Callable[[], Lock[L]],
    locks: Locks,
    delays: AnyDelays,
    counts: ItemLockStatistics,
    noun: str,
) -> AsyncIterator[L]:
    """Hold the lock that `lock` describes. `noun` names it in messages: `job lock`."""
    draw, clock = locks.ports.entropy.below, locks.ports.clock
    asked = clock.now().mono
    taken: int | None = None
    try:
        async with lock() as lease:
            taken = clock.now().mono
            counts.waited.observe(taken - asked)
            counts.degraded += not lease.guaranteed
            yield lease
    except LockBusy as error:
        if taken is not None:
            raise  # of some other lock, which is the body's own affair
        counts.busy += 1
        raise delays.later(error, draw, text=f"{noun} busy") from error
    except (BackendError, Closed) as error:
        raise in_trouble(error, delays, draw, counts) from error
    except PolicyDenied as error:
        if taken is not None:
            raise  # of some other lock, as above
        counts.backend_errors += 1
        cause = error.__cause__
        trouble = cause if isinstance(cause, BackendError) else Unavailable(str(error))
        raise delays.later(trouble, draw) from trouble
    except (LeaseLost, FencedOut, NotEntered) as error:
        raise given_up(error, delays, draw, counts, noun) from error
    finally:
        now = clock.now().mono
        if taken is None:
            counts.waited_in_vain.observe(now - asked)
        else:
            counts.held.observe(now - taken)
