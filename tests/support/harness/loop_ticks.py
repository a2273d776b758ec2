"""A tick of a loop, for tests that make one by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from holdfast.plane.locks.registry import LockFamily
from holdfast.plane.loops.loop import Tick
from support.fixtures.scheduling import Replica


@asynccontextmanager
async def ticking(replica: Replica, family: LockFamily) -> AsyncIterator[Tick]:
    """A tick under the lease of a loop, which is released at the end."""
    async with family.lock(replica.locks) as lease:
        yield Tick(lease)


async def one_tick(replica: Replica, family: LockFamily, work: Callable[[Tick], Awaitable[None]]) -> None:
    """One tick, from beginning to end."""
    async with ticking(replica, family) as tick:
        await work(tick)
