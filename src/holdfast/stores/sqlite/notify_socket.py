"""Datagrams between the processes of one user on one host: what carries hints for leases and for the plane.

Promises: a name cannot be guessed, leaves no file behind, and is forgotten by the kernel with its process. A listener
returns only datagrams of its own user and of root: the kernel reports the owner of each, and others are dropped unread.
A process of another user that sends anyway costs a bounded amount of work: after such a datagram a listener pauses
for `PAUSE_S`. Sending never blocks.

Does not promise that a datagram arrives: the queue of a listener is short, and other users can fill it. Callers wait
for a hint for a bounded time only, and then ask the store.

Clock: the event loop's, for the pause.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
import struct
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final

SUPPORTED: Final = sys.platform == "linux"
PAUSE_S: Final = 0.05
"""How long a listener does not read after a datagram of another user."""

_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group: `struct ucred`
_ROOT: Final = 0
_QUEUE_FALLBACK: Final = 10  # the kernel's own default


class Sent(Enum):
    """The outcome of a datagram."""

    TAKEN = "taken"
    FULL = "full"  # the queue of the listener is full, or something else kept it; the listener may be alive
    DEAD = "dead"  # nothing listens there any more


class HintListener:
    """A socket with a name. Raises OSError where there can be none."""

    def __init__(self, prefix: str) -> None:
        if not SUPPORTED:
            raise OSError(errno.EAFNOSUPPORT, "this system has no abstract sockets")
        self.name = f"{prefix}-{os.getpid()}-{secrets.token_hex(8)}"
        self.crowded = False  # by another user, in the last `read`
        self.queue_max = _queue_max()
        self.socket = _socket()
        try:
            # Before the name is there: the kernel notes the sender when a datagram is sent.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self.socket.bind(f"\0{self.name}")
        except BaseException:
            self.socket.close()
            raise

    def read(self, bytes_max: int) -> list[bytes]:
        """The datagrams that are there, of this user or root. At most as many as the queue has room for."""
        trusted = (_ROOT, os.getuid(), os.geteuid())
        found: list[bytes] = []
        self.crowded = False
        for _ in range(self.queue_max + 1):  # the kernel takes one more
            try:
                datagram, about, _flags, _address = self.socket.recvmsg(bytes_max, socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:
                break  # it is empty, or closed
            if _user(about) in trusted:
                found.append(datagram)
            else:
                self.crowded = True
        return found

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()


def _user(about: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in about:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack_from(data)[1])
    return None


class LoopListener(HintListener):
    """A listener that an event loop reads."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, prefix: str, bytes_max: int, heard: Callable[[list[bytes]], None]
    ) -> None:
        """`heard` is called on the event loop with the datagrams that have come."""
        super().__init__(prefix)
        self._loop = loop
        self._bytes_max = bytes_max
        self._received = heard
        self._pause: asyncio.TimerHandle | None = None
        try:
            self._resume()
        except BaseException:
            self.socket.close()
            raise

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self.socket, self._read)

    def _read(self) -> None:
        found = self.read(self._bytes_max)
        if self.crowded:
            self._loop.remove_reader(self.socket)
            self._pause = self._loop.call_later(PAUSE_S, self._resume)
        if found:
            self._received(found)

    def close(self) -> None:
        """See `HintListener`."""
        if self._pause is not None:
            self._pause.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self.socket)
        super().close()


class HintSender:
    """Sends datagrams to names. Where several threads use it, they call `open` under a mutex first."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def open(self) -> socket.socket:
        """Make the socket, if there is none."""
        if self._socket is None:
            self._socket = _socket()
        return self._socket

    def send(self, name: str, datagram: bytes) -> Sent:
        """Send one. Never blocks and never raises."""
        try:
            self.open().sendto(datagram, f"\0{name}")
        except ConnectionRefusedError:
            return Sent.DEAD
        except OSError:
            return Sent.FULL
        return Sent.TAKEN

    def close(self) -> None:
        """Close the socket. The next datagram opens another."""
        out, self._socket = self._socket, None
        if out is not None:
            out.close()


def _socket() -> socket.socket:
    # Closed on exec by default. Never blocking: a full queue of a listener must not hold up a release.
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _queue_max() -> int:
    try:
        return int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _QUEUE_FALLBACK
