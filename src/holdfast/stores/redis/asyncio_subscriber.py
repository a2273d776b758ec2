"""Wake-ups for tasks: one listening connection per loop, on which each waiter has a channel of its own.

Promises: a subscription receives what was published to it after `open` returned, or is woken because it may have missed
something: when the connection breaks, and again when it is back. Never raises from `wait`. A subscription serves one
waiter after the other; only a few are kept while idle. Clock: the loop's.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque

from holdfast.errors import BackendError, Unavailable
from holdfast.stores.redis.asyncio_driver import Mux, MuxConnection
from holdfast.stores.redis.protocol import Reply, ReplyError, pack, refusal
from holdfast.stores.redis.url import RedisAddress, ServerSource
from holdfast.types import NS

CONFIRM_NS = 2 * NS
DOUBT_S = 1.0  # a connection that was silent for longer has to confirm an idle subscription
IDLE_MAX = 64
AGAIN_MIN_S, AGAIN_MAX_S = 0.05, 2.0


class AsyncioSubscriber:
    """The listening connection of one loop."""

    def __init__(self, address: RedisAddress, source: ServerSource | None = None) -> None:
        self._address = address
        self._mux = Mux(source or address, address)
        self._start()

    def _start(self) -> None:
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._link: MuxConnection | None = None
        self._received_at = 0.0
        self._subscriptions: dict[bytes, AsyncioSubscription] = {}  # by channel: those in use, and the idle ones
        self._idle: list[AsyncioSubscription] = []
        # What was asked of the connection and not answered yet, in order: a subscription, or None for an end of one.
        self._asked: deque[AsyncioSubscription | None] = deque()
        self._again: asyncio.Task[None] | None = None

    async def open(self, timeout_ns: int) -> AsyncioSubscription:
        """A confirmed subscription: an idle one is confirmed again if its connection was silent for long."""
        self._check_home()
        if self._idle:
            subscription = self._idle.pop()
            if asyncio.get_running_loop().time() - self._received_at < DOUBT_S:
                return subscription
            subscription.settled.clear()
        else:
            subscription = AsyncioSubscription(self, f"{self._address.namespace}:ear:{secrets.token_hex(8)}")
            self._subscriptions[subscription.channel] = subscription
        try:
            async with asyncio.timeout(timeout_ns / NS):
                await self._listen(self._mux.deadline(timeout_ns))
                await subscription.settled.wait()
        except TimeoutError as error:
            subscription.close(sound=False)
            raise Unavailable(f"redis at {self._address} did not confirm a subscription in time") from error
        except BaseException:
            subscription.close(sound=False)
            raise
        if subscription.refused is not None:
            subscription.close(sound=False)
            raise type(subscription.refused)(str(subscription.refused)) from subscription.refused
        return subscription

    def _check_home(self) -> None:
        """In another process or on another loop everything starts empty; the mux raises when that is not allowed."""
        home = (os.getpid(), asyncio.get_running_loop())
        if self._home != home:
            self._start()
            self._home = home

    async def _listen(self, deadline_ns: int) -> None:
        """Have a connection on which every channel is subscribed, or asked for."""
        link = await self._mux.link(deadline_ns)
        if link is not self._link:
            self._link = link
            self._asked.clear()
            link.on_push = self._received
            link.on_lost = self._lost
            for subscription in self._subscriptions.values():
                subscription.settled.clear()
        asked = {subscription for subscription in self._asked if subscription is not None}
        for subscription in self._subscriptions.values():
            if not subscription.settled.is_set() and subscription not in asked:
                self._ask(link, "SUBSCRIBE", subscription)

    def _ask(self, link: MuxConnection, verb: str, subscription: AsyncioSubscription) -> None:
        self._asked.append(subscription if verb == "SUBSCRIBE" else None)
        link.write(pack((verb, subscription.channel)))

    def put_back(self, subscription: AsyncioSubscription, *, sound: bool) -> None:
        """The waiter is done. The subscription is kept for the next one, or its channel is unsubscribed."""
        if (
            self._home is None
            or self._home[0] != os.getpid()
            or self._subscriptions.get(subscription.channel) is not subscription
        ):
            return  # of a connection that is gone, or of another process
        if sound and subscription.settled.is_set() and subscription.refused is None and len(self._idle) < IDLE_MAX:
            self._idle.append(subscription)
            return
        del self._subscriptions[subscription.channel]
        if self._link is not None and not self._link.closed and subscription.refused is None:
            self._ask(self._link, "UNSUBSCRIBE", subscription)

    def _received(self, reply: Reply) -> None:
        self._received_at = asyncio.get_running_loop().time()
        if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
            subscription = self._subscriptions.get(reply[1])
            if (
                subscription is not None and reply[2] == subscription.entry.encode()
            ):  # or it was meant for an earlier waiter
                subscription.wake()
            return
        asked = self._asked.popleft() if self._asked else None
        if asked is not None:
            if isinstance(reply, ReplyError):
                asked.refused = refusal(reply, self._address)
            asked.settled.set()
            if asked.broken:
                asked.broken = False
                asked.wake()

    def _lost(self) -> None:
        self._link = None
        self._asked.clear()
        for idle in self._idle:
            del self._subscriptions[idle.channel]
        self._idle.clear()
        for subscription in self._subscriptions.values():
            subscription.settled.clear()
            subscription.broken = True
            subscription.wake()
        if self._subscriptions and self._again is None:
            self._again = asyncio.get_running_loop().create_task(self._listen_again())

    async def _listen_again(self) -> None:
        """Reconnect for as long as a waiter is left."""
        pause = AGAIN_MIN_S
        try:
            while self._subscriptions and (self._link is None or self._link.closed):
                try:
                    await self._listen(self._mux.deadline(CONFIRM_NS))
                except BackendError:
                    await asyncio.sleep(pause)
                    pause = min(AGAIN_MAX_S, 2 * pause)
        finally:
            self._again = None

    async def close(self) -> None:
        """Give the connection back. Subscriptions that are still open get no more hints, and poll."""
        self._check_home()
        again = self._again
        for subscription in self._subscriptions.values():
            subscription.wake()
        self._subscriptions.clear()
        self._idle.clear()
        if again is not None:
            again.cancel()
            await asyncio.wait([again])
        await self._mux.close()


class AsyncioSubscription:
    """One channel, and the waiter that it is lent to: a `WakeupSubscription`."""

    __slots__ = ("_channel", "_hint", "_number", "_subscriber", "_waiter", "broken", "channel", "refused", "settled")

    def __init__(self, subscriber: AsyncioSubscriber, channel: str) -> None:
        self.channel = channel.encode()
        self.settled = asyncio.Event()  # the server has confirmed it, or refused it
        self.refused: BackendError | None = None
        self.broken = False  # it was lost and is not back yet: something may go unheard
        self._subscriber = subscriber
        self._channel = channel
        self._number = 0
        self._hint = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def entry(self) -> str:
        """See `WakeupSubscription`."""
        return f"{self._channel} {self._number}"

    def wake(self) -> None:
        """Wake the waiter, now or when it comes."""
        self._hint = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_ns: int) -> bool:
        """See `WakeupSubscription`."""
        if not self._hint:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(max(0, timeout_ns) / NS, _end, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        heard, self._hint = self._hint, False
        return heard

    def close(self, *, sound: bool) -> None:
        """See `WakeupSubscription`."""
        self._number += 1
        self._hint = False
        self._subscriber.put_back(self, sound=sound)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
