"""A waiter's position in the queue of one key: `ports.Watch` on a server, written once for sync and asyncio.

A release wakes one waiter, not all of them: a thousand processes that wait for one key must not all ask together. So
each waiter has a subscription of its own and is queued for a hint in the store. It has been queued since the very step
in which its ask found the key taken, so that no release can fall between the ask and the wait; only a waiter that waits
without having asked has to join the queue first.

Promises: a hint that was sent to a waiter which gives up is passed on to the next one, in the same step in which it
leaves the queue. A subscription that may be queued without a waiter behind it is never used again.

Does not promise: that a hint which was sent to a process that is stopped, or dies holding it, reaches another one.
Each subscription can cost one hint in that way, and no more: it has left the queue by then. The other waiters find out
by asking at the slow end of their back-off, and when the time of the holder they met is over.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from holdfast.errors import BackendError, Unavailable
from holdfast.types import MS, NS

LEAVE_NS = 500 * MS
_JOIN_LEAST_NS, _JOIN_MOST_NS = 20 * MS, 2 * NS


class HintQueue(Protocol):
    """The waiters of one key in the store, in order."""

    @property
    def ttl_ns(self) -> int:
        """After which a waiter that has not asked again may be forgotten."""
        ...

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        ...

    async def join(self, entry: str, deadline_ns: int) -> bool:
        """Join the queue. True: the key is free, and the waiter has not joined."""
        ...

    async def leave(self, entry: str, deadline_ns: int) -> bool:
        """Leave the queue, and pass on a hint that was not used. True: the entry is certainly not queued any more."""
        ...


class WakeupSubscription(Protocol):
    """A channel that is listened to, lent to one waiter at a time."""

    @property
    def entry(self) -> str:
        """The entry in the queue: "<channel> <number>". The number is new for each waiter, so old hints are known."""
        ...

    async def wait(self, timeout_ns: int) -> bool:
        """Wait for a hint, or until one may have been missed. Never raises a store error."""
        ...

    def close(self, *, sound: bool) -> None:
        """Give it back. Unless it is sound it must not be used again, nor be listened to."""
        ...


class WakeupSubscriber(Protocol):
    """Opens subscriptions, for threads or for one event loop."""

    async def open(self, timeout_ns: int) -> WakeupSubscription:
        """A subscription that receives hints from now on."""
        ...

    async def close(self) -> None:
        """Close idle subscriptions."""
        ...


class QueuedWatch:
    """One waiter's position in the queue of one key."""

    __slots__ = (
        "_closed",
        "_doubtful",
        "_forget",
        "_pid",
        "_queue",
        "_queued",
        "_subscription",
        "_waiting",
        "_woken",
        "lock",
    )

    def __init__(
        self,
        queue: HintQueue,
        subscription: WakeupSubscription,
        lock: str,
        forget: Callable[[QueuedWatch], None],
    ) -> None:
        self._queue = queue
        self._subscription = subscription
        self.lock = lock  # that it waits for
        self._forget = forget
        self._pid = os.getpid()
        self._queued = False  # as far as is known
        self._doubtful = False  # a request that would queue it was sent, and may still take effect
        self._woken = False  # a hint was received, and no ask was answered since
        self._waiting = False
        self._closed = False

    @property
    def may_ask(self) -> bool:
        """Whether an ask for the key can be this waiter's: it is not asleep, and of this process."""
        return not self._waiting and self._pid == os.getpid()

    @property
    def entry(self) -> str:
        """The entry in the queue."""
        return self._subscription.entry

    @property
    def woken(self) -> bool:
        """Whether it was given a hint, and has not asked since. It precedes those that were not woken yet."""
        return self._woken

    def answered(self, granted: bool) -> None:
        """An ask that named this subscription was answered: it is queued now, or certainly is not."""
        self._queued = not granted
        self._woken = False

    def unanswered(self, error: BaseException) -> None:
        """An ask with this subscription ended without an answer: it may take effect yet, if the error allows it."""
        if not isinstance(error, Unavailable):
            self._doubtful = True

    async def wait(self, timeout_ns: int) -> bool:
        """See `ports.Watch.wait`. That the key is free is as good as a hint, if it is found out here."""
        self._waiting = True
        try:
            left_ns = timeout_ns
            if not self._queued:
                until_ns = self._queue.deadline(timeout_ns)
                if await self._free(timeout_ns):
                    self._woken = True
                    return True
                left_ns = max(0, until_ns - self._queue.deadline(0))  # a hung server has used it up
            longest = self._queue.ttl_ns // 2
            if await self._subscription.wait(min(left_ns, longest)):
                self._queued, self._woken = False, True
                return True
            return timeout_ns > longest  # asking again is what keeps the position in the queue
        finally:
            self._waiting = False

    async def _free(self, timeout_ns: int) -> bool:
        """Join the queue, unless the key is free. A server that is away is no error here: the next ask reports it."""
        limit_ns = min(max(timeout_ns, _JOIN_LEAST_NS), _JOIN_MOST_NS)
        try:
            free = await self._queue.join(self._subscription.entry, self._queue.deadline(limit_ns))
        except BaseException as error:
            self.unanswered(error)
            if not isinstance(error, BackendError):
                raise
            return False
        self._queued = not free
        return free

    async def close(self) -> None:
        """See `ports.Watch.close`. Costs nothing after a grant, which has left the queue already."""
        if self._closed:
            return
        sound = False
        try:
            if self._pid == os.getpid():
                sound = await self._leave_queue()
        finally:
            self._forget(self)
            # Not sooner: an interrupted call is made again. Not later: a subscription is returned once.
            self._closed = True
            self._subscription.close(sound=sound)

    async def _leave_queue(self) -> bool:
        if not (self._queued or self._woken or self._doubtful):
            return True
        try:
            left = await self._queue.leave(self._subscription.entry, self._queue.deadline(LEAVE_NS))
        except BackendError:
            return False
        return left and not self._doubtful
