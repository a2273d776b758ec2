"""What a configured deployment stands on, place by place: each carries a mark, and lends a drill a quarter of its own.

A quarter is a part of a place that nobody else uses, under the name of one drill: a schema in Postgres (`schemas`), a
stream on NATS (`streams`), a prefix for the leases in Redis, a file beside a SQLite file. Whatever a drill does, it
does there, so that nothing of anybody else is read or written, though it is the same server and the same disk.

Promises: asking whether a place is marked changes nothing in it; a mark has an end; `clear` takes away everything of a
quarter, and nothing else. Does not promise that fences are as they were: they have risen.
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
_LEASES: Final = "holdfast_lease"  # the table of a file that leases were ever kept in


class Place(ABC):
    """One place of a deployment."""

    def __init__(self, key: str, url: str) -> None:
        """`key`: the setting that names it."""
        self.key = key
        self.shown = redacted(url)
        self._url = url

    @abstractmethod
    def is_marked(self) -> bool:
        """Whether somebody has said that it belongs to a test deployment, and that is not over."""

    @abstractmethod
    def mark(self, seconds: float) -> None:
        """Say so, for so long from now."""

    @abstractmethod
    def unmark(self) -> bool:
        """Say that it does not. False: nobody had said that it does."""

    @abstractmethod
    def quarter(self, name: str) -> str:
        """The URL of the part that belongs to the drill of that name alone."""

    @abstractmethod
    def called(self, name: str) -> str:
        """What that part is, for people."""

    def prepare(self, name: str) -> None:  # noqa: B027 - most quarters are there when they are first used
        """Make the quarter, and see that it is one: a drill that would run outside of it must not begin."""

    @abstractmethod
    def clear(self, name: str) -> None:
        """Take away the quarter and everything in it. There may be none."""

    @abstractmethod
    def sweep(self) -> list[str]:
        """Clear every quarter that there is, whichever drill was killed before it could: what they were called."""


class LeasePlace(Place):
    """Leases on a Redis server, or several (`redlock://`). What a drill that was killed has left runs out by itself."""

    def is_marked(self) -> bool:
        """See `Place`."""
        with _locks(self._url) as locks:
            return permission.is_marked(locks)

    def mark(self, seconds: float) -> None:
        """See `Place`."""
        with _locks(self._url) as locks:
            permission.mark(locks, seconds)

    def unmark(self) -> bool:
        """See `Place`."""
        with _locks(self._url) as locks:
            return permission.unmark(locks)

    def quarter(self, name: str) -> str:
        """See `Place`."""
        given = dict(parse_qsl(self._url.partition("?")[2], keep_blank_values=True)).get("prefix", "")
        return with_option(self._url, "prefix", f"{given}{permission.PREFIX}{name}:")

    def called(self, name: str) -> str:
        """See `Place`."""
        return f"leases below {permission.PREFIX}{name}:"

    def clear(self, name: str) -> None:
        """See `Place`."""
        with _locks(self.quarter(name)) as locks:
            for look in locks.list(limit=_HELD_MAX):
                locks.force_release(look.key, reason="a drill is over")

    def sweep(self) -> list[str]:
        """See `Place`."""
        return []


class FilePlace(Place):
    """A SQLite file, with state or leases. Its mark is a lease in the file; a quarter is a file beside it."""

    @property
    def path(self) -> Path:
        """The file."""
        return Path(unquote(self._head.partition("://")[2])[1:])

    @property
    def _head(self) -> str:
        return self._url.partition("?")[0]  # options of databases are not those of leases

    def is_marked(self) -> bool:
        """See `Place`."""
        if not self._has_leases():
            return False
        with _locks(self._head) as locks:
            return permission.is_marked(locks)

    def mark(self, seconds: float) -> None:
        """See `Place`."""
        with _locks(self._head) as locks:
            permission.mark(locks, seconds)

    def unmark(self) -> bool:
        """See `Place`."""
        if not self._has_leases():
            return False
        with _locks(self._head) as locks:
            return permission.unmark(locks)

    def quarter(self, name: str) -> str:
        """See `Place`."""
        _, mark, options = self._url.partition("?")
        return f"{self._head}.drill-{name}{mark}{options}"

    def called(self, name: str) -> str:
        """See `Place`."""
        return f"file {self.path.name}.drill-{name}"

    def clear(self, name: str) -> None:
        """See `Place`."""
        for each in self.path.parent.glob(f"{escape(self.path.name)}.drill-{name}*"):
            each.unlink(missing_ok=True)

    def sweep(self) -> list[str]:
        """See `Place`."""
        pattern = re.compile(re.escape(self.path.name) + r"\.drill-([0-9a-f]{8})(-[a-z]+)?")
        there = self.path.parent.iterdir() if self.path.parent.is_dir() else ()
        found = sorted({each[1] for path in there if (each := pattern.fullmatch(path.name))})
        for name in found:
            self.clear(name)
        return [self.called(name) for name in found]

    def _has_leases(self) -> bool:
        """Whether a mark can be in it. A file that is not there is not made, nor a table in one that is."""
        if not self.path.exists():
            return False
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True)) as connection:
                words = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
                return connection.execute(words, (_LEASES,)).fetchone() is not None
        except sqlite3.Error:
            return True  # whoever opens it as a store says what is wrong with it


def with_option(url: str, name: str, value: str) -> str:
    """The same URL with an option set, in place of the one that it may have."""
    head, _, query = url.partition("?")
    others = [pair for pair in query.split("&") if pair and pair.partition("=")[0] != name]
    return f"{head}?{'&'.join([*others, f'{name}={quote(value)}'])}"


def _locks(url: str) -> Locks:
    return holdfast.connect(url, service="drill", request_timeout=_REQUEST_S)
