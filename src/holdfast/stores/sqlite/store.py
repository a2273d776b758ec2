"""The store of one SQLite file, in one color: the steps of the lease table, and a notification when one frees a key.

Promises and clock: those of `lease_table`. The color decides on which thread a step runs, and how a waiter waits for a
notification.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from holdfast.core.diagnosis import StoreFinding
from holdfast.core.ports import LISTEN_NS, Capabilities, Watch
from holdfast.errors import BackendError, Closed
from holdfast.stores.sqlite.lease_table import LeaseTable
from holdfast.stores.sqlite.mounts import file_system_finding
from holdfast.stores.sqlite.notify import SocketNotifier
from holdfast.stores.sqlite.notify_socket import SUPPORTED
from holdfast.stores.sqlite.transactions import LeaseBatch, SqliteTransactionLocks, TransactionHost, carried
from holdfast.types import NS, AcquireRequest, AuditRecord, Busy, Grant, Guarantee, Holding, Ownership, Renewal

T = TypeVar("T")

CAPABILITIES: Final = Capabilities(
    engine="sqlite", guarantee=Guarantee.FENCED, wakeups=SUPPORTED, fair=True, durable=True, shared=True, many=True
)
HINT_NS: Final = 2 * NS  # what registering and unregistering a listener may take


def _left_ns(until_ns: int) -> int:
    """What is left of a call's time, however many steps it takes."""
    return max(0, until_ns - time.monotonic_ns())


class SqliteColor(Protocol):
    """How the blocking steps of the leases are done, and how one waits for a hint."""

    def caller(self) -> Hashable:
        """Who is calling: the thread, or the task."""
        ...

    async def run(self, work: Callable[[int], T], timeout_ns: int) -> T:
        """Do one step, which gets the rest of its time limit."""
        ...

    async def watch(self, store: SqliteStore, key: str, timeout_ns: int) -> Watch:
        """Make a subscription for one waiter."""
        ...

    async def close(self) -> None:
        """Close threads and sockets."""
        ...


class SqliteStore:
    """`ports.Store` on one file, in one color."""

    def __init__(self, leases: LeaseTable, notifier: SocketNotifier, color: SqliteColor) -> None:
        self.leases = leases
        self._many = LeaseBatch(leases)
        self._carrier: TransactionHost | None = None
        self._made = False  # whether the tables are there, for another connection to use
        self._notifier = notifier
        self._color = color
        self._listening: dict[tuple[Hashable, str], str] = {}  # (caller, key) -> where that caller listens
        self._registered: dict[str, tuple[Hashable, str]] = {}  # and back: the addresses that are in the file

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return CAPABILITIES

    def ownership(self, grant: Grant, schema: str | None) -> Ownership:
        """See `ports.SharesDatabase`."""
        return self.leases.ownership(grant, schema)

    def within(self, database: str) -> SqliteTransactionLocks | None:
        """See `ports.LocksInTransaction`. The tables are there once the store has been used."""
        same = self.leases.file.path == str(Path(database).absolute())
        return SqliteTransactionLocks(self.leases.judge) if same and self._safe_with(self._carrier) else None

    def ride(self, database: object) -> bool:
        """See `ports.SharesTransactions`."""
        if (
            isinstance(database, TransactionHost)
            and database.path == self.leases.file.path
            and self._safe_with(database)
        ):
            self._carrier = database
        return self._carrier is database

    @property
    def rides(self) -> bool:
        """See `ports.SharesTransactions`."""
        return self._carrier is not None

    def granting(self, asks: Sequence[AcquireRequest]) -> Callable[[sqlite3.Connection], list[Grant | Busy]]:
        """See `ports.SharesTransactions`."""
        self.leases.granting(len(asks))  # their release sweeps
        return self._many.granting(asks)

    def _safe_with(self, carrier: TransactionHost | None) -> bool:
        """Whether the commits of another are as safe as ours are asked to be."""
        return self.leases.file.synchronous != "full" or (carrier is not None and carrier.durable)

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        """See `ports.Store.acquire`. A request without a ticket ignores the queue of those with one."""
        # A caller who listens at the key gets the grant and gives up its registration in one transaction.
        address = self._listening.get((self._color.caller(), ask.key), "") if self._listening else ""
        answer = await self._color.run(lambda left: self.leases.acquire(ask, left, address), timeout_ns)
        if address and isinstance(answer, Grant):
            self.stop_listening(address)
        return answer

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """See `ports.Store.renew_many`. All of them or, when it raises, none."""
        return await self._color.run(lambda left: self.leases.renew_many(renewals, left), timeout_ns)

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        """See `ports.Store.release`. The claim is not needed: a table finds the lease by its key."""

        def step(left: int) -> bool:
            until_ns = time.monotonic_ns() + left
            ours, addresses = self.leases.release(key, token, keep_ns, left)
            self._notify(key, addresses, until_ns)
            return ours

        return await self._color.run(step, timeout_ns)

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        """See `ports.AcquiresMany`. All in one transaction."""
        until_ns = time.monotonic_ns() + timeout_ns
        await self._sweep(len(asks), timeout_ns)
        return await self._run_many(self._many.granting(asks), until_ns)

    async def release_many(self, grants: Sequence[Grant], timeout_ns: int) -> list[bool | None]:
        """See `ports.AcquiresMany`. All in one transaction."""
        until_ns = time.monotonic_ns() + timeout_ns
        await self._sweep(0, timeout_ns)
        # What a loss of power undoes is the release of a process that is gone; so no caller waits for the disk.
        full = self.leases.file.synchronous == "full"
        found = await self._run_many(self._many.returning(grants), until_ns, lasting=full)
        waiting = [(grant.key, addresses) for grant, (_, addresses) in zip(grants, found, strict=True) if addresses]
        if waiting:
            with contextlib.suppress(BackendError):  # a hint is not worth an error
                await self._color.run(lambda _: self._ring_all(waiting, until_ns), _left_ns(until_ns))
        return [ours for ours, _ in found]

    async def _sweep(self, grants: int, timeout_ns: int) -> None:
        """Sweep, if that is due with so many grants more."""
        if self.leases.granting(grants):
            with contextlib.suppress(BackendError):  # another time, then
                await self._color.run(self.leases.sweep, timeout_ns)

    async def _run_many(self, step: Callable[[sqlite3.Connection], T], until_ns: int, *, lasting: bool = True) -> T:
        if self._carrier is not None:
            if not self._made:
                await self.ping(_left_ns(until_ns))
                self._made = True
            with contextlib.suppress(Closed):  # it ends before us; then we go by ourselves
                return await carried(self._carrier, step, _left_ns(until_ns), lasting=lasting)
        return await self._color.run(lambda left: self._many.alone(step, left), _left_ns(until_ns))

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """See `ports.Store.inspect`."""
        return await self._color.run(lambda left: self.leases.inspect(key, left), timeout_ns)

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """See `ports.Store.holdings`."""
        return await self._color.run(lambda left: self.leases.holdings(prefix, limit, left, after), timeout_ns)

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        """See `ports.Store.force_release`."""

        def step(left: int) -> AuditRecord | None:
            until_ns = time.monotonic_ns() + left
            record, addresses = self.leases.force_release(key, actor, reason, left)
            self._notify(key, addresses, until_ns)
            return record

        return await self._color.run(step, timeout_ns)

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """See `ports.Store.audit`."""
        return await self._color.run(lambda left: self.leases.audit(limit, left), timeout_ns)

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """See `ports.Store.leave`."""

        def step(left: int) -> None:
            until_ns = time.monotonic_ns() + left
            self._notify(key, self.leases.leave(key, ticket, left), until_ns)

        await self._color.run(step, timeout_ns)

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        """See `ports.Store.watch`."""
        return await self._color.watch(self, key, timeout_ns)

    async def diagnose(self, timeout_ns: int) -> list[StoreFinding]:
        """See `ports.Diagnosable`."""
        await self.ping(timeout_ns)
        return [file_system_finding(self.leases.file.path)]

    async def ping(self, timeout_ns: int) -> None:
        """See `ports.Store.ping`. Takes the write lock for a moment, for a file that can only be read is of no use."""
        await self._color.run(self.leases.ping, timeout_ns)

    async def close(self) -> None:
        """See `ports.Store.close`."""
        await self._color.close()

    # What watches and colors of this package need.

    def stop_waiting(self, key: str, address: str, hinted: bool, timeout_ns: int) -> None:
        """Take a waiter that leaves without a grant out of the file, and hand on the hint that it leaves unread."""
        until_ns = time.monotonic_ns() + timeout_ns
        self.leases.listeners.remove(key, address, timeout_ns)
        if hinted:
            self._notify(key, self.leases.listeners.next(key, _left_ns(until_ns)), until_ns)

    def start_listening(self, key: str, address: str) -> None:
        """Remember where the caller listens."""
        who = (self._color.caller(), key)
        self._registered[address] = who
        self._listening[who] = address

    def stop_listening(self, address: str) -> bool:
        """Remove the registration of a listener. False: it was removed before."""
        who = self._registered.get(address)
        if who is not None and self._listening.get(who) == address:
            self._listening.pop(who, None)
        return self._registered.pop(address, None) is not None  # last: a call that was interrupted is made again

    def _ring_all(self, waiting: Sequence[tuple[str, list[str]]], until_ns: int) -> None:
        for key, addresses in waiting:
            self._notify(key, addresses, until_ns)

    def _notify(self, key: str, addresses: list[str], until_ns: int) -> None:
        """Wake one waiter, and forget those who are dead. A hint is not worth an error."""
        try:
            for address in self._notifier.notify(addresses) if addresses else ():
                self.leases.listeners.remove(key, address, _left_ns(until_ns))
        except (BackendError, OSError):
            return
