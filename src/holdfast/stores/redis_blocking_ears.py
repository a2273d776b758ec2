"""Wake-ups for blocking waiters: a waiter listens on a connection of its own, without a thread in between.

A listener thread shared by all waiters would cost a hand-over between threads (120 to 190 µs) for each wake-up. Of all
threads that wait for one key only one gets past the local mutex, so ears are few. They are bounded all the same: beyond
the bound a waiter is deaf and polls, which every waiter must be able to do anyway.

Promises: an ear hears what was published after `open` returned, or wakes its waiter because it may have missed
something. Never raises from `wait`: a hint is not worth an error. Clock: monotonic.
"""

from __future__ import annotations

import os
import time
from collections import deque

from holdfast.errors import BackendError, Timeout, Unavailable
from holdfast.stores.redis_blocking import Connection
from holdfast.stores.redis_url import RedisAddress
from holdfast.stores.redis_wire import Garbled, ReplyError, Severed, pack, refusal
from holdfast.types import MS, NS

EARS_MAX = 128
IDLE_MAX = 8
CONFIRM_NS = 2 * NS


class BlockingEars:
    """The listening connections of one engine in one process."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._idle: deque[Connection] = deque(maxlen=IDLE_MAX)
        self._in_use: set[BlockingEar] = set()

    async def open(self, channel: str) -> BlockingEar:
        """Listen to a channel; returns when the server has confirmed it."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        if len(self._in_use) >= EARS_MAX:
            raise Unavailable(f"{EARS_MAX} waiters listen already; this one has to poll")
        ear = BlockingEar(self, channel)
        self._in_use.add(ear)
        try:
            ear.listen(time.monotonic_ns() + CONFIRM_NS)
        except BaseException:
            await ear.close()
            raise
        return ear

    def subscribed(self, channel: str, deadline_ns: int) -> Connection:
        """A connection that listens to the channel and to no other: an idle one if it still lives, else a new one."""
        while True:
            try:
                connection, fresh = self._idle.pop(), False
            except IndexError:
                connection, fresh = Connection(self._address, deadline_ns), True
            try:
                self._subscribe(connection, channel, deadline_ns)
            except BaseException as error:
                connection.close()
                if fresh or not isinstance(error, Severed):
                    raise
            else:
                return connection

    def _subscribe(self, connection: Connection, channel: str, deadline_ns: int) -> None:
        name = channel.encode()
        connection.send(pack(("SUBSCRIBE", name)), deadline_ns)
        while True:
            # An idle ear may still have the rest of its last channel to say; the confirmation is the end of that.
            reply = connection.next_reply(deadline_ns)
            if isinstance(reply, ReplyError):
                raise refusal(reply, self._address)
            if isinstance(reply, list) and reply[:2] == [b"subscribe", name]:
                return

    def give_back(self, ear: BlockingEar, connection: Connection | None, channel: str) -> None:
        """The waiter is done. The connection stops listening and waits for the next one."""
        self._in_use.discard(ear)
        if connection is None:
            return
        try:
            connection.send(pack(("UNSUBSCRIBE", channel)), time.monotonic_ns() + CONFIRM_NS)
        except BaseException as error:
            connection.close()
            if not isinstance(error, BackendError):
                raise
            return
        if self._pid == os.getpid() and len(self._idle) < IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    async def close(self) -> None:
        """See `close_idle`."""
        self.close_idle()

    def close_idle(self) -> None:
        """Close what is idle. Ears in use are closed by their waiters."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def _leave_to_parent(self) -> None:
        inherited = self._idle
        self._start()
        for connection in inherited:
            connection.close()


class BlockingEar:
    """One waiter's ear at one channel: a `ports.Watch`."""

    def __init__(self, ears: BlockingEars, channel: str) -> None:
        self._ears = ears
        self._channel = channel
        self._connection: Connection | None = None
        self._pid = os.getpid()
        self._closed = False

    def listen(self, deadline_ns: int) -> None:
        """Be subscribed when this returns."""
        self._connection = self._ears.subscribed(self._channel, deadline_ns)

    async def wait(self, timeout_ns: int) -> bool:
        """See `ports.Watch.wait`. Losing the connection is a hint too: a release may have gone unheard."""
        deadline_ns = time.monotonic_ns() + max(MS, timeout_ns)  # a hint that is there already is found in any case
        if self._connection is None:
            return self._listen_again(deadline_ns)
        try:
            self._connection.next_reply(deadline_ns)
        except (Severed, Garbled):
            self._lose()
            return True
        except Timeout:
            return False
        except BaseException:
            self._lose()
            raise
        return True

    async def close(self) -> None:
        """See `ports.Watch.close`."""
        if self._closed:
            return
        self._closed = True
        connection, self._connection = self._connection, None
        if self._pid != os.getpid():
            if connection is not None:
                connection.close()
            return
        self._ears.give_back(self, connection, self._channel)

    def _listen_again(self, deadline_ns: int) -> bool:
        try:
            self.listen(deadline_ns)
        except BackendError:
            # Away. The waiter asked to sleep, and a server that refuses at once must not turn that into a busy loop.
            time.sleep(max(0, deadline_ns - time.monotonic_ns()) / NS)
            return False
        return True

    def _lose(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
