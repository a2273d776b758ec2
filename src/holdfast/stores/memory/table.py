"""The table behind the memory store: every lease of one engine, and every step on it, under one mutex.

Promises: each public method is one atomic step, from any thread; listeners are called outside the mutex. Nothing is
kept that has expired for long. In a forked child a table is empty, for its leases are the parent's.

Clock: expiry is judged on the `boot` reading of the table's own clock, which counts suspend; holders judge by
`elapsed_ns`, which is never less, so a holder lets go before the table does. Fences and the times shown to operators
use its `wall` reading. The clock is passed in, so that the simulator runs this very table in virtual time.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from holdfast.core.lease.fencing import Count
from holdfast.core.ports import Clock
from holdfast.errors import Unavailable
from holdfast.runtime.system import SystemClock
from holdfast.runtime.thread_runtime import Mutex
from holdfast.types import AcquireRequest, AuditRecord, Busy, Grant, Holding, Instant, Renewal, fingerprint

AUDIT_MAX = 1000  # the oldest records make room: a process that lives for months must not grow by them
_SWEEP_MIN = 256  # below so many keys it does not matter that expired ones lie around

Listener = Callable[[], None]

# Every table of this process, for the fork hook below.
_tables: weakref.WeakSet[MemoryTable] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One granted key."""

    token: str
    owner: str
    family: str
    fence: int
    granted_wall_ns: int
    expires_ns: int  # on the boot clock
    kept: bool = False  # released, and kept for a while: it matches no token any more

    def owned_by(self, token: str) -> bool:
        """Whether this is the lease that the token was granted."""
        return self.token == token and not self.kept


@dataclass(slots=True)
class _State:
    """Everything a table knows. Entries are immutable, so a copy of the containers is a copy of all."""

    entries: dict[str, _Entry] = field(default_factory=dict)
    queues: dict[str, dict[str, int]] = field(default_factory=dict)  # key -> ticket -> expiry, in order of arrival
    count: Count = field(default_factory=Count)  # of fences
    audit: deque[AuditRecord] = field(default_factory=lambda: deque(maxlen=AUDIT_MAX))

    def copy(self) -> _State:
        queues = {key: dict(queue) for key, queue in self.queues.items()}
        return _State(dict(self.entries), queues, self.count, self.audit.copy())


class TableSnapshot:
    """What a table held at one moment. Opaque: made by `MemoryTable.snapshot`, taken back by `restore`."""

    __slots__ = ("_state",)

    def __init__(self, state: _State) -> None:
        self._state = state


class MemoryTable:
    """The state behind any number of memory stores, sync and asyncio, on any thread. Every method is atomic."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._mutex = Mutex()
        self._state = _State()
        self._listeners: dict[str, dict[Listener, None]] = {}
        self._sweep_at = _SWEEP_MIN
        _tables.add(self)

    # What a store asks.

    def acquire(self, ask: AcquireRequest) -> Grant | Busy:
        """Grant, grant again, or say who is in the way."""
        self._refuse_reentry()
        with self._mutex:
            now = self._clock.now()
            entry = self._live(ask.key, now)
            if entry is not None and entry.owned_by(ask.token):
                fence = self._raise_to(max(entry.fence, ask.floor), now)
                self._state.entries[ask.key] = replace(entry, expires_ns=now.boot + ask.ttl_ns, fence=fence)
                return Grant(ask.key, ask.token, fence, "")
            ahead = 0 if ask.ticket is None else self._line_up(ask.key, ask.ticket, ask.ticket_ttl_ns, now)
            if entry is not None:
                return Busy(ask.key, entry.owner, entry.expires_ns - now.boot, ahead)
            if ahead:
                return Busy(ask.key, None, None, ahead)
            if ask.ticket is not None:
                self._step_out(ask.key, ask.ticket)
            if ask.floor:
                fence = self._raise_to(max(self._state.count.fence + 1, ask.floor), now)
            else:
                fence = self._next_fence(now, ask.token)
            if len(self._state.entries) + len(self._state.queues) >= self._sweep_at:
                self._sweep(now)
            self._state.entries[ask.key] = _Entry(
                ask.token, ask.owner, ask.family, fence, now.wall, now.boot + ask.ttl_ns
            )
            return Grant(ask.key, ask.token, fence, "")

    def renew(self, renewals: Iterable[Renewal]) -> list[bool | None]:
        """Set the expiry of each key that still has its token."""
        self._refuse_reentry()
        with self._mutex:
            now = self._clock.now()
            return [self._renew(renewal, now) for renewal in renewals]

    def release(self, key: str, token: str, keep_ns: int) -> bool:
        """Compare and delete, or compare and keep for a while without an owner."""
        self._refuse_reentry()
        with self._mutex:
            now = self._clock.now()
            entry = self._live(key, now)
            if entry is None or not entry.owned_by(token):
                return False
            if keep_ns > 0:
                # A late renewal or a repeated release of the same token must not touch the time the key is kept.
                self._state.entries[key] = replace(
                    entry, kept=True, expires_ns=min(entry.expires_ns, now.boot + keep_ns)
                )
                return True
            del self._state.entries[key]
            listeners = list(self._listeners.get(key, ()))
        for listener in listeners:
            listener()
        return True

    def inspect(self, key: str) -> Holding | None:
        """Return what is known about one key."""
        with self._mutex:
            now = self._clock.now()
            entry = self._live(key, now)
            return None if entry is None else self._holding(key, entry, now)

    def holdings(self, prefix: str, limit: int, after: str = "") -> list[Holding]:
        """Return what is known about every key that begins with `prefix` and sorts after `after`."""
        with self._mutex:
            now = self._clock.now()
            found = sorted(
                (key, entry)
                for key, entry in self._state.entries.items()
                if key.startswith(prefix) and key > after and entry.expires_ns > now.boot
            )
            return [self._holding(key, entry, now) for key, entry in found[: max(0, limit)]]

    def force_release(self, key: str, actor: str, reason: str) -> AuditRecord | None:
        """Take the key from its holder, raise the fence, write it down."""
        self._refuse_reentry()
        with self._mutex:
            now = self._clock.now()
            entry = self._live(key, now)
            if entry is None:
                return None
            del self._state.entries[key]
            fence = self._next_fence(now, f"{now.wall} {entry.token}")
            record = AuditRecord(now.wall, "force_release", key, actor, reason, entry.owner, entry.fence, fence)
            self._state.audit.append(record)
            listeners = list(self._listeners.get(key, ()))
        for listener in listeners:
            listener()
        return record

    def audit(self, limit: int) -> list[AuditRecord]:
        """Return the newest records, newest first."""
        with self._mutex:
            return list(reversed(self._state.audit))[: max(0, limit)]

    def leave(self, key: str, ticket: str) -> None:
        """Leave the queue. When the key is free, the waiters behind it are notified: one of them may have it now."""
        self._refuse_reentry()
        with self._mutex:
            known = self._step_out(key, ticket)
            free = self._live(key, self._clock.now()) is None
            listeners = list(self._listeners.get(key, ())) if known and free else []
        for listener in listeners:
            listener()

    def listen(self, key: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` whenever `key` may have become free, outside the mutex. Returns the way out."""
        with self._mutex:
            self._listeners.setdefault(key, {})[listener] = None
        return partial(self.unlisten, key, listener)

    def unlisten(self, key: str, listener: Listener) -> None:
        """No longer call it."""
        with self._mutex:
            listeners = self._listeners.get(key, {})
            listeners.pop(listener, None)
            if not listeners:
                self._listeners.pop(key, None)

    # What a simulated world does to it.

    def forget(self) -> None:
        """Lose everything, as a server without persistence does at a restart. The wall clock keeps fences rising."""
        with self._mutex:
            self._state = _State()
            self._sweep_at = _SWEEP_MIN

    def snapshot(self) -> TableSnapshot:
        """Everything the table knows now, for `restore`: a backup, or a replica that lags behind."""
        with self._mutex:
            return TableSnapshot(self._state.copy())

    def restore(self, snapshot: TableSnapshot) -> None:
        """Go back to a snapshot, as a failover to a lagging replica does. The wall clock keeps the fences rising."""
        with self._mutex:
            self._state = snapshot._state.copy()  # noqa: SLF001 - the two belong together

    def _refuse_reentry(self) -> None:
        """Refuse a signal handler that interrupted a step on this thread: what it changed would be overwritten."""
        if self._mutex._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - what `threading.Condition` asks too
            raise Unavailable("the table is in use by the call that this signal handler interrupted")

    # All below is called with the mutex held.

    def _live(self, key: str, now: Instant) -> _Entry | None:
        entry = self._state.entries.get(key)
        return entry if entry is not None and entry.expires_ns > now.boot else None

    def _next_fence(self, now: Instant, secret: str) -> int:
        """Rise above every earlier fence. Wall time in µs is the floor: a table that forgot does not go back."""
        self._state.count = self._state.count.next(now.wall // 1000, secret)
        return self._state.count.fence

    def _raise_to(self, fence: int, now: Instant) -> int:
        """Count on from this fence, which came from the clock of another node of a quorum, if it is the highest."""
        if fence > self._state.count.fence:
            self._state.count = Count(fence, now.wall // 1000)
        return fence

    def _renew(self, renewal: Renewal, now: Instant) -> bool:
        entry = self._live(renewal.key, now)
        if entry is None or not entry.owned_by(renewal.token):
            return False
        self._state.entries[renewal.key] = replace(entry, expires_ns=now.boot + renewal.ttl_ns)
        return True

    def _line_up(self, key: str, ticket: str, ttl_ns: int, now: Instant) -> int:
        """Make or extend a place in the queue, and count the living before it. The dead lose their place here."""
        queue = self._state.queues.setdefault(key, {})
        for name in [name for name, expires_ns in queue.items() if expires_ns <= now.boot]:
            del queue[name]
        queue[ticket] = (
            now.boot + ttl_ns
        )  # a known ticket keeps its place: a dictionary keeps the first insertion's order
        return list(queue).index(ticket)

    def _step_out(self, key: str, ticket: str) -> bool:
        queue = self._state.queues.get(key, {})
        if queue.pop(ticket, None) is None:
            return False
        if not queue:
            del self._state.queues[key]
        return True

    def _holding(self, key: str, entry: _Entry, now: Instant) -> Holding:
        tickets = sum(expires_ns > now.boot for expires_ns in self._state.queues.get(key, {}).values())
        return Holding(
            key=key,
            owner=entry.owner,
            fence=entry.fence,
            family=entry.family,
            granted_wall_ns=entry.granted_wall_ns,
            remaining_ns=entry.expires_ns - now.boot,
            fingerprint=fingerprint(entry.token),
            waiters=max(tickets, len(self._listeners.get(key, {}))),  # a fair waiter has a ticket and listens too
        )

    def _sweep(self, now: Instant) -> None:
        """Drop what has expired, each time the table has doubled: constant cost per grant, and nothing leaks."""
        state = self._state
        state.entries = {key: entry for key, entry in state.entries.items() if entry.expires_ns > now.boot}
        state.queues = {
            key: queue for key, queue in state.queues.items() if any(until > now.boot for until in queue.values())
        }
        self._sweep_at = max(_SWEEP_MIN, 2 * (len(state.entries) + len(state.queues)))

    def _after_fork(self) -> None:
        """In a child: another thread of the parent may have held the mutex, and the leases are the parent's."""
        self._mutex = Mutex()
        self._state = _State(count=self._state.count)
        self._listeners = {}


def _after_fork() -> None:
    for table in list(_tables):
        table._after_fork()  # noqa: SLF001 - the hook of this module's own class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
