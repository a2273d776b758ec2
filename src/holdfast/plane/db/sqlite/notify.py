"""Hints between the processes at one SQLite file: who commits tells the others at which channels something happened.

Promises: each process that registered before a commit gets one datagram for it, with its channels. Does not promise
that the datagram arrives: a stopped listener has a short queue. A listener that finds its queue full assumes that hints
were lost, and notifies all its subscriptions. A sender that finds a listener dead deletes it.

Addresses are names in Linux's abstract socket namespace (`stores.sqlite.notify_socket`), which processes of the same
user and root can use. Where there are none, a thread asks SQLite every 50 ms whether another connection has changed the
file. Processes of other users and in another network namespace (containers that share a file) get no datagrams, and
find out by the waits of their callers, which are always bounded.

Clock: the wall clock, as a remark in the table; the real one for the pauses of the poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Final

from holdfast.errors import BackendError
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.sqlite.connection import PlaneFile
from holdfast.runtime.thread_runtime import Wakeup
from holdfast.stores.sqlite.liveness import this_host
from holdfast.stores.sqlite.notify_socket import HintSender, LoopListener, Sent

POLL_S: Final = 0.05

_DATAGRAM_BYTES_MAX: Final = 32_768  # far below what the kernel takes
_EVERYTHING: Final = b""  # a datagram without channels: too many of them to be named

_SQL: Final = files("holdfast.plane") / "sql"


def _sql(name: str) -> str:
    return (_SQL / f"listener_{name}.sql").read_text(encoding="utf-8")


_SCHEMA: Final = _sql("schema")
_REGISTER: Final = _sql("register")
_OTHERS: Final = _sql("others")
_FORGET: Final = _sql("forget")
_SWEEP: Final = _sql("sweep")


class SocketListener:
    """Where this process listens: a socket that the event loop reads. Raises OSError where there can be none."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, notify: Callable[[Iterable[str]], None], notify_all: Callable[[], None]
    ) -> None:
        self.place = this_host().place
        if not self.place:
            raise OSError("this system has no abstract sockets")
        self._notify = notify
        self._ring_all = notify_all
        self._listener = LoopListener(loop, "holdfast-plane", _DATAGRAM_BYTES_MAX, self._on_datagrams)
        self.address = self._listener.name

    async def register(self, tx: Tx, since_wall_ns: int) -> None:
        """Part of a work: tell the others where we listen. The table is made when it is not there."""
        await tx.query(_SCHEMA)
        await tx.query(_SWEEP, {"boot": self.place.partition(":")[0]})
        await tx.query(_REGISTER, {"address": self.address, "place": self.place, "since_wall_ns": since_wall_ns})

    async def forget(self, tx: Tx) -> None:
        """Part of a work: take it back."""
        await tx.query(_FORGET, {"address": self.address})

    def _on_datagrams(self, datagrams: list[bytes]) -> None:
        if _EVERYTHING in datagrams or len(datagrams) >= self._listener.queue_max:
            self._ring_all()
        else:
            self._notify({channel for each in datagrams for channel in each.decode("utf-8", "replace").split("\n")})

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


class HintBroadcaster:
    """Sends hints. The thread that writes asks whom to tell, and one thread tells them."""

    def __init__(self) -> None:
        self._place = this_host().place
        self._sender = HintSender()
        self._dead: set[str] = set()

    def listeners(self, connection: sqlite3.Connection, own: str) -> list[str]:
        """To whom the open transaction has to be told. Asked inside it: who is enrolled later sees what it wrote."""
        if not self._place:
            return []
        dead, self._dead = self._dead, set()  # another thread may find more of them meanwhile
        try:
            for address in list(dead):
                connection.execute(_FORGET, {"address": address})
            found = connection.execute(_OTHERS, {"place": self._place, "address": own}).fetchall()
        except sqlite3.Error:
            self._dead |= dead
            return []  # no process has listened yet, so there is no table; and a hint must not hurt a commit
        return [address for (address,) in found]

    def send(self, addresses: Iterable[str], channels: Iterable[str]) -> None:
        """Send one datagram to each. Never blocks and never raises."""
        datagram = "\n".join(channels).encode()
        if len(datagram) > _DATAGRAM_BYTES_MAX:
            datagram = _EVERYTHING
        for address in addresses:
            if self._sender.send(address, datagram) is Sent.DEAD:
                self._dead.add(address)
            # Else it has it, or its queue is full, which it sees when it looks.

    def close(self) -> None:
        """Close the socket."""
        self._sender.close()


class Poll:
    """The listener where there are no sockets: a thread polls for changes, and then notifies all subscriptions."""

    def __init__(self, file: PlaneFile, notify_all: Callable[[], None]) -> None:
        self._file = file
        self._ring_all = notify_all
        self._stop = Wakeup()
        # A daemon: a program that forgot to close its database must still be able to end.
        self._thread = threading.Thread(target=self._serve, name="holdfast-plane-poll", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection: sqlite3.Connection | None = None
        seen: int | None = None
        while not self._stop.wait(POLL_S):
            try:
                if connection is None:
                    connection = self._file.connect()
                    connection.execute("PRAGMA query_only = ON")
                (version,) = connection.execute("PRAGMA data_version").fetchone()
            except (sqlite3.Error, BackendError):
                continue  # busy, or it cannot be opened: the next caller gets the reason
            if version != seen:
                seen = version
                self._ring_all()
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def close(self) -> None:
        """Stop. Returns when the thread has ended, which takes as long as one look."""
        self._stop.notify()
        self._thread.join()
