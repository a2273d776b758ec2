"""Leases in one SQLite file: for all threads and processes of one machine, without a server.

Promises: exclusion and rising fences between all processes that open the same file, through crashes of any of them; the
lease of a killed process is free immediately, not after its TTL; a fair queue; notifications on Linux.

Does not promise: anything across machines (a file on a network file system causes a warning), or to answer while
another program holds a long write transaction in the same file: then calls end with `Unavailable`.

Clock: the boot-time clock of the machine; see `liveness`.

| Module | Contains |
|---|---|
| `store` | the port, in one color |
| `lease_table`, `schema`, `sql/` | every step on the tables |
| `transactions` | many leases in one transaction, also in one of another writer |
| `liveness` | which rows belong to live processes |
| `connection`, `errors`, `mounts` | the file: opening, waiting, forks, errors |
| `colors`, `worker_thread` | threads and event loops |
| `notify`, `notify_socket` | notifications between processes |
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import parse_qsl, unquote

from holdfast.core.duration_text import parse_duration_ns
from holdfast.core.ports import Capabilities, Clock
from holdfast.errors import BadInput
from holdfast.runtime.system import SystemClock
from holdfast.stores.registry import redacted
from holdfast.stores.sqlite.colors import LoopColor, ThreadColor
from holdfast.stores.sqlite.connection import SqliteFile
from holdfast.stores.sqlite.lease_table import LeaseTable
from holdfast.stores.sqlite.notify import SocketNotifier
from holdfast.stores.sqlite.store import CAPABILITIES, SqliteStore

__all__ = ["CAPABILITIES", "SqliteEngine", "SqliteStore", "open_engine"]

_SYNCHRONOUS: Final = ("normal", "full")
_OPTIONS: Final = ("busy_timeout", "synchronous")
_FIX: Final = "use sqlite:///name.db or sqlite:////absolute/path.db"


class SqliteEngine:
    """One file, its stores in both colors, and what they share in this process: a connection and a notifier."""

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "normal",
        busy_timeout_ns: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        if synchronous not in _SYNCHRONOUS:
            raise BadInput("synchronous", f"{synchronous!r} is not a way to commit", "use normal or full")
        self._file = SqliteFile(path, synchronous=synchronous, busy_timeout_ns=busy_timeout_ns)
        self._leases = LeaseTable(self._file, clock or SystemClock())
        self._notifier = SocketNotifier()
        self._blocking = SqliteStore(self._leases, self._notifier, ThreadColor(self.close))

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._file.path

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return CAPABILITIES

    @property
    def blocking(self) -> SqliteStore:
        """The store for ordinary code and for the renewer."""
        return self._blocking

    def asynchronous(self) -> SqliteStore:
        """Make a store for the running event loop, with a thread of its own until it is closed."""
        color = LoopColor(asyncio.get_running_loop(), "holdfast-sqlite", self.close)
        return SqliteStore(self._leases, self._notifier, color)

    def close(self) -> None:
        """Close the connection. Idempotent; the next call opens it again. The leases stay in the file."""
        self._file.close()
        self._notifier.close()


def open_engine(url: str) -> SqliteEngine:
    """`sqlite:///leases.db` is a file in the working directory, `sqlite:////var/lib/leases.db` an absolute path.

    Options: `?synchronous=normal|full` and `?busy_timeout=SECONDS` (the longest wait for another writer). Nothing is
    opened yet: the file is made, or refused, by the first call.
    """
    head, _, query = url.partition("?")
    scheme, mark, rest = head.partition("://")
    if scheme.lower() != "sqlite" or not mark or not rest.startswith("/"):
        raise BadInput("url", f"{redacted(url)!r} does not name a file", _FIX)
    path = unquote(rest[1:])
    if not path or path.endswith("/"):
        raise BadInput("url", f"{redacted(url)!r} has no file name", _FIX)
    if path == ":memory:" or path.startswith("file:"):
        raise BadInput(
            "url",
            f"{redacted(url)!r} is not a file that other processes can open",
            "use memory:// for leases of one process",
        )
    if "\0" in path:
        raise BadInput("url", "the file name contains a zero byte", "remove it")
    options = _options(query)
    busy = options.get("busy_timeout")
    return SqliteEngine(
        path,
        synchronous=options.get("synchronous", "normal"),
        busy_timeout_ns=None if busy is None else parse_duration_ns("busy_timeout", busy),
    )


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise BadInput("url", f"{name!r} is not an option of sqlite://", f"use {' or '.join(_OPTIONS)}")
        if name in options:
            raise BadInput("url", f"{name!r} is given twice", "give it once")
        options[name] = value.lower()
    return options
