"""A pool of blocking connections, one per concurrent caller. Nothing here ever suspends.

Promises: an interrupt at any point loses at most the connection at hand, and never its place in the pool: that ends
with the connection object. A connection that its caller drops is never used again. In a forked child the parent's
connections are left alone. Does not promise that a connection is sound: it only checks those that were idle for long.

Clock: monotonic, for deadlines and idle times.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from holdfast.errors import Timeout, Unavailable
from holdfast.runtime.thread_runtime import Mutex, Wakeup
from holdfast.types import NS

_TURN_S = 0.1


class ConnectionBroken(Timeout):
    """The connection broke after the request was sent and before its answer: it may have taken effect.

    Unlike a plain `Timeout` there may be time left to ask again, if asking again is harmless.
    """


class PooledConnection(Protocol):
    """A connection, as the pool sees it."""

    slot: PoolSlot | None
    used_ns: int  # when it was last used

    def stale(self) -> bool:
        """Whether the server has closed it, or sent an unexpected message."""
        ...

    def close(self) -> None:
        """Close it. In a forked child, only this end."""
        ...


C = TypeVar("C", bound=PooledConnection)


class PoolSlot:
    """Room for one connection in a pool. It returns to the pool when its last reference goes away."""

    __slots__ = ("__weakref__",)


class ConnectionPool(Generic[C]):
    """The connections of one engine in one process. Calls may come from any thread."""

    doubt_ns = NS  # a connection that was idle for longer is checked before it is used for a request

    def __init__(self, connect: Callable[[int], C], server: str, most: int) -> None:
        """`connect` opens a connection, within a deadline. `server` names it in errors."""
        self._connect = connect
        self._server = server
        self._most = most
        self._start()

    def _start(self) -> None:
        # Last in, first out. `append` and `pop` of a deque are atomic, so the usual call takes no lock.
        self._idle: deque[C] = deque()
        # The slots that are taken, by identity. A connection that an interrupt loses between two steps (taken from the
        # pool, and not yet in a variable) ends there, and its slot with it, which removes the entry.
        self._taken: dict[int, weakref.ref[PoolSlot]] = {}
        self._waiters: deque[Wakeup] = deque()
        self._mutex = Mutex()
        self._pid = os.getpid()  # last: in a child, an interrupt before it repeats the others

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return time.monotonic_ns() + timeout_ns

    def take(self, deadline_ns: int) -> C:
        """A connection for one caller: an idle one, a new one, or the next that is returned to the pool."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if time.monotonic_ns() - connection.used_ns < self.doubt_ns or not connection.stale():
                return connection
            self.drop(connection, None)
        return self._open_or_wait(deadline_ns)

    def put_back(self, connection: C) -> None:
        """The connection has answered everything it was asked."""
        connection.used_ns = time.monotonic_ns()
        self._idle.append(connection)
        self._wake(1)

    def drop(self, connection: C, error: BaseException | None) -> None:
        """The connection must not be used again. If it broke, the idle ones may well be broken too."""
        self._free(connection.slot)
        connection.close()
        dropped = 1
        if isinstance(error, ConnectionBroken):
            dropped += self._empty()
        self._wake(dropped)

    def _slot(self) -> PoolSlot | None:
        """Room for a new connection, if there is any."""
        with self._mutex:
            if len(self._taken) >= self._most:
                return None
            slot, taken = PoolSlot(), self._taken
            key = id(slot)
            taken[key] = weakref.ref(slot, lambda _: taken.pop(key, None))
            return slot

    def _free(self, slot: PoolSlot | None) -> None:
        self._taken.pop(id(slot), None)

    def _wake(self, count: int) -> None:
        # A waiter enters itself before it looks for a connection a last time, and this is called after one has become
        # free: one of the two sees the other.
        for _ in range(count):
            try:
                self._waiters.popleft().notify()
            except IndexError:
                return

    def statistics(self) -> dict[str, int]:
        """How many connections there are, how many of them idle, and how many callers wait for one."""
        counts = {"open": len(self._taken), "idle": len(self._idle), "waiting": len(self._waiters)}
        return {**counts, "most": self._most}

    def close_idle(self) -> None:
        """Close what is idle. A connection in use stays its caller's, and is idle again after the call."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        self._wake(self._empty())

    def _open_or_wait(self, deadline_ns: int) -> C:
        while True:  # ends with a connection, or with the deadline
            mine = Wakeup()
            self._waiters.append(mine)
            try:
                if self._idle:
                    with contextlib.suppress(IndexError):
                        return self._idle.pop()
                slot = self._slot()
                if slot is not None:
                    return self._opened(slot, deadline_ns)
                left = (deadline_ns - time.monotonic_ns()) / NS
                if left <= 0:
                    raise Unavailable(f"{self._server}: all {self._most} connections were busy")
                # In short turns: the one that should have rung may have been interrupted.
                mine.wait(min(left, _TURN_S))
            finally:
                with contextlib.suppress(ValueError):  # it was rung
                    self._waiters.remove(mine)

    def _opened(self, slot: PoolSlot, deadline_ns: int) -> C:
        try:
            connection = self._connect(deadline_ns)
            connection.slot = slot
            return connection  # noqa: TRY300 - until it is returned it can be interrupted
        except BaseException:
            self._free(slot)
            self._wake(1)
            raise

    def _empty(self) -> int:
        closed = 0
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return closed
            self._free(connection.slot)
            connection.close()
            closed += 1

    def _leave_to_parent(self) -> None:
        """In a forked child: the sockets are shared with the parent, so they are closed here and never spoken on."""
        inherited = self._idle
        self._start()
        for connection in inherited:
            connection.close()
