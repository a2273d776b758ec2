"""Hints for waiters: one subscription for each key that is waited for, and one waiter woken by each release.

A release publishes one message on the subject of its key. All processes that wait for the key subscribe to it as one
queue group, so the server gives the message to one of them; in that process the first waiter gets it. No stream keeps
the message.

Promises: a watch receives the hints that were sent after it was opened, or is woken because it may have missed one:
when the connection breaks. A hint of a waiter that gives up is passed on. Does not promise that a hint that was given
to a process which is stopped or dies reaches another one: the others find out by asking.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import nats.errors

from holdfast.errors import BackendError, Unavailable
from holdfast.stores.nats.link import NatsLink, NatsSession
from holdfast.types import MS, NS

GROUP: Final = "waiters"
LEAVE_NS: Final = 500 * MS


class _HintWaiter:
    """The subscription of one key."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.watches: dict[NatsWatch, None] = {}
        self.session: NatsSession | None = None
        self.subscription: Any = None
        self.turn = asyncio.Lock()


class WakeupHub:
    """The subscriptions of one event loop."""

    def __init__(self, link: NatsLink, confirm: Callable[[int], Awaitable[object]]) -> None:
        """`confirm` asks the server for anything: when it answers, it has taken what was sent before."""
        self._link = link
        self._confirm = confirm
        self._ears: dict[str, _HintWaiter] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._session: NatsSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def watch(self, subject: str, timeout_ns: int) -> NatsWatch:
        """Listen from now on."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # after a fork, or in a new loop
            self._ears, self._ending, self._loop = {}, set(), loop
        waiter = self._ears.setdefault(subject, _HintWaiter(subject))
        watch = NatsWatch(self, waiter)
        waiter.watches[watch] = None
        try:
            await self.listen(waiter, self._link.deadline(timeout_ns))
        except BaseException:
            waiter.watches.pop(watch, None)
            self._end_if_unused(waiter)
            raise
        return watch

    async def listen(self, waiter: _HintWaiter, deadline_ns: int) -> None:
        """Have the subscription on the present connection."""
        try:
            async with asyncio.timeout(max(0.0, self._link.left_s(deadline_ns))), waiter.turn:
                session = await self._link.session(deadline_ns)
                if waiter.session is session:
                    return

                async def heard(_message: object) -> None:
                    self._wake_one(waiter)

                try:
                    waiter.subscription = await session.client.subscribe(waiter.subject, queue=GROUP, cb=heard)
                except (nats.errors.Error, OSError) as error:
                    raise Unavailable(f"nats at {self._link.address}: the connection was lost") from error
                waiter.session = session  # set together with the subscription: the client does not suspend after it
                if self._session is not session:
                    self._session = session
                    session.on_lost.append(partial(self._lost, session))
                await self._confirm(deadline_ns)
        except TimeoutError as error:
            raise Unavailable(f"nats at {self._link.address} did not confirm a subscription in time") from error

    def _lost(self, session: NatsSession) -> None:
        for waiter in self._ears.values():
            if waiter.session is session:
                waiter.session = waiter.subscription = None
                for watch in waiter.watches:
                    watch.wake()

    def _wake_one(self, waiter: _HintWaiter) -> None:
        for watch in waiter.watches:
            if watch.wake():
                return

    async def leave(self, watch: NatsWatch, waiter: _HintWaiter, *, hinted: bool) -> None:
        """The waiter is done. Its unused hint goes to the next one, in this process or elsewhere."""
        waiter.watches.pop(watch, None)
        if waiter.watches:
            if hinted:
                self._wake_one(waiter)
            return
        ending = self._end_if_unused(waiter, hinted=hinted)
        if ending is not None:
            await asyncio.wait([ending])

    def _end_if_unused(self, waiter: _HintWaiter, *, hinted: bool = False) -> asyncio.Task[None] | None:
        """End the subscription when no waiter is left, in a task that no cancellation of a waiter cuts short."""
        if waiter.watches:
            return None
        if self._ears.get(waiter.subject) is waiter:
            del self._ears[waiter.subject]
        session, subscription = waiter.session, waiter.subscription
        waiter.session = waiter.subscription = None
        if session is None or subscription is None or not session.usable:
            return None
        ending = asyncio.get_running_loop().create_task(self._end(subscription, waiter.subject if hinted else None))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def _end(self, subscription: Any, hint: str | None) -> None:
        with contextlib.suppress(BackendError, nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(LEAVE_NS / NS):
                await subscription.unsubscribe()
                await self._confirm(self._link.deadline(LEAVE_NS))
        if hint is not None:
            await self._link.publish_hint(hint)


class NatsWatch:
    """One waiter: a `ports.Watch`."""

    def __init__(self, hub: WakeupHub, waiter: _HintWaiter) -> None:
        self._hub = hub
        self._ear = waiter
        self._loop = asyncio.get_running_loop()
        self._hint = asyncio.Event()
        self._closed = False

    def wake(self) -> bool:
        """Wake the waiter, now or when it comes. False: it has a hint already."""
        if self._hint.is_set():
            return False
        self._hint.set()
        return True

    async def wait(self, timeout_ns: int) -> bool:
        """See `ports.Watch`. After a lost connection it listens again; until that works, the waiter polls."""
        until_s = self._loop.time() + timeout_ns / NS
        if not self._hint.is_set() and self._ear.session is None and not self._closed:
            with contextlib.suppress(BackendError):
                await self._hub.listen(self._ear, int(until_s * NS))
                return True  # the key may have become free while nothing listened
        if not self._hint.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._hint.wait()
        hinted = self._hint.is_set()
        self._hint.clear()
        return hinted

    async def close(self) -> None:
        """See `ports.Watch`."""
        if not self._closed and self._loop is asyncio.get_running_loop():
            self._closed = True
            await self._hub.leave(self, self._ear, hinted=self._hint.is_set())
