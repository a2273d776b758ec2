"""The leases in the SQLite file: each method is one step of `ports.Store`, in one transaction, in plain blocking code.

Promises: exclusion and fences as the port says, between all threads and processes on one machine that open the same
file. A step that raises `Unavailable` or `Misconfigured` has changed nothing.

Clock: the boot-time clock of this machine; `liveness` decides about rows of other boots and machines.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import time
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from holdfast.core.failpoints import reach
from holdfast.core.ports import Clock
from holdfast.errors import BackendError
from holdfast.stores.sqlite.connection import SqliteFile
from holdfast.stores.sqlite.liveness import Host, LivenessJudge, at
from holdfast.stores.sqlite.notify import ListenerTable, addresses_of
from holdfast.stores.sqlite.schema import sql
from holdfast.types import AcquireRequest, AuditRecord, Busy, Grant, Holding, Instant, Ownership, Renewal

ACQUIRE: Final = sql("acquire")
_HOLDER: Final = sql("holder")
_DROP: Final = sql("drop")
RELEASE: Final = sql("release")
_KEEP: Final = sql("keep")
_RENEW: Final = sql("renew")
_RAISE_FENCE: Final = sql("raise_fence")
_RECORD: Final = sql("record")
_AUDIT: Final = sql("audit")
_HOLDINGS: Final = sql("holdings")
_QUEUE_UP: Final = sql("queue_up")
_QUEUE: Final = sql("queue")
_QUEUE_OUT: Final = sql("queue_out")
_UNLISTEN: Final = sql("unlisten")
_LISTENERS: Final = sql("listeners")
_OWNERSHIP: Final = sql("ownership").rpartition("--")[2].partition("\n")[2].strip()  # it becomes part of a line
_SWEEP_PLACE: Final = sql("sweep_place")
_SWEEP_RANGE: Final = sql("sweep_range")
_SWEEP_LEASES: Final = sql("sweep_leases")
_SWEEP_ON: Final = sql("sweep_on")
_SWEEPS: Final = (sql("sweep_tickets"), sql("sweep_listeners"))

# A sweep reads so many leases, and the next one continues behind them, in whatever process it is: however many have
# expired, no caller waits for more than these, which take milliseconds. More are read than granted, so it keeps up.
_SWEEP_ROWS: Final = 2_048
_SWEEP_EVERY: Final = 1_024  # grants
_SWEEP_SOON: Final = 32  # grants, while most of the leases that are read have expired
_LAST: Final = "\U0010ffff"  # sorts after every character that a key may hold

Parameters: TypeAlias = dict[str, Any]


def digest(secret: str) -> str:
    """What is kept of a token or a ticket: enough to recognise it, not enough to use it."""
    return hashlib.sha256(secret.encode()).hexdigest()


class LeaseTable:
    """Every step on the file. A step returns the addresses of the waiters to notify."""

    def __init__(self, file: SqliteFile, clock: Clock) -> None:
        self.file = file
        self.judge = LivenessJudge(file, clock)
        self.listeners = ListenerTable(file, self.judge)
        self._until_sweep = 1  # the first grant sweeps, so that programs that run briefly do their share

    def ownership(self, grant: Grant, schema: str | None) -> Ownership:
        """What is true of the file while no other owner was granted the key, and it was not released.

        Time is left out on purpose: an expired lease has no other owner until a caller takes it, and none can
        while the transaction that asks is open.
        """
        prefix = "" if schema is None else f'"{schema}".'
        parameters: dict[str, str | int] = {
            "holdfast_key": grant.key,
            "holdfast_owned": digest(grant.token),
            "holdfast_at": grant.fence,
        }
        return Ownership(_OWNERSHIP.format(prefix=prefix), parameters, self.file.path)

    # Leases.

    def acquire(self, ask: AcquireRequest, timeout_ns: int, address: str = "") -> Grant | Busy:
        """Grant or say who is in the way. `address` is where the asker listens; a grant ends its registration."""
        token = digest(ask.token)
        if self.granting(1):
            until_ns = time.monotonic_ns() + timeout_ns
            self.sweep(timeout_ns)
            timeout_ns = until_ns - time.monotonic_ns()
        if ask.ticket is None and not address:
            return self.file.run(lambda connection: self._try(connection, ask, token), timeout_ns)
        return self.file.run(lambda connection: self._acquire(connection, ask, token, address), timeout_ns)

    def granting(self, grants: int) -> bool:
        """Some are about to be made. Whether it is time to sweep."""
        self._until_sweep -= grants
        return self._until_sweep <= 0

    def _try(self, connection: sqlite3.Connection, ask: AcquireRequest, token: str) -> Grant | Busy:
        """One statement if the key is free or ours, one more if it is busy, a transaction if its holder is dead."""
        now = self.judge.now()
        parameters = grant_parameters(ask, token, now, self.judge.host)
        granted = _done(connection, ACQUIRE, parameters)
        if granted:
            return Grant(ask.key, ask.token, granted[0][0], "")
        holder = connection.execute(_HOLDER, parameters).fetchone()
        if holder is not None and (left := self.judge.left_ns(holder[3:], now)) > 0:
            return Busy(ask.key, holder[2], left)
        return self._acquire(connection, ask, token, "")

    def _acquire(self, connection: sqlite3.Connection, ask: AcquireRequest, token: str, address: str) -> Grant | Busy:
        connection.execute("BEGIN IMMEDIATE")
        answer = self.judged(connection, ask, token, address, self.judge.now())
        commit(connection)
        return answer

    def judged(
        self, connection: sqlite3.Connection, ask: AcquireRequest, token: str, address: str, now: Instant
    ) -> Grant | Busy:
        """Inside a transaction: check the holder, and grant the key if there is none."""
        key = {"key": ask.key}
        holder = connection.execute(_HOLDER, key).fetchone()
        left = 0 if holder is None else self.judge.left_ns(holder[3:], now)
        if left <= 0 or holder[0] != token:
            ahead = 0 if ask.ticket is None else self._queue_up(connection, ask, address, now)
            if left > 0 or ahead:
                return Busy(ask.key, holder[2], left, ahead) if left > 0 else Busy(ask.key, None, None, ahead)
            if holder is not None:
                connection.execute(_DROP, key)
        ((fence,),) = connection.execute(ACQUIRE, grant_parameters(ask, token, now, self.judge.host)).fetchall()
        if ask.ticket is not None:
            connection.execute(_QUEUE_OUT, {"key": ask.key, "ticket": digest(ask.ticket)})
        if address:
            connection.execute(_UNLISTEN, {"key": ask.key, "address": address})
        return Grant(ask.key, ask.token, fence, "")

    def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """Renew all of them in one transaction."""
        if not renewals:
            return []
        hashed = [(renewal.key, digest(renewal.token), renewal.ttl_ns) for renewal in renewals]
        return self.file.run(lambda connection: self._renew(connection, hashed), timeout_ns)

    def _renew(self, connection: sqlite3.Connection, hashed: Sequence[tuple[str, str, int]]) -> list[bool | None]:
        connection.execute("BEGIN IMMEDIATE")
        now = self.judge.now()  # after the wait for the write lock: a lease that expired meanwhile is not renewed
        clock, process = self.judge.host.clock, self.judge.host.process
        batch = [
            (at(now.boot, ttl_ns), at(now.wall, ttl_ns), clock, process, key, token, clock, now.boot, now.wall)
            for key, token, ttl_ns in hashed
        ]
        renewed = connection.executemany(_RENEW, batch).rowcount
        answers: list[bool | None]
        if renewed == len(batch):
            answers = [True] * renewed
        else:
            # Some were not ours. Renewing the others once more, in the same transaction, tells which.
            answers = [connection.execute(_RENEW, each).rowcount == 1 for each in batch]
        commit(connection)
        return answers

    def release(self, key: str, token: str, keep_ns: int, timeout_ns: int) -> tuple[bool, list[str]]:
        """Compare and delete, or compare and keep. Returns whether it was ours, and whom to wake."""
        now = self.judge.now()
        parameters = release_parameters(key, token, now, self.judge.host)
        if keep_ns > 0:
            parameters |= _expiry(now, keep_ns)
            kept = self.file.run(lambda connection: _done(connection, _KEEP, parameters), timeout_ns)
            return bool(kept), addresses_of(kept[0][0]) if kept else []
        return self.released(self.file.run(lambda connection: _done(connection, RELEASE, parameters), timeout_ns), now)

    def released(self, rows: Sequence[Any], now: Instant) -> tuple[bool, list[str]]:
        """The result of `RELEASE`: whether it was ours, and the addresses of waiters to notify."""
        if not rows:
            return False, []
        clock, expires_ns, expires_wall_ns, addresses = rows[0]
        ours = self.judge.left_ns((clock, "", expires_ns, expires_wall_ns), now) > 0
        return ours, addresses_of(addresses) if addresses else []

    def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> tuple[AuditRecord | None, list[str]]:
        """Break a lease, raise the fence, leave a record. Returns the record, and whom to wake."""
        return self.file.run(lambda connection: self._force_release(connection, key, actor, reason), timeout_ns)

    def _force_release(
        self, connection: sqlite3.Connection, key: str, actor: str, reason: str
    ) -> tuple[AuditRecord | None, list[str]]:
        connection.execute("BEGIN IMMEDIATE")
        now = self.judge.now()
        parameters = {**self._now_parameters(now), "key": key, "place": self.judge.host.place}
        holder = connection.execute(_HOLDER, parameters).fetchone()
        if holder is None or self.judge.left_ns(holder[3:], now) <= 0:
            return None, []
        connection.execute(_DROP, parameters)
        ((fence,),) = connection.execute(_RAISE_FENCE, {"fence_floor": now.wall // 1000}).fetchall()
        record = AuditRecord(now.wall, "force_release", key, actor, reason, holder[2], holder[1], fence)
        connection.execute(
            _RECORD,
            {
                "wall_ns": record.wall_ns,
                "action": record.action,
                "key": key,
                "actor": actor,
                "reason": reason,
                "previous_owner": record.previous_owner,
                "previous_fence": record.previous_fence,
                "fence": fence,
            },
        )
        ((addresses,),) = connection.execute(_LISTENERS, parameters).fetchall()
        commit(connection)
        return record, addresses_of(addresses)

    # What operators ask.

    def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """Return the holder of the key."""
        found = self._holdings(key, key + "\0", 1, timeout_ns)
        return found[0] if found else None

    def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str) -> list[Holding]:
        """Return the holders of the keys that begin with a prefix and sort after another."""
        return self._holdings(max(prefix, after + "\0") if after else prefix, prefix + _LAST, limit, timeout_ns)

    def _holdings(self, first: str, last: str, limit: int, timeout_ns: int) -> list[Holding]:
        now = self.judge.now()
        parameters = {**self._now_parameters(now), "first": first, "last": last, "limit": limit}
        until_ns = time.monotonic_ns() + timeout_ns
        found: list[Holding] = []
        dead: dict[str, bool] = {}  # each process is looked up once, and outside the file's mutex
        while len(found) < limit:  # ends with the last key, for each round begins behind the one before
            left_ns = until_ns - time.monotonic_ns()
            rows = self.file.run(lambda connection: connection.execute(_HOLDINGS, parameters).fetchall(), left_ns)
            for key, owner, fence, family, granted, fingerprint, waiters, clock, process, *expiry in rows:
                left = self.judge.left_ns((clock, "", *expiry), now)
                if left > 0 and len(found) < limit:
                    if process not in dead:
                        dead[process] = self.judge.host.gone(process)
                    if not dead[process]:
                        found.append(Holding(key, owner, fence, family, granted, left, fingerprint, waiters))
            if len(rows) < limit:
                break
            parameters["first"] = rows[-1][0] + "\0"
        return found

    def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """Return the newest records, newest first."""
        parameters = {"limit": max(0, limit)}
        rows = self.file.run(lambda connection: connection.execute(_AUDIT, parameters).fetchall(), timeout_ns)
        return [AuditRecord(*row) for row in rows]

    def ping(self, timeout_ns: int) -> None:
        """Return when the file can be written."""

        def ask(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")

        self.file.run(ask, timeout_ns)

    # Queues.

    def _queue_up(self, connection: sqlite3.Connection, ask: AcquireRequest, address: str, now: Instant) -> int:
        """Make or extend a place, drop the dead ones before it, and count the living."""
        ticket = digest(ask.ticket or "")
        identity = {"clock": self.judge.host.clock, "process": self.judge.host.process, "address": address}
        place = {"key": ask.key, "ticket": ticket, **identity, **_expiry(now, ask.ticket_ttl_ns)}
        connection.execute(_QUEUE_UP, place)
        ahead = 0
        for name, clock, process, *expiry in connection.execute(_QUEUE, {"key": ask.key}).fetchall():
            if name == ticket:
                break
            # Whether its process lives is asked of the head only: no other waiter matters yet, and asking costs.
            if self.judge.left_ns((clock, "" if ahead else process, *expiry), now) > 0:
                ahead += 1
            else:
                connection.execute(_QUEUE_OUT, {"key": ask.key, "ticket": name})
        return ahead

    def leave(self, key: str, ticket: str, timeout_ns: int) -> list[str]:
        """Leave the queue. Returns whom to wake: when the key is free, the next waiter may have it."""
        parameters = {
            "key": key,
            "ticket": digest(ticket),
            "place": self.judge.host.place,
            "wall_ns": self.judge.now().wall,
        }

        def step(connection: sqlite3.Connection) -> list[str]:
            connection.execute("BEGIN IMMEDIATE")
            left = connection.execute(_QUEUE_OUT, parameters).rowcount
            ((addresses,),) = connection.execute(_LISTENERS, parameters).fetchall()
            free = left and connection.execute(_HOLDER, parameters).fetchone() is None
            commit(connection)
            return addresses_of(addresses) if free else []

        return self.file.run(step, timeout_ns)

    def _now_parameters(self, now: Instant) -> Parameters:
        return {"clock": self.judge.host.clock, "now_ns": now.boot, "wall_ns": now.wall}

    def sweep(self, timeout_ns: int) -> None:
        """Drop expired leases that were never asked for again, a piece at a time, in a part of the caller's time."""
        parameters = {**self._now_parameters(self.judge.now()), "most": _SWEEP_ROWS}

        def step(connection: sqlite3.Connection) -> int:
            connection.execute("BEGIN IMMEDIATE")
            ((after,),) = connection.execute(_SWEEP_PLACE).fetchall() or [("",)]
            last, seen = connection.execute(_SWEEP_RANGE, {"after": after, "most": _SWEEP_ROWS}).fetchone()
            dropped = connection.execute(_SWEEP_LEASES, {**parameters, "after": after, "last": last}).rowcount
            connection.execute(_SWEEP_ON, {"place": last if seen == _SWEEP_ROWS else ""})
            for statement in _SWEEPS:
                connection.execute(statement, parameters)
            commit(connection)
            return dropped

        self._until_sweep = _SWEEP_EVERY
        with contextlib.suppress(BackendError):  # another time, then; what the grant itself meets is for the asker
            if self.file.run(step, timeout_ns // 4) > _SWEEP_ROWS // 2:
                self._until_sweep = _SWEEP_SOON


def grant_parameters(ask: AcquireRequest, token: str, now: Instant, host: Host) -> Parameters:
    """Those of `ACQUIRE`."""
    return {
        "key": ask.key,
        "token": token,
        "fence_floor": now.wall // 1000,
        "owner": ask.owner,
        "family": ask.family,
        "wall_ns": now.wall,
        "now_ns": now.boot,
        "expires_ns": at(now.boot, ask.ttl_ns),
        "expires_wall_ns": at(now.wall, ask.ttl_ns),
        "clock": host.clock,
        "process": "" if ask.detached else host.process,
    }


def release_parameters(key: str, token: str, now: Instant, host: Host) -> Parameters:
    """Those of `RELEASE`."""
    return {
        "key": key,
        "token": digest(token),
        "clock": host.clock,
        "place": host.place,
        "now_ns": now.boot,
        "wall_ns": now.wall,
    }


def _expiry(now: Instant, ttl_ns: int) -> Parameters:
    return {"expires_ns": at(now.boot, ttl_ns), "expires_wall_ns": at(now.wall, ttl_ns)}


def _done(connection: sqlite3.Connection, statement: str, parameters: Parameters) -> list[Any]:
    """Run one statement as a transaction of its own. It is committed when its last row was read."""
    with contextlib.closing(connection.execute(statement, parameters)) as cursor:  # one left open would keep the file
        reach("store.sqlite.written")
        return cursor.fetchall()


def commit(connection: sqlite3.Connection) -> None:
    """Make it so."""
    reach("store.sqlite.written")
    connection.execute("COMMIT")
