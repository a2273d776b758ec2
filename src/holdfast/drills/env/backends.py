"""The backends of a configured deployment: each can carry a mark, and provides a sandbox for a drill.

A sandbox is a part of a backend that belongs to one drill alone: a schema in Postgres, a stream on NATS, a key prefix
for leases in Redis, a file beside a SQLite file. A drill reads and writes only its sandbox, even though it shares the
server and the disk.

Promises: reading a mark changes nothing; a mark expires; `clear` removes everything in a sandbox, and nothing else.
Does not promise that fences are unchanged: they have risen.
"""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from glob import escape
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

import holdfast
from holdfast.drills import permission
from holdfast.leases.sync.client import Locks
from holdfast.stores.registry import redacted

_REQUEST_S: Final = 5.0
_HELD_MAX: Final = 100_000
_LEASES: Final = "holdfast_lease"  # the table in every file that has ever stored leases


class Backend(ABC):
    """One backend of a deployment."""

    def __init__(self, key: str, url: str) -> None:
        """`key`: the setting with its URL."""
        self.key = key
        self.shown = redacted(url)
        self._url = url

    @abstractmethod
    def is_marked(self) -> bool:
        """Whether an operator has marked it as part of a test deployment, and the mark has not expired."""

    @abstractmethod
    def mark(self, seconds: float) -> None:
        """Mark it for so many seconds."""

    @abstractmethod
    def unmark(self) -> bool:
        """Remove the mark. False: there was none."""

    @abstractmethod
    def quarter(self, name: str) -> str:
        """The URL of the sandbox of the drill with that name."""

    @abstractmethod
    def called(self, name: str) -> str:
        """The sandbox as text."""

    def prepare(self, name: str) -> None:  # noqa: B027 - most sandboxes are created at their first use
        """Create the sandbox, and check that connections stay inside it, before the drill begins."""

    @abstractmethod
    def clear(self, name: str) -> None:
        """Remove the sandbox and everything in it, if it exists."""

    @abstractmethod
    def sweep(self) -> list[str]:
        """Remove all sandboxes that killed drills have left, and return their descriptions."""


class LeaseBackend(Backend):
    """Leases on one Redis server, or several (`redlock://`). Leases that a killed drill has left expire."""

    def is_marked(self) -> bool:
        """See `Backend`."""
        with _locks(self._url) as locks:
            return permission.is_marked(locks)

    def mark(self, seconds: float) -> None:
        """See `Backend`."""
        with _locks(self._url) as locks:
            permission.mark(locks, seconds)

    def unmark(self) -> bool:
        """See `Backend`."""
        with _locks(self._url) as locks:
            return permission.unmark(locks)

    def quarter(self, name: str) -> str:
        """See `Backend`."""
        given = dict(parse_qsl(self._url.partition("?")[2], keep_blank_values=True)).get("prefix", "")
        return with_option(self._url, "prefix", f"{given}{permission.PREFIX}{name}:")

    def called(self, name: str) -> str:
        """See `Backend`."""
        return f"leases below {permission.PREFIX}{name}:"

    def clear(self, name: str) -> None:
        """See `Backend`."""
        with _locks(self.quarter(name)) as locks:
            for look in locks.list(limit=_HELD_MAX):
                locks.force_release(look.key, reason="a drill is over")

    def sweep(self) -> list[str]:
        """See `Backend`."""
        return []


class FileBackend(Backend):
    """A SQLite file with state or leases. Its mark is a lease in the file; a sandbox is a file beside it."""

    @property
    def path(self) -> Path:
        """The file."""
        return Path(unquote(self._head.partition("://")[2])[1:])

    @property
    def _head(self) -> str:
        return self._url.partition("?")[0]  # database options differ from lease options

    def is_marked(self) -> bool:
        """See `Backend`."""
        if not self._has_leases():
            return False
        with _locks(self._head) as locks:
            return permission.is_marked(locks)

    def mark(self, seconds: float) -> None:
        """See `Backend`."""
        with _locks(self._head) as locks:
            permission.mark(locks, seconds)

    def unmark(self) -> bool:
        """See `Backend`."""
        if not self._has_leases():
            return False
        with _locks(self._head) as locks:
            return permission.unmark(locks)

    def quarter(self, name: str) -> str:
        """See `Backend`."""
        _, mark, options = self._url.partition("?")
        return f"{self._head}.drill-{name}{mark}{options}"

    def called(self, name: str) -> str:
        """See `Backend`."""
        return f"file {self.path.name}.drill-{name}"

    def clear(self, name: str) -> None:
        """See `Backend`."""
        for each in self.path.parent.glob(f"{escape(self.path.name)}.drill-{name}*"):
            each.unlink(missing_ok=True)

    def sweep(self) -> list[str]:
        """See `Backend`."""
        pattern = re.compile(re.escape(self.path.name) + r"\.drill-([0-9a-f]{8})(-[a-z]+)?")
        there = self.path.parent.iterdir() if self.path.parent.is_dir() else ()
        found = sorted({each[1] for path in there if (each := pattern.fullmatch(path.name))})
        for name in found:
            self.clear(name)
        return [self.called(name) for name in found]

    def _has_leases(self) -> bool:
        """Whether the file can contain a mark. Creates neither a missing file nor a missing table."""
        if not self.path.exists():
            return False
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True)) as connection:
                words = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
                return connection.execute(words, (_LEASES,)).fetchone() is not None
        except sqlite3.Error:
            return True  # opening it as a store reports the problem


def with_option(url: str, name: str, value: str) -> str:
    """The same URL with an option set or replaced."""
    head, _, query = url.partition("?")
    others = [pair for pair in query.split("&") if pair and pair.partition("=")[0] != name]
    return f"{head}?{'&'.join([*others, f'{name}={quote(value)}'])}"


def _locks(url: str) -> Locks:
    return holdfast.connect(url, service="drill", request_timeout=_REQUEST_S)
