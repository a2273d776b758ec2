"""Wake-ups for blocking waiters: a waiter listens on a connection of its own, without a thread in between.

A listener thread shared by all waiters would cost a hand-over between threads (120 to 190 µs) for each wake-up. Of all
threads that wait for one key only one gets past the local mutex, so subscriptions are few. They are bounded all the
same: beyond the bound a waiter is deaf and polls, which every waiter must be able to do anyway.

Promises: a subscription receives what was published to it after `open` returned, or wakes its waiter because it may
have missed something. Never raises from `wait`: a hint is not worth an error. A subscription is made once for each
connection, and serves one waiter after the other. Clock: monotonic.
"""

from __future__ import annotations

import os
import secrets
import time
import weakref
from collections import deque

from holdfast.errors import BackendError, Timeout, Unavailable
from holdfast.stores.redis.protocol import ConnectionBroken, GarbledReply, ReplyError, pack, refusal
from holdfast.stores.redis.sync_driver import Connection
from holdfast.stores.redis.url import RedisAddress, ServerSource
from holdfast.types import MS, NS

SUBSCRIPTIONS_MAX = 128
IDLE_MAX = 8
DOUBT_NS = NS  # a subscription that was idle for longer is confirmed before it is trusted


class SyncSubscriber:
    """The listening connections of one engine in one process."""

    def __init__(self, address: RedisAddress, source: ServerSource | None = None) -> None:
        self._address = address
        self._source = source or address
        self._start()

    def _start(self) -> None:
        self._idle: deque[SyncSubscription] = deque()
        # Weak: the subscription of a waiter that was interrupted before it had it does not count.
        self._in_use: weakref.WeakSet[SyncSubscription] = weakref.WeakSet()
        self._pid = os.getpid()  # last: in a child, an interrupt before it repeats the others

    async def open(self, timeout_ns: int) -> SyncSubscription:
        """A subscription: an idle one if it still lives, else a new one, which the server has confirmed."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        if len(self._in_use) >= SUBSCRIPTIONS_MAX:
            raise Unavailable(f"{SUBSCRIPTIONS_MAX} waiters listen already; this one has to poll")
        deadline_ns = time.monotonic_ns() + timeout_ns
        while True:
            try:
                subscription = self._idle.pop()
            except IndexError:
                break
            if subscription.sound(deadline_ns):
                self._in_use.add(subscription)
                return subscription
        subscription = SyncSubscription(self, self._address, self._source)
        self._in_use.add(subscription)
        try:
            subscription.listen(deadline_ns)
        except BaseException:
            subscription.close(sound=False)
            raise
        return subscription

    def put_back(self, subscription: SyncSubscription, *, sound: bool) -> bool:
        """The waiter is done. True: the subscription is kept for the next one."""
        self._in_use.discard(subscription)
        if not sound or self._pid != os.getpid() or len(self._idle) >= IDLE_MAX:
            return False
        self._idle.append(subscription)
        return True

    async def close(self) -> None:
        """See `close_idle`."""
        self.close_idle()

    def close_idle(self) -> None:
        """Close what is idle. Subscriptions in use are closed by their waiters."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        while True:
            try:
                self._idle.pop().hang_up()
            except IndexError:
                return

    def _leave_to_parent(self) -> None:
        inherited = self._idle
        self._start()
        for subscription in inherited:
            subscription.hang_up()


class SyncSubscription:
    """One channel, and the connection that listens to it and to nothing else: a `WakeupSubscription`."""

    def __init__(self, subscriber: SyncSubscriber, address: RedisAddress, source: RedisAddress | ServerSource) -> None:
        self._subscriber = subscriber
        self._address = address
        self._source = source
        self._channel = f"{address.namespace}:ear:{secrets.token_hex(8)}"
        self._number = 0
        self._connection: Connection | None = None
        self._pid = os.getpid()

    @property
    def entry(self) -> str:
        """See `WakeupSubscription`."""
        return f"{self._channel} {self._number}"

    def listen(self, deadline_ns: int) -> None:
        """Be subscribed, on a new connection, when this returns."""
        connection = Connection(self._source.find(deadline_ns), deadline_ns)
        try:
            self._confirm(connection, deadline_ns)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _confirm(self, connection: Connection, deadline_ns: int) -> None:
        channel = self._channel.encode()
        connection.send(pack(("SUBSCRIBE", channel)), deadline_ns)
        while True:
            # Hints for earlier waiters may come before it; they are obsolete.
            reply = connection.next_reply(deadline_ns)
            if isinstance(reply, ReplyError):
                raise refusal(reply, self._address)
            if isinstance(reply, list) and reply[:2] == [b"subscribe", channel]:
                return

    def sound(self, deadline_ns: int) -> bool:
        """Whether an idle subscription can be trusted again; if not, it is closed."""
        connection = self._connection
        if connection is None:
            return False
        try:
            if time.monotonic_ns() - connection.used_ns >= DOUBT_NS:
                self._confirm(connection, deadline_ns)
            elif connection.stale():
                self.hang_up()
                return False
        except BaseException as error:
            self.hang_up()
            if not isinstance(error, BackendError):
                raise
            return False
        return True

    async def wait(self, timeout_ns: int) -> bool:
        """See `WakeupSubscription`. Losing the connection is a hint too: a release may have gone unheard."""
        deadline_ns = time.monotonic_ns() + max(MS, timeout_ns)  # a hint that is there already is found in any case
        if self._connection is None:
            return self._listen_again(deadline_ns)
        hint = [b"message", self._channel.encode(), self.entry.encode()]
        try:
            while self._connection.next_reply(deadline_ns) != hint:
                pass  # meant for an earlier waiter
        except (ConnectionBroken, GarbledReply):
            self.hang_up()
            return True
        except Timeout:
            return False
        except BaseException:
            self.hang_up()
            raise
        return True

    def close(self, *, sound: bool) -> None:
        """See `WakeupSubscription`. In a forked child, only this end of the parent's subscription is closed."""
        connection = self._connection
        if self._pid != os.getpid():
            self.hang_up()
            return
        self._number += 1
        if connection is not None:
            connection.used_ns = time.monotonic_ns()
        if not self._subscriber.put_back(self, sound=sound and connection is not None):
            self.hang_up()

    def _listen_again(self, deadline_ns: int) -> bool:
        try:
            self.listen(deadline_ns)
        except BackendError:
            # Away. The waiter asked to sleep, and a server that refuses immediately must not turn that into a busy
            # loop.
            time.sleep(max(0, deadline_ns - time.monotonic_ns()) / NS)
            return False
        return True

    def hang_up(self) -> None:
        """Close the connection, and with it the only one who listens to the channel."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
