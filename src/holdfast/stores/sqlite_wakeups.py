"""Hints across processes without polling: a datagram to one waiter when a key may be free.

Promises: each release that commits after a registration did gives a hint to one waiter that is alive, the head of a
fair queue first, then who has listened longest. Does not promise more: a hint may be spurious, or swallowed by a waiter
that is stopped or dies with it in hand; so waiters also ask by themselves now and then, and the ledger alone says who
has the key.

Addresses are names in Linux's abstract socket namespace: no file is left behind, and the kernel forgets them with the
process. Elsewhere there are no hints. A blocking waiter reads its own socket, so that the kernel wakes its very thread;
the waiters of one event loop share a socket.

Clock: none; time limits are the caller's.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import select
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.runtime.mutex import Mutex
from holdfast.types import MS

SUPPORTED: Final = sys.platform == "linux"
LISTEN_TTL_NS: Final = 60_000 * MS  # a registration is made anew at half of it, and forgotten after it
_IDLE_MAX: Final = 8  # sockets kept for the next waiters
_WAIT_MAX_MS: Final = 2**31 - 1


def _socket() -> socket.socket:
    # Closed on exec by default. Never blocking: a full queue of a waiter must not hold up a release.
    ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ear.setblocking(False)
    return ear


def _bound() -> tuple[socket.socket, str]:
    """Make a socket with a name that cannot be guessed, so that nobody can sit on it before us. Raises OSError."""
    if not SUPPORTED:
        raise OSError(errno.EAFNOSUPPORT, "this system has no abstract sockets")
    name = f"holdfast-{os.getpid()}-{secrets.token_hex(8)}"
    ear = _socket()
    try:
        ear.bind(f"\0{name}")
    except BaseException:
        ear.close()
        raise
    return ear, name


class Bell:
    """Sends hints. One socket for all threads of the process."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._mutex = Mutex()
        self._pid = os.getpid()

    def ring(self, addresses: Iterable[str]) -> list[str]:
        """Hint to the first of them that takes it. Returns those that nobody listens to any more."""
        dead: list[str] = []
        for address in addresses:
            name, _, label = address.partition("#")
            try:
                self._out().sendto(label.encode(), f"\0{name}")
            except ConnectionRefusedError:
                dead.append(address)
            except OSError:
                continue  # its queue is full: it does not look at its hints, so another one should get this one
            else:
                # Let the waiter run first: whoever releases in a loop would otherwise take the key again at once, and
                # the waiter would be woken in vain.
                os.sched_yield()
                break
        return dead

    def _out(self) -> socket.socket:
        if self._pid != os.getpid():  # inherited through a fork, perhaps with the mutex held
            self._mutex, self._pid = Mutex(), os.getpid()
            self.close()
        with self._mutex:
            if self._socket is None:
                self._socket = _socket()
            return self._socket

    def close(self) -> None:
        """Close the socket. The next hint opens another."""
        out, self._socket = self._socket, None
        if out is not None:
            out.close()


class ThreadEars:
    """The sockets of blocking waiters. An idle one is kept for the next waiter."""

    def __init__(self) -> None:
        self._idle: list[ThreadEar] = []
        self._mutex = Mutex()
        self._pid = os.getpid()

    def take(self) -> ThreadEar:
        """Take an ear for one waiter. Raises OSError when there are no more descriptors."""
        self._notice_fork()
        with self._mutex:
            ear = self._idle.pop() if self._idle else None
        if ear is None:
            return ThreadEar()
        ear.drain()
        return ear

    def give_back(self, ear: ThreadEar) -> None:
        """The waiter does not wait any more."""
        self._notice_fork()
        with self._mutex:
            if ear.pid == self._pid and len(self._idle) < _IDLE_MAX:
                self._idle.append(ear)
                return
        ear.close()

    def close(self) -> None:
        """Close the idle ones."""
        self._notice_fork()
        with self._mutex:
            idle, self._idle = self._idle, []
        for ear in idle:
            ear.close()

    def _notice_fork(self) -> None:
        """In a child the sockets are the parent's: reading from one would steal its hints."""
        if self._pid != os.getpid():
            self._mutex, self._pid = Mutex(), os.getpid()
            for ear in self._idle:
                ear.close()
            self._idle = []


class ThreadEar:
    """One waiter's socket."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._socket, name = _bound()
        self.address = f"{name}#0"
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def wait(self, timeout_ns: int) -> bool:
        """Block until there is a hint, or the time is over."""
        # Rounded up: a waiter that comes back a moment too early would only ask in vain.
        if not self._poll.poll(min(-(-max(0, timeout_ns) // MS), _WAIT_MAX_MS)):
            return False
        self.drain()
        return True

    def drain(self) -> None:
        """Forget the hints so far."""
        drain(self._socket, lambda _label: None)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class LoopEar:
    """The socket of all waiters of one event loop. Each has a label, and an event that is set by a hint."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._socket, self._name = _bound()
        self._events: dict[str, asyncio.Event] = {}
        self._last = 0
        loop.add_reader(self._socket, self._read)

    def take(self) -> tuple[str, asyncio.Event]:
        """An address and the event that belongs to it."""
        self._last += 1
        event = self._events[str(self._last)] = asyncio.Event()
        return f"{self._name}#{self._last}", event

    def give_back(self, address: str) -> None:
        """The waiter does not wait any more."""
        self._events.pop(address.partition("#")[2], None)

    def _read(self) -> None:
        drain(self._socket, self._tell)

    def _tell(self, label: str) -> None:
        event = self._events.get(label)
        if event is not None:
            event.set()

    def close(self) -> None:
        """Stop listening. Waiters go on to wait for their time."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
        self._socket.close()


def drain(ear: socket.socket, tell: Callable[[str], None]) -> None:
    """Read all hints that are there."""
    while True:  # ends when the socket is empty or closed
        try:
            label = ear.recv(64)
        except OSError:
            return
        tell(label.decode("ascii", "replace"))
