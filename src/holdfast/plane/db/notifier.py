"""The bells of one process: who waits at which channel, and how they are woken.

Promises: a ring at a channel is seen by every bell that was made for it before, either by the wait that is under way or
by the next one; a wait that is cancelled leaves the ring to the next. Everything here happens on one event loop. Where
rings come from, and whether those of other processes arrive, is the engine's affair: a ring is a hint.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.errors import BadInput, Closed
from holdfast.types import NS

CHANNEL_CHARS_MAX: Final = 300

_CLOSED: Final = "this bell is closed; make another"


def check_channel(value: object) -> str:
    """A channel's name, or `BadInput`. It travels in datagrams and notifications, so it is short and on one line."""
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > CHANNEL_CHARS_MAX:
        raise BadInput("channel", "is not a name", f"give 1 to {CHANNEL_CHARS_MAX} printable characters")
    return value


class Bells:
    """All bells of one database object."""

    def __init__(self) -> None:
        self._bells: dict[str, dict[ChannelBell, None]] = {}  # rung in the order in which they were made

    def __len__(self) -> int:
        return sum(map(len, self._bells.values()))

    def __bool__(self) -> bool:
        """Whether there is any. May be asked by any thread."""
        return bool(self._bells)

    def bell(self, channel: str) -> ChannelBell:
        """Make a bell."""
        bell = ChannelBell(check_channel(channel), self._forget)
        self._bells.setdefault(channel, {})[bell] = None
        return bell

    def ring(self, channels: Iterable[str]) -> None:
        """Wake those who wait at these channels."""
        for channel in channels:
            for bell in self._bells.get(channel, ()):
                bell.ring()

    def ring_all(self) -> None:
        """Notify all subscriptions: notifications may have been missed."""
        self.ring(self._bells)

    def close(self) -> None:
        """Close every bell. Those who wait are told."""
        for bell in [each for bells in self._bells.values() for each in bells]:
            bell.close()

    def _forget(self, bell: ChannelBell) -> None:
        bells = self._bells.get(bell.channel, {})
        bells.pop(bell, None)
        if not bells:
            self._bells.pop(bell.channel, None)


class ChannelBell:
    """See `ports.Bell`. Waiting at a bell that is closed, or is closed meanwhile, raises `Closed`."""

    __slots__ = ("_call", "_closed", "_forget", "_rung", "_waiters", "channel")

    def __init__(self, channel: str, forget: Callable[[ChannelBell], None]) -> None:
        self.channel = channel
        self._forget = forget
        self._rung = False
        self._closed = False
        self._call: Callable[[], None] | None = None
        self._waiters: dict[asyncio.Future[bool], None] = {}  # woken first come, first served

    def ring(self) -> None:
        """Wake those who wait, or the next one who does."""
        if self._call is not None:
            self._call()
            return
        waiting = [each for each in self._waiters if not each.done()]
        for waiter in waiting:
            waiter.set_result(True)
        self._rung = self._rung or not waiting

    def each(self, call: Callable[[], None]) -> None:
        """See `ports.Bell`."""
        self._call = call
        if self._rung:
            self._rung = False
            call()

    async def wait(self, timeout_ns: int) -> bool:
        """See `ports.Bell`."""
        if not self._rung and timeout_ns <= 0:
            await asyncio.sleep(0)  # a caller that only looks, in a loop, must not keep the event loop from ringing
        if self._closed:
            raise Closed(_CLOSED)
        if self._rung or timeout_ns <= 0:
            rung, self._rung = self._rung, False
            return rung
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters[waiter] = None
        timer = loop.call_later(timeout_ns / NS, _time_is_over, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None and waiter.result():
                self._rung = True  # rung and cancelled in one turn of the loop: the ring is still to be heard
            raise
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)

    def close(self) -> None:
        """See `ports.Bell`. Idempotent."""
        self._closed = True
        self._forget(self)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Closed(_CLOSED))


def _time_is_over(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
