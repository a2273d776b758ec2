"""Notifications between processes, without polling: waiters register in the file, and a release notifies one of them.

Promises: a release sees every registration that was committed before it. It notifies one live waiter: the head of a
fair queue, else the one that has listened longest.

Does not promise that a notification arrives. It may be spurious, or lost in a waiter that is stopped or dies. So
waiters also poll now and then, and only the lease table decides who has the key.

Addresses are names in Linux's abstract socket namespace (`notify_socket`), which processes of the same user and root
can use. Elsewhere, and between users who share a file, there are no notifications. A blocking waiter reads its own
socket, so that the kernel wakes its thread; the waiters of one event loop share a socket.

Clock: the wall clock, for the expiry of registrations. The monotonic clock, for the pause of a blocking waiter that
another user disturbs; other time limits are the caller's.
"""

from __future__ import annotations

import asyncio
import os
import select
import sqlite3
import time
from collections.abc import Iterable
from typing import Any, Final

from holdfast.runtime.thread_runtime import Mutex
from holdfast.stores.sqlite.connection import SqliteFile
from holdfast.stores.sqlite.liveness import LivenessJudge, at
from holdfast.stores.sqlite.notify_socket import PAUSE_S, HintListener, HintSender, LoopListener, Sent
from holdfast.stores.sqlite.schema import sql
from holdfast.types import MS, NS

_LISTEN: Final = sql("listen")
_LISTEN_ON: Final = sql("listen_on")
_UNLISTEN: Final = sql("unlisten")
_LISTENERS: Final = sql("listeners")


def addresses_of(joined: str | None) -> list[str]:
    """Take apart what a statement returned: addresses, separated by spaces."""
    return joined.split(" ") if joined else []


class ListenerTable:
    """The registrations of waiters, of all processes."""

    def __init__(self, file: SqliteFile, judge: LivenessJudge) -> None:
        self._file = file
        self._judge = judge

    def add(self, key: str, address: str, ttl_ns: int, timeout_ns: int) -> None:
        """Register a waiter."""
        parameters = self._registration(key, address, ttl_ns)
        self._file.run(lambda connection: connection.execute(_LISTEN, parameters), timeout_ns)

    def extend(self, key: str, address: str, ttl_ns: int, timeout_ns: int) -> None:
        """Extend the registration of a waiter, or make it again."""
        parameters = self._registration(key, address, ttl_ns)

        def step(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute(_LISTEN_ON, parameters).rowcount == 0:
                connection.execute(_LISTEN, parameters)
            connection.execute("COMMIT")

        self._file.run(step, timeout_ns)

    def remove(self, key: str, address: str, timeout_ns: int) -> None:
        """Forget a waiter."""
        parameters = {"key": key, "address": address}
        self._file.run(lambda connection: connection.execute(_UNLISTEN, parameters), timeout_ns)

    def next(self, key: str, timeout_ns: int) -> list[str]:
        """Name those to whom a hint about the key would go now."""
        parameters = {"key": key, "place": self._judge.host.place, "wall_ns": self._judge.now().wall}
        rows = self._file.run(lambda connection: connection.execute(_LISTENERS, parameters).fetchall(), timeout_ns)
        return addresses_of(rows[0][0])

    def _registration(self, key: str, address: str, ttl_ns: int) -> dict[str, Any]:
        expires = at(self._judge.now().wall, ttl_ns)
        return {"key": key, "address": address, "place": self._judge.host.place, "expires_wall_ns": expires}


LISTEN_TTL_NS: Final = 60_000 * MS  # a registration is renewed at half of it, and expires after it
_IDLE_MAX: Final = 8  # sockets kept for the next waiters
_WAIT_MAX_MS: Final = 2**31 - 1
_LABEL_BYTES_MAX: Final = 64


class SocketNotifier:
    """Sends hints. One socket for all threads of the process."""

    def __init__(self) -> None:
        self._sender = HintSender()
        self._mutex = Mutex()
        self._pid = os.getpid()

    def notify(self, addresses: Iterable[str]) -> list[str]:
        """Send a hint to the first of them that takes it. Returns those that no process listens to any more."""
        dead: list[str] = []
        for address in addresses:
            name, _, label = address.partition("#")
            sent = self._out().send(name, label.encode())
            if sent is Sent.DEAD:
                dead.append(address)
            elif sent is Sent.TAKEN:
                # Let the waiter run first: a releaser in a loop would otherwise take the key again immediately, and
                # the waiter would be woken in vain.
                os.sched_yield()
                break
            # Else its queue is full: it does not read its hints, so another waiter should get this one.
        return dead

    def _out(self) -> HintSender:
        if self._pid != os.getpid():  # inherited through a fork, perhaps with the mutex held
            self._mutex = Mutex()
            self.close()
            self._pid = os.getpid()  # last: an interrupt before it repeats the others
        with self._mutex:
            self._sender.open()
        return self._sender

    def close(self) -> None:
        """Close the socket. The next hint opens another."""
        self._sender.close()


class ThreadListeners:
    """The sockets of blocking waiters. An idle one is kept for the next waiter."""

    def __init__(self) -> None:
        self._idle: list[ThreadListener] = []
        self._mutex = Mutex()
        self._pid = os.getpid()

    def take(self) -> ThreadListener:
        """Take a subscription for one waiter. Raises OSError when there are no more descriptors."""
        self._notice_fork()
        with self._mutex:
            listener = self._idle.pop() if self._idle else None
        if listener is None:
            return ThreadListener()
        listener.drain()
        return listener

    def put_back(self, listener: ThreadListener) -> None:
        """The waiter does not wait any more."""
        self._notice_fork()
        with self._mutex:
            if listener.pid == self._pid and len(self._idle) < _IDLE_MAX:
                self._idle.append(listener)
                return
        listener.close()

    def close(self) -> None:
        """Close the idle ones."""
        self._notice_fork()
        with self._mutex:
            idle, self._idle = self._idle, []
        for listener in idle:
            listener.close()

    def _notice_fork(self) -> None:
        """In a child the sockets are the parent's: reading from one would steal its hints."""
        if self._pid != os.getpid():
            self._mutex = Mutex()
            for listener in self._idle:
                listener.close()
            self._idle = []
            self._pid = os.getpid()  # last: an interrupt before it repeats the others


class ThreadListener:
    """One waiter's socket."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._listener = HintListener("holdfast")
        self.address = f"{self._listener.name}#0"
        self._poll = select.poll()
        self._poll.register(self._listener.socket, select.POLLIN)

    def wait(self, timeout_ns: int) -> bool:
        """Block until there is a hint, or the time has ended."""
        until_ns = time.monotonic_ns() + max(0, timeout_ns)
        while True:  # ends with a hint, or with the time
            left_ns = max(0, until_ns - time.monotonic_ns())
            # Rounded up: a waiter that comes back a moment too early would only ask in vain.
            if not self._poll.poll(min(-(-left_ns // MS), _WAIT_MAX_MS)):
                return False
            if self.drain():
                return True
            time.sleep(min(PAUSE_S, max(0, until_ns - time.monotonic_ns()) / NS))  # what came was another user's

    def drain(self) -> bool:
        """Forget the hints so far. Whether there was one."""
        return bool(self._listener.read(_LABEL_BYTES_MAX))

    def close(self) -> None:
        """Close the socket."""
        self._listener.close()


class SharedLoopListener:
    """The socket of all waiters of one event loop. Each has a label, and an event that is set by a hint."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = LoopListener(loop, "holdfast", _LABEL_BYTES_MAX, self._received)
        self._events: dict[str, asyncio.Event] = {}
        self._last = 0

    def take(self) -> tuple[str, asyncio.Event]:
        """An address and the event that belongs to it."""
        self._last += 1
        event = self._events[str(self._last)] = asyncio.Event()
        return f"{self._listener.name}#{self._last}", event

    def put_back(self, address: str) -> None:
        """The waiter does not wait any more."""
        self._events.pop(address.partition("#")[2], None)

    def _received(self, labels: list[bytes]) -> None:
        for label in labels:
            event = self._events.get(label.decode("ascii", "replace"))
            if event is not None:
                event.set()

    def close(self) -> None:
        """Stop listening. Waiters continue to wait for their time."""
        self._listener.close()
