"""Another process: does what it is told over stdin, one JSON line each, and answers with one JSON line each.

Run as `python worker.py URL`. It knows one table with a guarded row (SQLite, `--table FILE`), whose rule is the usual
one: a write is accepted when its fence is at least the stored one.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from typing import Any

import holdfast


class Worker:
    """One lock, at most one lease, one guarded row."""

    def __init__(self, url: str, table: str | None) -> None:
        self.locks = holdfast.connect(url, service="worker", request_timeout=1.0)
        self.table = table
        self.lease: Any = None
        self.token = ""

    def acquire(self, name: str, timeout: float | None = None, **settings: Any) -> dict[str, Any]:
        try:
            self.lease = self.locks.lock(name, **settings).acquire(timeout)
        except holdfast.LockBusy as busy:
            return {"busy": str(busy)}
        except holdfast.BackendError as error:
            return {"failed": str(error)}
        return {"fence": self.lease.fence, "owner": self.lease.owner}

    def take(self, name: str, ttl: float) -> dict[str, Any]:
        self.token = self.locks.acquire_token(name, ttl)
        return {"token": self.token}

    def ensure(self) -> dict[str, Any]:
        return self._tried(self.lease.ensure_held)

    def renew(self) -> dict[str, Any]:
        return self._tried(self.lease.renew)

    def release(self) -> dict[str, Any]:
        return {"released": self.lease.release()}

    def release_token(self, name: str) -> dict[str, Any]:
        return self._tried(lambda: self.locks.release_token(name, self.token))

    def renew_token(self, name: str, ttl: float) -> dict[str, Any]:
        return self._tried(lambda: self.locks.renew_token(name, self.token, ttl))

    def state(self) -> dict[str, Any]:
        return {"held": self.lease.held, "reason": self.lease.lost.reason, "state": self.lease.state}

    def wait_lost(self, timeout: float) -> dict[str, Any]:
        return {"lost": self.lease.lost.wait(timeout), "reason": self.lease.lost.reason}

    def write(self, value: str) -> dict[str, Any]:
        """Write to the guarded row under the fence of the lease, whatever the lease itself thinks."""
        assert self.table is not None
        return {"accepted": guarded_write(self.table, self.lease.fence, value)}

    def work(self, name: str, ttl: float) -> dict[str, Any]:
        """Be in the middle of a block, forever."""
        with self.locks.lock(name, ttl=ttl):
            threading.Event().wait()
        return {}

    def statistics(self) -> dict[str, Any]:
        statistics = self.locks.statistics()
        return {"lost": statistics.lost, "held": statistics.held, "renewed": statistics.renewed}

    def _tried(self, act: Any) -> dict[str, Any]:
        try:
            act()
        except holdfast.HoldfastError as error:
            return {"error": type(error).__name__, "text": str(error), "reason": getattr(error, "reason", None)}
        return {"error": None}


def guarded_write(table: str, fence: int, value: str) -> bool:
    """One statement: match the row and the fence, store value and fence together. No row: a newer fence was seen."""
    connection = sqlite3.connect(table, timeout=30, isolation_level=None)
    try:
        changed = connection.execute(
            "UPDATE guarded SET value = ?, fence = ?, writes = writes + 1 WHERE id = 1 AND fence <= ?",
            (value, fence, fence),
        ).rowcount
        return changed == 1
    finally:
        connection.close()


def make_table(table: str) -> None:
    """A guarded row without a write."""
    connection = sqlite3.connect(table, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE guarded (id INTEGER PRIMARY KEY, value TEXT, fence INTEGER, writes INTEGER)")
    connection.execute("INSERT INTO guarded VALUES (1, '', 0, 0)")
    connection.close()


def main() -> None:
    """Read, do, answer, until the input ends."""
    worker = Worker(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    with worker.locks:
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            answer = getattr(worker, command.pop("do"))(**command)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
