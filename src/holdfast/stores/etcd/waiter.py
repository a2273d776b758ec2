"""A waiter's position in the queue of one key: `ports.Watch` on etcd.

Each waiter has a key of its own in the queue of its lock, in the order in which these were created. It watches only the
key before its own, and the first one watches the lock. So a release wakes one waiter, whatever the number of waiters;
it acquires, its key goes, and that wakes the next one. The key of a fair waiter is its ticket; that of any other one is
written by the transaction in which its ask found the lock taken.

Promises: a hint is never taken for a grant: a woken waiter asks, and the transaction that grants checks the lock, and
for a fair lock also that the ticket still exists and is the oldest. A watch begins at the revision of the read before
it, so no release falls between the two. Does not promise to be quick behind a waiter that was killed: its key expires
after `WAITER_NS`, and meanwhile those behind it poll.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.errors import BackendError
from holdfast.stores.etcd.gateway import Gateway
from holdfast.stores.etcd.lease_ids import LeaseIds
from holdfast.stores.etcd.lock_value import KeyNames
from holdfast.stores.etcd.messages import Message, created, created_before, delete, get, move, nested, put
from holdfast.types import MS, NS

WAITER_NS: Final = (
    10 * NS
)  # a waiter's key lasts for so long, and is moved to a new lease by every ask after half of it
WAITER_SHARED_NS: Final = 10 * NS
LEAVE_NS: Final = 500 * MS
_LEAST_NS: Final = 20 * MS
_PAUSE_NS: Final = 100 * MS


class Entry(NamedTuple):
    """A waiter's key in a queue."""

    key: bytes
    queue: bytes  # what all keys of the queue begin with
    revision: int  # which created it


def enter(key: bytes, lease: int) -> Message:
    """Join a queue, or stay in it for longer."""
    return nested([created(key, "EQUAL", 0)], [put(key, b"", lease)], [move(key, lease)])


class EtcdWatch:
    """One waiter's position in the queue of one key."""

    __slots__ = (
        "_closed",
        "_forget",
        "_gateway",
        "_leases",
        "_lock",
        "_pid",
        "_until_ns",
        "_waiting",
        "entry",
        "name",
        "own_key",
        "queue",
    )

    def __init__(
        self, gateway: Gateway, leases: LeaseIds, keys: KeyNames, name: str, forget: Callable[[EtcdWatch], None]
    ) -> None:
        self._gateway = gateway
        self._leases = leases
        self._forget = forget
        self._lock = keys.lock(name)
        self._pid = os.getpid()
        self._waiting = False
        self._closed = False
        self._until_ns = 0  # the waiter's own key lasts at least until then
        self.name = name
        self.queue = keys.waiters(name)
        self.own_key = self.queue + secrets.token_hex(8).encode()
        self.entry: Entry | None = None

    @property
    def may_ask(self) -> bool:
        """Whether an ask for the key can be this waiter's: it is not asleep, and of this process."""
        return not self._waiting and self._pid == os.getpid()

    async def joining(self, deadline_ns: int) -> list[Message]:
        """Operations that put the waiter's own key into the queue, or keep it there. The last one reads it."""
        if self.entry is not None and self._gateway.left_ns(self._until_ns) > WAITER_NS // 2:
            return [get(self.own_key)]
        lease = await self._leases.get(self._gateway, WAITER_NS, deadline_ns, WAITER_SHARED_NS)
        self._until_ns = self._gateway.deadline(WAITER_NS)
        return [enter(self.own_key, lease), get(self.own_key)]

    def queued(self, entry: Entry | None) -> None:
        """The position after an ask was answered. None: it is in no queue."""
        self.entry = entry

    async def wait(self, timeout_ns: int) -> bool:
        """See `ports.Watch.wait`. That the key is free is as good as a hint, if it is found out here."""
        self._waiting = True
        deadline = self._gateway.deadline(timeout_ns)
        reading = self._gateway.deadline(max(timeout_ns, _LEAST_NS))
        try:
            while True:
                try:
                    hint = await self._wait_for_the_one_before(reading, deadline)
                except BackendError:  # is no error here: the next ask reports it
                    await self._gateway.sleep(min(_PAUSE_NS, self._gateway.left_ns(deadline)))
                    hint = None
                if hint is not None:
                    return hint
                if not self._gateway.left_ns(deadline):
                    return False
        finally:
            self._waiting = False

    async def _wait_for_the_one_before(self, reading_ns: int, deadline_ns: int) -> bool | None:
        """None: the one before has left the queue, and another one may be there."""
        if self.entry is None and not await self._join(reading_ns):
            return True
        entry = self.entry
        if entry is None:
            return None
        operations = [get(entry.key), created_before(entry.queue, entry.revision, limit=1), get(self._lock)]
        found = await self._gateway.transact(reading_ns, (), operations)
        mine, before, lock = (part.first for part in found.parts)
        if mine is None or mine.created != entry.revision or (before is None and lock is None):
            self.entry = None if mine is None else entry
            return True
        target = self._lock if before is None else before.key
        if not await self._gateway.gone(target, found.revision, deadline_ns):
            return False
        return True if before is None else None

    async def _join(self, deadline_ns: int) -> bool:
        """Join the queue, unless the key is free."""
        joining = await self.joining(deadline_ns)
        found = await self._gateway.transact(deadline_ns, [created(self._lock, "GREATER", 0)], joining)
        mine = found.parts[-1].first if found.succeeded else None
        self.entry = None if mine is None else Entry(self.own_key, self.queue, mine.created)
        return found.succeeded

    async def close(self) -> None:
        """See `ports.Watch.close`. Costs nothing after a grant, which has deleted the key already."""
        if self._closed:
            return
        try:
            if self._pid == os.getpid() and self._until_ns:
                await self._gateway.transact(self._gateway.deadline(LEAVE_NS), (), [delete(self.own_key)])
        except BackendError:
            pass  # it expires
        finally:
            self._forget(self)
        self._closed = True  # not sooner: an interrupted call is made again

    def granted(self) -> None:
        """The transaction that granted the lock has deleted the waiter's own key."""
        self.entry = None
        self._until_ns = 0
