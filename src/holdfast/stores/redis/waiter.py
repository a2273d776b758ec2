"""A waiter's position in the queue of one key: `ports.Watch` on Redis, written once for sync and asyncio.

A release wakes one waiter, not all of them: a thousand processes that wait for one key must not all ask together. So
each waiter has a subscription of its own (a channel that no other process listens to) and is queued for a hint in the
store. It has been queued since the very step in which its ask found the key taken (`lua/acquire.lua`), so that no
release can fall between the ask and the wait; only a waiter that waits without having asked has to join the queue first
(`lua/listen.lua`).

Promises: a hint that was sent to a waiter which gives up is passed on to the next one, in the same step in which it
leaves the queue (`lua/unlisten.lua`). A subscription that may be queued without a waiter behind it is never used again
but given up: at a channel without listeners a release goes on to the next subscription.

Does not promise: that a hint which was sent to a process that is stopped, or dies holding it, reaches another one.
Each subscription can cost one hint in that way, and no more: it has left the queue by then. The other waiters find out
by asking at the slow end of their back-off, and when the time of the holder they met is over.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from holdfast.errors import BackendError, Unavailable
from holdfast.stores.redis.commands import CommandRetrier
from holdfast.stores.redis.protocol import RedisScript, Word
from holdfast.types import MS, NS

QUEUE_TTL_NS = 600 * NS  # the queue of a key is forgotten when no waiter has joined or asked for so long: nothing leaks
LEAVE_NS = 500 * MS
_JOIN_LEAST_NS, _JOIN_MOST_NS = 20 * MS, 2 * NS
_AHEAD_US = 10**15  # a waiter that was woken and came too late precedes all that were not woken yet

_LISTEN, _UNLISTEN = RedisScript("listen"), RedisScript("unlisten")


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


class RedisWatch:
    """One waiter's position in the queue of one key."""

    __slots__ = (
        "_closed",
        "_commands",
        "_doubtful",
        "_forget",
        "_keys",
        "_pid",
        "_queued",
        "_subscription",
        "_waiting",
        "_woken",
    )

    def __init__(
        self,
        commands: CommandRetrier,
        subscription: WakeupSubscription,
        lock: str,
        queue: str,
        forget: Callable[[RedisWatch], None],
    ) -> None:
        self._commands = commands
        self._subscription = subscription
        self._keys = (lock, queue)
        self._forget = forget
        self._pid = os.getpid()
        self._queued = False  # as far as is known
        self._doubtful = False  # a request that would queue it was sent, and may still take effect
        self._woken = False  # a hint was received, and no ask was answered since
        self._waiting = False
        self._closed = False

    @property
    def lock(self) -> str:
        """The lock that it waits for."""
        return self._keys[0]

    @property
    def may_ask(self) -> bool:
        """Whether an ask for the key can be this waiter's: it is not asleep, and of this process."""
        return not self._waiting and self._pid == os.getpid()

    @property
    def entry(self) -> str:
        """The entry in the queue."""
        return self._subscription.entry

    @property
    def ahead_us(self) -> int:
        """How far before the others it may be queued."""
        return _AHEAD_US if self._woken else 0

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
                until_ns = self._commands.deadline(timeout_ns)
                if await self._free(timeout_ns):
                    self._woken = True
                    return True
                left_ns = max(0, until_ns - self._commands.deadline(0))  # a hung server has used it up
            longest = QUEUE_TTL_NS // 2
            if await self._subscription.wait(min(left_ns, longest)):
                self._queued, self._woken = False, True
                return True
            return timeout_ns > longest  # asking again is what keeps the position in the queue
        finally:
            self._waiting = False

    async def _free(self, timeout_ns: int) -> bool:
        """Join the queue, unless the key is free. A server that is away is no error here: the next ask reports it."""
        words: tuple[Word, ...] = (*self._keys, self._subscription.entry, str(QUEUE_TTL_NS // MS))
        limit_ns = min(max(timeout_ns, _JOIN_LEAST_NS), _JOIN_MOST_NS)
        try:
            reply = await self._commands.run(_LISTEN, 2, words, self._commands.deadline(limit_ns))
        except BaseException as error:
            self.unanswered(error)
            if not isinstance(error, BackendError):
                raise
            return False
        self._queued = reply == 0
        return bool(reply == 1)

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
            self._closed = (
                True  # not sooner: an interrupted call is made again. Not later: a subscription is returned once
            )
            self._subscription.close(sound=sound)

    async def _leave_queue(self) -> bool:
        if not (self._queued or self._woken or self._doubtful):
            return True
        try:
            words = (*self._keys, self._subscription.entry)
            reply = await self._commands.run(_UNLISTEN, 2, words, self._commands.deadline(LEAVE_NS))
        except BackendError:
            return False
        return not self._doubtful and isinstance(reply, int)
