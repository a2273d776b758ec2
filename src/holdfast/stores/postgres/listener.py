"""Wake-ups: one thread of a process listens for the releases that its waiters wait for, on a connection of its own.

Promises: a subscription receives what was sent to it after `open` returned, or is woken because it may have missed
something: when the connection breaks, and again when it is back. The thread and the connection exist only while a
waiter needs them, and for some seconds after that. Never raises from `wait`.

Does not promise wake-ups behind a pooler (PgBouncer in transaction mode): LISTEN belongs to a session, and a pooler
gives sessions to many clients. That is noticed (`connection.is_pooled`), and then `open` raises `Unavailable`: waiters
poll, as every waiter must be able to do.

Clock: monotonic.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import pq

from holdfast.errors import BackendError, Misconfigured, Unavailable
from holdfast.runtime.thread_runtime import Mutex, Wakeup
from holdfast.stores.postgres.connection import READ, asking, is_pooled
from holdfast.stores.postgres.sync_driver import PostgresConnection, driven
from holdfast.stores.postgres.url import PostgresAddress
from holdfast.types import MS, NS

CONNECT_NS: Final = 5 * NS
IDLE_NS: Final = 10 * NS  # without a waiter for so long, the connection is closed
ALIVE_NS: Final = 15 * NS  # a connection that says nothing for so long is asked whether it is alive
_TURN_S: Final = 0.1
_AGAIN_MIN_S: Final = 0.05
_AGAIN_MAX_S: Final = 2.0


class PostgresSubscription:
    """One waiter's entry: a `WakeupSubscription` for threads. Each serves one waiter, and is then forgotten."""

    def __init__(self, listener: ListenerThread) -> None:
        self._listener = listener
        self._wakeup = Wakeup()
        self._hint = False
        self.entry = secrets.token_hex(8)

    @property
    def channel(self) -> str:
        """Where its notifications are sent."""
        return self._listener.channel

    def wake(self) -> None:
        """Wake the waiter, now or when it comes. From any thread."""
        self._hint = True
        self._wakeup.notify()

    async def wait(self, timeout_ns: int) -> bool:
        """See `WakeupSubscription`."""
        until = time.monotonic_ns() + timeout_ns
        while not self._hint and (left := until - time.monotonic_ns()) > 0:
            self._wakeup.wait(left / NS)
        heard, self._hint = self._hint, False
        return heard

    def close(self, *, sound: bool) -> None:
        """See `WakeupSubscription`."""
        del sound
        self._listener.forget(self)


class LoopSubscription(PostgresSubscription):
    """The same for a task."""

    def __init__(self, listener: ListenerThread) -> None:
        super().__init__(listener)
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Wake the waiter. From any thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, timeout_ns: int) -> bool:
        """See `WakeupSubscription`."""
        try:
            async with asyncio.timeout(max(0, timeout_ns) / NS):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True


class ListenerThread:
    """The listening thread of one engine in one process."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._start()

    def _start(self) -> None:
        self.channel = f"holdfast_{secrets.token_hex(8)}"
        self._mutex = Mutex()
        # Weak: an interrupt can lose a subscription between two steps, and its waiter with it.
        self._subscriptions: weakref.WeakValueDictionary[str, PostgresSubscription] = weakref.WeakValueDictionary()
        self._openers: list[Callable[[], None]] = []  # told when the thread listens, or has failed to
        self._thread: threading.Thread | None = None
        self._connection: PostgresConnection | None = None
        self._failed: BackendError | None = None
        self._closing = False
        self._pid = os.getpid()  # last: in a child, an interrupt before it repeats the others

    def opened(self, subscription: PostgresSubscription, on_listening: Callable[[], None]) -> bool:
        """Add a subscription. True: it receives hints from now on. False: `on_listening` is called later."""
        with self._mutex:
            self._subscriptions[subscription.entry] = subscription
            self._closing = False
            if self._connection is not None:
                return True
            self._openers.append(on_listening)
            if self._thread is None or not self._thread.is_alive():
                self._failed = None
                thread = threading.Thread(target=self._run, name="holdfast-postgres-listener", daemon=True)
                self._thread = thread
                thread.start()
            return False

    def check(self, subscription: PostgresSubscription) -> None:
        """Return if the subscription receives hints; raise the reason otherwise, and forget it."""
        if self._connection is not None:
            return
        self.forget(subscription)
        failed = self._failed
        raise (
            Unavailable(f"{self._address} does not confirm a subscription")
            if failed is None
            else type(failed)(str(failed))
        )

    def forget(self, subscription: PostgresSubscription) -> None:
        """The waiter is done."""
        self._subscriptions.pop(subscription.entry, None)

    def check_process(self) -> None:
        """In a forked child everything starts empty."""
        if self._pid != os.getpid():
            inherited = self._connection
            self._start()
            if inherited is not None:
                inherited.close()

    def close(self) -> None:
        """End the thread and its connection. Subscriptions that are still open get no more hints, and poll."""
        self.check_process()
        with self._mutex:
            self._closing = True
            connection = self._connection
            subscriptions = list(self._subscriptions.values())
            self._subscriptions.clear()
        for each in subscriptions:
            each.wake()
        thread = self._thread
        if connection is not None:
            _interrupt(connection)
            if thread is not None:
                thread.join(1)

    # The thread.

    def _run(self) -> None:
        with self._mutex:
            if self._thread is not threading.current_thread():
                return  # the one that started it was interrupted, and the next waiter has started another
        pause, lost = _AGAIN_MIN_S, False
        while True:  # ends when no waiter is left, or the server cannot be listened to
            try:
                connection = self._listening()
            except BackendError as error:
                if self._gives_up(error):
                    return
                time.sleep(pause)
                pause = min(_AGAIN_MAX_S, 2 * pause)
                continue
            if lost:
                self._wake_all()  # a release between the two connections was missed
            pause = _AGAIN_MIN_S
            try:
                self._receive(connection)
            except (BackendError, psycopg.Error, OSError):
                pass
            finally:
                with self._mutex:
                    self._connection = None
                connection.close()
            lost = True
            self._wake_all()
            with self._mutex:
                if self._closing or not self._subscriptions:
                    self._thread = None
                    return

    def _listening(self) -> PostgresConnection:
        deadline = time.monotonic_ns() + CONNECT_NS
        connection = PostgresConnection(self._address, deadline)
        try:
            ((pid,),) = connection.ask(b"SELECT pg_backend_pid()", (), deadline)
            if is_pooled(connection.connection, pid):
                raise Misconfigured(f"{self._address} is behind a pooler, which delivers no notifications")
            connection.ask(f'LISTEN "{self.channel}"'.encode(), None, deadline)
        except BaseException:
            connection.close()
            raise
        with self._mutex:
            self._connection = connection
            self._failed = None
            openers, self._openers = self._openers, []
        for on_listening in openers:
            on_listening()
        return connection

    def _gives_up(self, error: BackendError) -> bool:
        """Tell those who wait for the connection. True: no waiter is left."""
        with self._mutex:
            self._failed = error
            openers, self._openers = self._openers, []
            over = self._closing or not self._subscriptions or isinstance(error, Misconfigured)
            if over:
                self._thread = None
        for on_listening in openers:
            on_listening()
        return over

    def _receive(self, connection: PostgresConnection) -> None:
        raw = connection.connection
        heard = needed = time.monotonic_ns()
        poll = select.poll()
        poll.register(raw.socket, READ)
        while not self._closing:
            if poll.poll(NS // MS):
                raw.consume_input()
                heard = time.monotonic_ns()
                self._deliver(raw)
                if raw.status != pq.ConnStatus.OK:
                    return
            now = time.monotonic_ns()
            if self._subscriptions:
                needed = now
            elif now - needed > IDLE_NS:
                return
            if now - heard > ALIVE_NS:
                if driven(asking(raw, b"SELECT 1", (), self._address), now + CONNECT_NS) is None:
                    return
                heard = time.monotonic_ns()
                self._deliver(raw)

    def _deliver(self, raw: pq.abc.PGconn) -> None:
        while (notification := raw.notifies()) is not None:
            subscription = self._subscriptions.get(notification.extra.decode("ascii", "replace"))
            if subscription is not None:
                subscription.wake()

    def _wake_all(self) -> None:
        for each in list(self._subscriptions.values()):
            each.wake()


class PostgresSyncSubscriber:
    """Opens subscriptions for threads: a `WakeupSubscriber`."""

    def __init__(self, listener: ListenerThread) -> None:
        self._listener = listener

    async def open(self, timeout_ns: int) -> PostgresSubscription:
        """A subscription that receives hints from now on."""
        listener = self._listener
        listener.check_process()
        subscription, decided = PostgresSubscription(listener), Wakeup()
        try:
            if not listener.opened(subscription, decided.notify):
                decided.wait(timeout_ns / NS)
                listener.check(subscription)
        except BaseException:
            listener.forget(subscription)
            raise
        return subscription

    async def close(self) -> None:
        """See `HintListener.close`."""
        self._listener.close()


class PostgresAsyncioSubscriber:
    """Opens subscriptions for the tasks of one loop: a `WakeupSubscriber`."""

    def __init__(self, listener: ListenerThread) -> None:
        self._listener = listener

    async def open(self, timeout_ns: int) -> LoopSubscription:
        """A subscription that receives hints from now on."""
        listener = self._listener
        listener.check_process()
        loop = asyncio.get_running_loop()
        subscription, decided = LoopSubscription(listener), asyncio.Event()

        def on_listening() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(decided.set)

        try:
            if not listener.opened(subscription, on_listening):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_ns / NS):
                        await decided.wait()
                listener.check(subscription)
        except BaseException:
            listener.forget(subscription)
            raise
        return subscription

    async def close(self) -> None:
        """The listener is shared with the blocking store; it ends when no waiter is left."""


def _interrupt(connection: PostgresConnection) -> None:
    """Wake the thread that waits for this connection."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.connection.socket)) as shared:
        shared.shutdown(socket.SHUT_RDWR)
