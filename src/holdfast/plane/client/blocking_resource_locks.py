"""Resource locks of a blocking client: the same as in `resource_locks`, called on the loop of the client.

Promises: `held`, `lost` and `ensure_held()` are local and do not wait for that loop. Renewals run on its thread, so a
program that blocks keeps its resources. Clock: see `resource_locks`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.types import NS, Duration, duration_ns

if TYPE_CHECKING:
    from holdfast.plane.client.blocking import BlockingClient
    from holdfast.plane.client.resource_locks import ResourceLease, ResourceLock, ResourceLoss


class BlockingResourceLoss:
    """Whether and why a resource is lost. See `ResourceLoss`."""

    def __init__(self, client: BlockingClient, loss: ResourceLoss) -> None:
        self._client = client
        self._loss = loss

    def is_set(self) -> bool:
        """Whether the resource is lost, now."""
        return self._loss.is_set()

    @property
    def reason(self) -> str | None:
        """Why it was lost."""
        return self._loss.reason

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until the resource is lost or released. False: not in time."""
        limit_s = None if timeout is None else duration_ns("timeout", timeout) / NS
        return self._client.run_here(_within(self._loss.wait(), limit_s))

    def __bool__(self) -> bool:
        return self.is_set()


class BlockingResourceLease:
    """A held resource. See `ResourceLease`."""

    def __init__(self, client: BlockingClient, lease: ResourceLease) -> None:
        self._client = client
        self._lease = lease
        self.key, self.owner, self.mode, self.fence = lease.key, lease.owner, lease.mode, lease.fence
        self.lost = BlockingResourceLoss(client, lease.lost)

    @property
    def held(self) -> bool:
        """Whether the resource is held, now."""
        return self._lease.held

    def remaining(self) -> float:
        """How many seconds it is held without another renewal."""
        return self._lease.remaining()

    def ensure_held(self, min_remaining: Duration = 0) -> None:
        """Return if the resource is held, else raise `LeaseLost`. See `ResourceLease.ensure_held`."""
        self._lease.ensure_held(min_remaining)

    def release(self) -> bool:
        """Release the resource. False: it was lost before."""
        return self._client.run_here(self._lease.release())

    def leave(self, error: BaseException | None) -> None:
        """Release at the end of a block, and report a loss."""
        self._client.run_here(self._lease.leave(error))

    def __repr__(self) -> str:
        return repr(self._lease).replace("<", "<Blocking", 1)


class BlockingResourceLock:
    """A resource of a plane. See `ResourceLock`. Safe from any thread."""

    def __init__(self, client: BlockingClient, lock: ResourceLock) -> None:
        self._client = client
        self._lock = lock
        self._entered = threading.local()

    def acquire(self, timeout: Duration | None = None) -> BlockingResourceLease:
        """Wait for the resource, and hold it. See `ResourceLock.acquire`."""
        return BlockingResourceLease(self._client, self._client.run_here(self._lock.acquire(timeout)))

    def try_acquire(self) -> BlockingResourceLease | None:
        """Hold the resource if it is free now; None: it is busy."""
        lease = self._client.run_here(self._lock.try_acquire())
        return None if lease is None else BlockingResourceLease(self._client, lease)

    def __enter__(self) -> BlockingResourceLease:
        lease = self.acquire()
        self._entered.__dict__.setdefault("leases", []).append(lease)
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease: BlockingResourceLease = self._entered.leases.pop()
        lease.leave(error)

    def __repr__(self) -> str:
        return repr(self._lock).replace("<", "<Blocking", 1)


async def _within(work: Coroutine[Any, Any, None], limit_s: float | None) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        return False
    return True
