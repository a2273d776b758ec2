"""The waiters in the file: who wants a hint when a key may be free, and where they listen.

Promises: what was registered before a release committed is seen by that release. Does not promise that a hint arrives;
see `sqlite_wakeups`. Clock: the wall clock, for forgetting those who have not said for long that they still wait; hints
are not worth more.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from holdfast.stores.sqlite_file import SqliteFile
from holdfast.stores.sqlite_judge import Judge, at
from holdfast.stores.sqlite_schema import sql

_LISTEN: Final = sql("listen")
_LISTEN_ON: Final = sql("listen_on")
_UNLISTEN: Final = sql("unlisten")
_LISTENERS: Final = sql("listeners")


def addresses_of(joined: str | None) -> list[str]:
    """Take apart what a statement returned: addresses, separated by spaces."""
    return joined.split(" ") if joined else []


class Listeners:
    """The registrations of waiters, of all processes."""

    def __init__(self, file: SqliteFile, judge: Judge) -> None:
        self._file = file
        self._judge = judge

    def add(self, key: str, address: str, ttl_ns: int, timeout_ns: int) -> None:
        """Register a waiter."""
        parameters = self._registration(key, address, ttl_ns)
        self._file.run(lambda connection: connection.execute(_LISTEN, parameters), timeout_ns)

    def extend(self, key: str, address: str, ttl_ns: int, timeout_ns: int) -> None:
        """Extend the registration of a waiter, or make it again."""
        parameters = self._registration(key, address, ttl_ns)

        def step(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute(_LISTEN_ON, parameters).rowcount == 0:
                connection.execute(_LISTEN, parameters)
            connection.execute("COMMIT")

        self._file.run(step, timeout_ns)

    def remove(self, key: str, address: str, timeout_ns: int) -> None:
        """Forget a waiter."""
        parameters = {"key": key, "address": address}
        self._file.run(lambda connection: connection.execute(_UNLISTEN, parameters), timeout_ns)

    def next(self, key: str, timeout_ns: int) -> list[str]:
        """Name those to whom a hint about the key would go now."""
        parameters = {"key": key, "place": self._judge.host.place, "wall_ns": self._judge.now().wall}
        rows = self._file.run(lambda connection: connection.execute(_LISTENERS, parameters).fetchall(), timeout_ns)
        return addresses_of(rows[0][0])

    def _registration(self, key: str, address: str, ttl_ns: int) -> dict[str, Any]:
        expires = at(self._judge.now().wall, ttl_ns)
        return {"key": key, "address": address, "place": self._judge.host.place, "expires_wall_ns": expires}
