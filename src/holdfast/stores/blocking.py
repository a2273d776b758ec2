"""The blocking color of a store whose driver knows only asyncio: its calls run on an event loop in another thread.

Promises: nothing here suspends. Each call ends at its time limit, and an interrupted one is cancelled on the loop (see
`runtime.loop_thread`). All threads share the connections of the one loop.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Final, Protocol

from holdfast.core.diagnosis import StoreFinding
from holdfast.core.ports import LISTEN_NS, AcquiresMany, Capabilities, Diagnosable, HasServerTime, Store, Watch
from holdfast.errors import BackendError, Timeout
from holdfast.runtime.loop_thread import LoopThread
from holdfast.types import NS, AcquireRequest, AuditRecord, Busy, Grant, Holding, Renewal

CLOSE_NS: Final = 3 * NS


class LoopStore(Store, AcquiresMany, HasServerTime, Diagnosable, Protocol):
    """What the store on the loop can do."""


class BlockingStore:
    """`ports.Store` for threads, over one for an event loop."""

    def __init__(self, store: LoopStore, name: str) -> None:
        self._store = store
        self._thread = LoopThread(name)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the store."""
        return self._store.capabilities

    def __repr__(self) -> str:
        return f"<blocking {self._store!r}>"

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        """See `ports.Store.acquire`."""
        return self._thread.call(lambda: self._store.acquire(ask, timeout_ns), timeout_ns)

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """See `ports.Store.renew_many`."""
        return self._thread.call(lambda: self._store.renew_many(renewals, timeout_ns), timeout_ns)

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        """See `ports.Store.release`."""
        return self._thread.call(lambda: self._store.release(key, token, claim, keep_ns, timeout_ns), timeout_ns)

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        """See `ports.AcquiresMany`."""
        return self._thread.call(lambda: self._store.acquire_many(asks, timeout_ns), timeout_ns)

    async def release_many(self, grants: Sequence[Grant], timeout_ns: int) -> list[bool | None]:
        """See `ports.AcquiresMany`."""
        return self._thread.call(lambda: self._store.release_many(grants, timeout_ns), timeout_ns)

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """See `ports.Store.inspect`."""
        return self._thread.call(lambda: self._store.inspect(key, timeout_ns), timeout_ns)

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """See `ports.Store.holdings`."""
        return self._thread.call(lambda: self._store.holdings(prefix, limit, timeout_ns, after), timeout_ns)

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        """See `ports.Store.force_release`."""
        return self._thread.call(lambda: self._store.force_release(key, actor, reason, timeout_ns), timeout_ns)

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """See `ports.Store.audit`."""
        return self._thread.call(lambda: self._store.audit(limit, timeout_ns), timeout_ns)

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """See `ports.Store.leave`."""
        self._thread.call(lambda: self._store.leave(key, ticket, timeout_ns), timeout_ns)

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        """See `ports.Store.watch`."""

        async def opened() -> BlockingWatch:  # on the loop: whatever an interrupt loses from here on, is closed
            return BlockingWatch(self._thread, await self._store.watch(key, timeout_ns))

        return self._thread.call(opened, timeout_ns)

    async def time_ns(self, timeout_ns: int) -> int:
        """See `ports.HasServerTime`."""
        return self._thread.call(lambda: self._store.time_ns(timeout_ns), timeout_ns)

    async def diagnose(self, timeout_ns: int) -> list[StoreFinding]:
        """See `ports.Diagnosable`."""
        return self._thread.call(lambda: self._store.diagnose(timeout_ns), timeout_ns)

    async def ping(self, timeout_ns: int) -> None:
        """See `ports.Store.ping`."""
        self._thread.call(lambda: self._store.ping(timeout_ns), timeout_ns)

    async def close(self) -> None:
        """See `ports.Store.close`."""
        self.end()

    def end(self) -> None:
        """Close the connections and end the thread. The next call starts another one."""
        if self._thread.idle:
            return
        with contextlib.suppress(BackendError):
            self._thread.call(self._store.close, CLOSE_NS)
        self._thread.close()


class BlockingWatch:
    """A waiter of a thread. One that an interrupt has lost is closed when its last reference goes away."""

    def __init__(self, thread: LoopThread, watch: Watch) -> None:
        self._thread = thread
        self._watch = watch
        self._pid = os.getpid()
        self._closed = False

    async def wait(self, timeout_ns: int) -> bool:
        """See `ports.Watch`."""
        try:
            return self._thread.call(lambda: self._watch.wait(timeout_ns), timeout_ns)
        except Timeout:
            return False

    async def close(self) -> None:
        """See `ports.Watch`."""
        if self._pid == os.getpid():
            with contextlib.suppress(BackendError):
                self._thread.call(self._watch.close, CLOSE_NS)
        self._closed = True  # not sooner: an interrupted call is made again

    def __del__(self) -> None:
        """See the class."""
        with contextlib.suppress(Exception):  # the interpreter ends
            if not self._closed and self._pid == os.getpid():
                self._thread.begin(self._watch.close)
