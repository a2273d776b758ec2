"""The order of requests inside one process: a handler starts when those of older holders have ended.

A record decides which requests are admitted. It does not know which are still running. A request of the fence 1 is
admitted and its handler is about to write; the fence 2 is noted, and its handler reads; then the first one writes. The
record has seen everything in the right order, and the update of the second is made from a stale read. So the requests
of one lock share a lane:

    arriving   from before the record is asked, so that a request whose answer comes late finds out what happened since
    running    its handler was started; equal fences run side by side

Promises: no handler is started under a fence below one that has been met in the lane; a handler starts only when no
handler with a lower fence is running; a lane is gone with the last request in it, however that ended. Between processes
it promises nothing: there the handler hands its fence on to a guard at the storage. For one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core.lease.fencing import Stale


class LockLane:
    """The requests of one lock that are in this process now."""

    __slots__ = ("_changes", "_running", "members", "met")

    def __init__(self) -> None:
        self.members = 0
        self.met = -1  # the highest fence that the record has confirmed to a request in this lane
        self._running: Counter[int] = Counter()
        self._changes: set[asyncio.Future[None]] = set()

    def meet(self, fence: int) -> Stale | None:
        """Take note of a fence that the record has accepted; `Stale` if a higher one was met meanwhile."""
        if fence < self.met:
            return Stale(self.met)
        if fence > self.met:
            self.met = fence
            self._changed()
        return None

    def superseded(self, fence: int) -> bool:
        """Whether a newer holder has been here."""
        return fence < self.met

    def clear_for(self, fence: int) -> bool:
        """Whether no handler of an older holder is running."""
        return not any(each < fence for each in self._running)

    async def turn(self, fence: int) -> None:
        """Wait until the way is clear, or until there is no point in waiting any more."""
        while not self.superseded(fence) and not self.clear_for(fence):
            await self._change()

    async def overtaken(self, fence: int) -> None:
        """Wait until a newer holder is here."""
        while not self.superseded(fence):
            await self._change()

    @contextmanager
    def running(self, fence: int) -> Iterator[None]:
        """A handler runs under this fence."""
        self._running[fence] += 1
        try:
            yield
        finally:
            self._running[fence] -= 1
            if not self._running[fence]:
                del self._running[fence]
            self._changed()

    async def _change(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.add(change)
        try:
            await change
        finally:
            self._changes.discard(change)

    def _changed(self) -> None:
        for change in self._changes:
            if not change.done():
                change.set_result(None)

    @property
    def in_flight(self) -> int:
        """How many handlers are running."""
        return self._running.total()


class Lanes:
    """The lanes of all locks that have requests in this process now."""

    def __init__(self) -> None:
        self._lanes: dict[str, LockLane] = {}

    @contextmanager
    def join(self, key: str) -> Iterator[LockLane]:
        """Join the lane of this lock. It exists while it has members."""
        lane = self._lanes.setdefault(key, LockLane())
        lane.members += 1
        try:
            yield lane
        finally:
            lane.members -= 1
            if not lane.members:
                del self._lanes[key]

    @property
    def requests(self) -> int:
        """How many requests are in a lane, waiting ones included."""
        return sum(lane.members for lane in self._lanes.values())

    @property
    def in_flight(self) -> int:
        """How many handlers are running."""
        return sum(lane.in_flight for lane in self._lanes.values())
