"""Leases in the memory of one process: the reference implementation of `ports.Store`, and the verified fake for tests.

Promises: every call is one atomic step on one table; exclusion, fences, fair tickets and wake-ups exactly as the port
says, between all threads and all event loops of this process. Does not promise: anything to other processes, or
anything after the process ends. Clock: the table's (see `table`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.ports import LISTEN_NS, Capabilities, Watch
from holdfast.errors import BadInput
from holdfast.runtime.thread_runtime import Wakeup
from holdfast.stores.memory.table import MemoryTable, TableSnapshot
from holdfast.types import NS, AcquireRequest, AuditRecord, Busy, Grant, Guarantee, Holding, Renewal, check_label

__all__ = ["CAPABILITIES", "MemoryEngine", "MemoryStore", "MemoryTable", "TableSnapshot", "open_engine"]

CAPABILITIES: Final = Capabilities(
    engine="memory", guarantee=Guarantee.FENCED, wakeups=True, fair=True, durable=False, shared=False, many=True
)


class _BlockingWatch:
    """A listener that waits by blocking its thread."""

    _unlisten: Callable[[], None] | None = None

    def __init__(self, table: MemoryTable, key: str) -> None:
        self._hint = Wakeup()
        self._unlisten = partial(table.unlisten, key, self._hint.notify)
        table.listen(key, self._hint.notify)

    def __del__(self) -> None:
        """Unregister a watch that an interrupt has lost before its waiter had it."""
        if self._unlisten is not None:
            self._unlisten()

    async def wait(self, timeout_ns: int) -> bool:
        return self._hint.wait(timeout_ns / NS)

    async def close(self) -> None:
        if self._unlisten is not None:
            self._unlisten()


class _AsyncioWatch:
    """A listener that waits on its event loop. A release on another thread, or another loop, reaches it too."""

    def __init__(self, table: MemoryTable, key: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._hint = asyncio.Event()
        self._unlisten = table.listen(key, self._wake)

    def _wake(self) -> None:
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._hint.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._hint.set)
        except RuntimeError:
            # The waiter's loop is closed, so it waits no more.
            self._unlisten()

    async def wait(self, timeout_ns: int) -> bool:
        if not self._hint.is_set():
            try:
                async with asyncio.timeout(max(0, timeout_ns) / NS):
                    await self._hint.wait()
            except TimeoutError:
                return False
        self._hint.clear()
        return True

    async def close(self) -> None:
        self._unlisten()


class MemoryStore:
    """`ports.Store` on a `MemoryTable`. No call ever suspends, save waiting on a watch: there is the color."""

    def __init__(self, table: MemoryTable | None = None, *, asynchronous: bool = False) -> None:
        self.table = table or MemoryTable()
        self._watch: Callable[[MemoryTable, str], Watch] = _AsyncioWatch if asynchronous else _BlockingWatch

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return CAPABILITIES

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        """See `ports.Store.acquire`. A request without a ticket ignores the queue of those with one."""
        return self.table.acquire(ask)

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """See `ports.Store.renew_many`. There is always an answer here."""
        return self.table.renew(renewals)

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        """See `ports.Store.release`. The claim is not needed: a table finds the lease by its key."""
        return self.table.release(key, token, keep_ns)

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        """See `ports.AcquiresMany`."""
        return [self.table.acquire(ask) for ask in asks]

    async def release_many(self, grants: Sequence[Grant], timeout_ns: int) -> list[bool | None]:
        """See `ports.AcquiresMany`. There is always an answer here."""
        return [self.table.release(grant.key, grant.token, 0) for grant in grants]

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """See `ports.Store.inspect`."""
        return self.table.inspect(key)

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """See `ports.Store.holdings`."""
        return self.table.holdings(prefix, limit, after)

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        """See `ports.Store.force_release`."""
        return self.table.force_release(key, actor, reason)

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """See `ports.Store.audit`. The newest thousand are kept."""
        return self.table.audit(limit)

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """See `ports.Store.leave`."""
        self.table.leave(key, ticket)

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        """See `ports.Store.watch`."""
        return self._watch(self.table, key)

    async def ping(self, timeout_ns: int) -> None:
        """Memory always answers."""

    async def close(self) -> None:
        """There is nothing to close; the leases stay in the table."""


class MemoryEngine:
    """One table and its stores in sync and asyncio."""

    def __init__(self, table: MemoryTable | None = None, *, url: str = "memory://") -> None:
        self.table = table or MemoryTable()
        self.url = url
        self._blocking = MemoryStore(self.table)

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return CAPABILITIES

    @property
    def blocking(self) -> MemoryStore:
        """The store for ordinary code and for the renewer."""
        return self._blocking

    def asynchronous(self) -> MemoryStore:
        """Make a store for one event loop."""
        return MemoryStore(self.table, asynchronous=True)

    def close(self) -> None:
        """There is nothing to close. A shared table lives on: a hold taken in it must outlast this engine."""


_shared: dict[str, MemoryTable] = {}


def open_engine(url: str) -> MemoryEngine:
    """`memory://` is a table of its own for each call; `memory://name` is one table shared within this process."""
    try:
        parts = urlsplit(url)
    except ValueError:  # half a bracket, or letters that a host cannot have
        raise BadInput(
            "url", "a memory store has a name of letters and digits", "use memory:// or memory://NAME"
        ) from None
    if parts.path or parts.query or parts.fragment:
        raise BadInput(
            "url",
            "a memory store has a name and nothing else",
            "use memory:// (private) or memory://NAME (shared by name)",
        )
    name = parts.netloc
    if not name:
        return MemoryEngine(url="memory://")
    if "@" in name:  # not shown: what stands before it may be a password
        raise BadInput("url", "a memory store has no user and no host", "use memory:// or memory://NAME")
    check_label("url", name)
    # `setdefault` is one step, so two threads get the same table without a mutex that a fork could leave locked.
    return MemoryEngine(_shared.setdefault(name, MemoryTable()), url=f"memory://{name}")
