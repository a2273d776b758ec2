"""The listeners of one process: which tasks wait at which channel, and how they are notified.

Promises: a notification at a channel is seen by every listener that was made for it before, either by the wait that is
under way or by the next one; a wait that is cancelled leaves the notification to the next. Everything here happens on
one event loop. Where notifications come from, and whether those of other processes arrive, is the engine's affair: a
notification is a hint.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.errors import BadInput, Closed
from holdfast.types import NS

CHANNEL_CHARS_MAX: Final = 300

_CLOSED: Final = "this listener is closed; make another"


def check_channel(value: object) -> str:
    """A channel's name, or `BadInput`. It travels in datagrams and notifications, so it is short and on one line."""
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > CHANNEL_CHARS_MAX:
        raise BadInput("channel", "is not a name", f"give 1 to {CHANNEL_CHARS_MAX} printable characters")
    return value


class DatabaseNotifier:
    """All listeners of one database object."""

    def __init__(self) -> None:
        # Notified in the order in which they were made.
        self._listeners: dict[str, dict[ChannelSubscription, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._listeners.values()))

    def __bool__(self) -> bool:
        """Whether there is any. May be asked by any thread."""
        return bool(self._listeners)

    def listen(self, channel: str) -> ChannelSubscription:
        """Make a listener."""
        listener = ChannelSubscription(check_channel(channel), self._forget)
        self._listeners.setdefault(channel, {})[listener] = None
        return listener

    def notify(self, channels: Iterable[str]) -> None:
        """Wake those who wait at these channels."""
        for channel in channels:
            for listener in self._listeners.get(channel, ()):
                listener.notify()

    def notify_all(self) -> None:
        """Notify all subscriptions: notifications may have been missed."""
        self.notify(self._listeners)

    def close(self) -> None:
        """Close every listener. Those who wait are told."""
        for listener in [each for listeners in self._listeners.values() for each in listeners]:
            listener.close()

    def _forget(self, listener: ChannelSubscription) -> None:
        listeners = self._listeners.get(listener.channel, {})
        listeners.pop(listener, None)
        if not listeners:
            self._listeners.pop(listener.channel, None)


class ChannelSubscription:
    """See `ports.ChannelListener`. Waiting at a listener that is closed, or is closed meanwhile, raises `Closed`."""

    __slots__ = ("_call", "_closed", "_forget", "_notified", "_waiters", "channel")

    def __init__(self, channel: str, forget: Callable[[ChannelSubscription], None]) -> None:
        self.channel = channel
        self._forget = forget
        self._notified = False
        self._closed = False
        self._call: Callable[[], None] | None = None
        self._waiters: dict[asyncio.Future[bool], None] = {}  # woken first come, first served

    def notify(self) -> None:
        """Wake those who wait, or the next one who does."""
        if self._call is not None:
            self._call()
            return
        waiting = [each for each in self._waiters if not each.done()]
        for waiter in waiting:
            waiter.set_result(True)
        self._notified = self._notified or not waiting

    def each(self, call: Callable[[], None]) -> None:
        """See `ports.ChannelListener`."""
        self._call = call
        if self._notified:
            self._notified = False
            call()

    async def wait(self, timeout_ns: int) -> bool:
        """See `ports.ChannelListener`."""
        if not self._notified and timeout_ns <= 0:
            await asyncio.sleep(0)  # a caller that only looks, in a loop, must not keep the event loop from ringing
        if self._closed:
            raise Closed(_CLOSED)
        if self._notified or timeout_ns <= 0:
            notified, self._notified = self._notified, False
            return notified
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters[waiter] = None
        timer = loop.call_later(timeout_ns / NS, _time_is_over, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None and waiter.result():
                self._notified = True  # notified and cancelled in one turn of the loop: keep it for the next wait
            raise
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)

    def close(self) -> None:
        """See `ports.ChannelListener`. Idempotent."""
        self._closed = True
        self._forget(self)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Closed(_CLOSED))


def _time_is_over(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
