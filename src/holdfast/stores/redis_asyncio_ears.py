"""Wake-ups for tasks: one listening connection per loop, subscriptions shared by all who wait for the same key.

Promises: an ear hears what was published after `open` returned, or is woken because it may have missed something: when
the connection breaks, and again when it is back. Never raises from `wait`. Clock: the loop's.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque

from holdfast.errors import BackendError, Unavailable
from holdfast.stores.redis_asyncio import Link, Mux
from holdfast.stores.redis_url import RedisAddress
from holdfast.stores.redis_wire import Reply, ReplyError, pack, refusal
from holdfast.types import NS

CONFIRM_NS = 2 * NS
AGAIN_MIN_S, AGAIN_MAX_S = 0.05, 2.0


class _Channel:
    """One subscription and the ears that share it."""

    __slots__ = ("broken", "ears", "name", "refused", "settled")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.ears: set[AsyncioEar] = set()
        self.settled = asyncio.Event()  # the server has confirmed it, or refused it
        self.refused: BackendError | None = None
        self.broken = False  # it was lost and is not back yet: something may go unheard


class AsyncioEars:
    """The listening connection of one loop."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._mux = Mux(address)
        self._start()

    def _start(self) -> None:
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._link: Link | None = None
        self._channels: dict[bytes, _Channel] = {}
        # What was asked of the connection and not answered yet, in order: a subscription, or None for an end of one.
        self._asked: deque[_Channel | None] = deque()
        self._again: asyncio.Task[None] | None = None

    async def open(self, channel: str) -> AsyncioEar:
        """Listen to a channel; returns when the server has confirmed it."""
        self._check_home()
        name = channel.encode()
        shared = self._channels.get(name)
        if shared is None or shared.refused is not None:
            shared = self._channels[name] = _Channel(name)
        ear = AsyncioEar(self, shared)
        shared.ears.add(ear)
        try:
            async with asyncio.timeout(CONFIRM_NS / NS):
                await self._listen(self._mux.deadline(CONFIRM_NS))
                await shared.settled.wait()
        except TimeoutError as error:
            await ear.close()
            raise Unavailable(f"redis at {self._address} did not confirm a subscription in time") from error
        except BaseException:
            await ear.close()
            raise
        if shared.refused is not None:
            await ear.close()
            raise type(shared.refused)(str(shared.refused)) from shared.refused
        return ear

    def _check_home(self) -> None:
        """In another process or on another loop everything begins anew; the mux says when that is not allowed."""
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
            link.on_push = self._heard
            link.on_lost = self._lost
            for channel in self._channels.values():
                channel.settled.clear()
        asked = {channel for channel in self._asked if channel is not None}
        for channel in self._channels.values():
            if not channel.settled.is_set() and channel not in asked:
                self._ask(link, "SUBSCRIBE", channel)

    def _ask(self, link: Link, verb: str, channel: _Channel) -> None:
        self._asked.append(channel if verb == "SUBSCRIBE" else None)
        link.write(pack((verb, channel.name)))

    def forget(self, ear: AsyncioEar, channel: _Channel) -> None:
        """One waiter less; the last one ends the subscription."""
        channel.ears.discard(ear)
        if channel.ears or self._channels.get(channel.name) is not channel:
            return
        del self._channels[channel.name]
        if self._link is not None and not self._link.closed and channel.refused is None:
            self._ask(self._link, "UNSUBSCRIBE", channel)

    def _heard(self, reply: Reply) -> None:
        if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
            self._wake(self._channels.get(reply[1]))
            return
        channel = self._asked.popleft() if self._asked else None
        if channel is not None:
            if isinstance(reply, ReplyError):
                channel.refused = refusal(reply, self._address)
            channel.settled.set()
            if channel.broken:
                channel.broken = False
                self._wake(channel)

    def _wake(self, channel: _Channel | None) -> None:
        for ear in channel.ears if channel is not None else ():
            ear.hear()

    def _lost(self) -> None:
        self._link = None
        self._asked.clear()
        for channel in self._channels.values():
            channel.settled.clear()
            channel.broken = True
            self._wake(channel)
        if self._channels and self._again is None:
            self._again = asyncio.get_running_loop().create_task(self._listen_again())

    async def _listen_again(self) -> None:
        """Come back, for as long as anybody waits."""
        pause = AGAIN_MIN_S
        try:
            while self._channels and (self._link is None or self._link.closed):
                try:
                    await self._listen(self._mux.deadline(CONFIRM_NS))
                except BackendError:
                    await asyncio.sleep(pause)
                    pause = min(AGAIN_MAX_S, 2 * pause)
        finally:
            self._again = None

    async def close(self) -> None:
        """Give the connection back. Ears that are still open hear nothing more, and poll."""
        self._check_home()
        again = self._again
        for channel in self._channels.values():
            self._wake(channel)
        self._channels.clear()
        if again is not None:
            again.cancel()
            await asyncio.wait([again])
        await self._mux.close()


class AsyncioEar:
    """One waiter's ear at one channel: a `ports.Watch`."""

    __slots__ = ("_channel", "_ears", "_hint", "_waiter")

    def __init__(self, ears: AsyncioEars, channel: _Channel) -> None:
        self._ears = ears
        self._channel = channel
        self._hint = False
        self._waiter: asyncio.Future[None] | None = None

    def hear(self) -> None:
        """Wake the waiter, now or when it comes."""
        self._hint = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_ns: int) -> bool:
        """See `ports.Watch.wait`."""
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

    async def close(self) -> None:
        """See `ports.Watch.close`."""
        self._ears.forget(self, self._channel)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
