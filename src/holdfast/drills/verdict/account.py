"""The resource that a drill protects: balances in a SQLite file, with or without a guard, that keep their own record.

Promises: the table itself records every accepted change (by triggers, in the transaction of the change), in the order
of the file, with the fence of its writer and the version that the writer had read. So the checker does not depend on
reports of workers, which may die. Refused steps change nothing; the guard records them through the worker's ledger.


Clock: the wall clock of the host, never going back within one file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from holdfast.aio.lease import Lease as AioLease
from holdfast.core.failpoints import reach
from holdfast.core.history.events import EventKind, Record
from holdfast.core.ports import Observer
from holdfast.drills.model import Guard
from holdfast.errors import FencedOut, LeaseLost
from holdfast.guards import CarriedFence
from holdfast.guards.settings import sql
from holdfast.guards.sqlite import GuardedTable
from holdfast.leases.sync.lease import Lease

_SQL = files("holdfast.drills.verdict") / "account.sql"
_READ = "SELECT balance, version FROM account WHERE key = ?"
_WRITE = (
    "UPDATE account SET balance = :balance, version = :version, based_on = :based_on, writer = :writer, "
    "carried = :carried WHERE key = :key"
)
_DEEDS = "SELECT kind, at_ns, key, writer, carried, version, based_on FROM deed ORDER BY id"
WAIT_S = 30.0


class Balance(NamedTuple):
    """A stored balance."""

    balance: int
    version: int


class Account:
    """One connection to the balances. Each worker has one, and the director of the drill another."""

    def __init__(
        self,
        path: Path,
        guard: Guard,
        observer: Observer | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`now_ns`: the clock, if that of this process is moved."""
        self._guard = guard
        self._connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
        self._connection.create_function("now_ns", 0, now_ns)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")  # the file is deleted after the drill
        # KiB. A cache that fills for the whole soak would count as growth.
        self._connection.execute("PRAGMA cache_size = -256")
        self._connection.executescript(f"{_SQL.read_text(encoding='utf-8')};{sql('ledger_sqlite')}")
        self._table = GuardedTable(self._connection, "account", id="key", key="{key}", observer=observer)

    def open(self, key: str) -> None:
        """Create a balance of 0, unless it exists."""
        self._connection.execute("INSERT OR IGNORE INTO account (key) VALUES (?)", (key,))

    def read(self, lease: Lease | AioLease) -> Balance | None:
        """The current balance; a full guard registers the fence first. None: a newer fence was registered."""
        if self._guard is Guard.ON:
            try:
                self._table.enter(lease, lease.key)
            except (FencedOut, LeaseLost):
                return None
        return self.inspect(lease.key)

    def write(self, lease: Lease | AioLease, new: Balance, based_on: int, writer: str, *, deaf: bool = False) -> bool:
        """Write. False: it was refused. `deaf`: without checking whether the lease is still held."""
        values: dict[str, int | str] = {**new._asdict(), "based_on": based_on, "writer": writer, "carried": lease.fence}
        if self._guard is Guard.OFF:
            return self._write_unguarded(lease, values, deaf=deaf)
        bearer = CarriedFence(lease.key, lease.fence) if deaf else lease
        try:
            self._table.update(bearer, lease.key, values)
        except (FencedOut, LeaseLost):
            return False
        return True

    def _write_unguarded(self, lease: Lease | AioLease, values: dict[str, int | str], *, deaf: bool) -> bool:
        """Careful code without a guard: check the lease, then write. Anything can happen in between."""
        if not deaf and not lease.held:
            return False
        reach("guard.admitted")
        self._connection.execute(_WRITE, {**values, "key": lease.key})
        return True

    def inspect(self, key: str) -> Balance:
        """The current balance, read-only."""
        balance, version = self._connection.execute(_READ, (key,)).fetchone()
        return Balance(balance, version)

    def history(self) -> list[Record]:
        """Every accepted change, as recorded by the file."""
        return [
            Record(EventKind(kind), at_ns, key, "drill", writer, carried, value=version, based_on=based_on)
            for kind, at_ns, key, writer, carried, version, based_on in self._connection.execute(_DEEDS)
        ]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
