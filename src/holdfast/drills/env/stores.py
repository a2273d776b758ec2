"""The store of a drill: its own SQLite file or Redis server, or a given one that is marked.

Promises: started servers are ended by their pid, and their files removed. On a given server, only the drill's own keys
are changed. A drill that cuts or slows the link to the store uses its own link: a proxy in front of Redis, or the write
lock of the SQLite file. Other drills connect directly, even with TLS.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import holdfast
from holdfast.drills.env.proxy import FaultProxy
from holdfast.drills.env.redis_server import redis_server, running
from holdfast.drills.model import DrillPlan
from holdfast.drills.permission import check_marked
from holdfast.errors import BadInput
from holdfast.stores.redis.url import parse_redis_url
from holdfast.stores.registry import redacted

_START_S: Final = 20.0
OWN: Final = ("sqlite", "redis")


class StoreLink(ABC):
    """The link between the workers of a drill and the store, and its faults."""

    def __init__(self, url: str, shown: str) -> None:
        self.url = url
        self.shown = shown

    @abstractmethod
    def cut(self) -> None:
        """Make the store unreachable for all workers."""

    @abstractmethod
    def mend(self) -> None:
        """Make it reachable again."""

    def delay(self, seconds: float) -> None:
        """Delay all traffic by so much, each way. Only with a network."""
        raise BadInput("url", f"{self.shown} is not behind a network", "use --url redis://… or --store redis")


class FileLink(StoreLink):
    """A SQLite file: the holder of its write lock blocks all other processes."""

    def __init__(self, url: str, shown: str) -> None:
        super().__init__(url, shown)
        self._path = unquote(url.removeprefix("sqlite:///").partition("?")[0])
        self._connection: sqlite3.Connection | None = None

    def cut(self) -> None:
        """See `StoreLink`."""
        self._connection = sqlite3.connect(self._path, timeout=_START_S, isolation_level=None)
        self._connection.execute("BEGIN IMMEDIATE")

    def mend(self) -> None:
        """See `StoreLink`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class DirectLink(StoreLink):
    """A direct connection to a server, for drills that break something else."""

    def cut(self) -> None:
        """See `StoreLink`."""
        raise BadInput("url", f"the drill has no proxy between its workers and {self.shown}", "use another drill")

    def mend(self) -> None:
        """See `StoreLink`."""


class ProxyLink(StoreLink):
    """A server behind a proxy."""

    def __init__(self, url: str, shown: str, proxy: FaultProxy) -> None:
        super().__init__(url, shown)
        self._proxy = proxy

    def cut(self) -> None:
        """See `StoreLink`."""
        self._proxy.cut()

    def mend(self) -> None:
        """See `StoreLink`."""
        self._proxy.mend()

    def delay(self, seconds: float) -> None:
        """See `StoreLink`."""
        self._proxy.delay(seconds)


@contextmanager
def opened(plan: DrillPlan, directory: Path, *, network: bool = False, cuts: bool = True) -> Iterator[StoreLink]:
    """The store of a plan, for the duration of the block.

    `network`: the store must support delays. `cuts`: it must be possible to make it unreachable.
    """
    with ExitStack() as stack:
        url, shown = _place(plan, directory, stack, network=network)
        if plan.url is not None:
            with holdfast.connect(url, service="drill", request_timeout=5) as locks:
                if not locks.capabilities.shared:
                    raise BadInput("url", "a memory store is private to one process", "use sqlite:///… or redis://…")
                check_marked(locks, shown)
        way = _way(url, shown, stack, network=network, cuts=cuts)
        stack.callback(way.mend)
        yield way


def _place(plan: DrillPlan, directory: Path, stack: ExitStack, *, network: bool) -> tuple[str, str]:
    """The URL of the store, and its text; starts the drill's own server if needed."""
    if plan.url is not None:
        return plan.url, redacted(plan.url)
    if plan.own == "redis" or network:
        executable = redis_server(", or use a marked one with --url redis://…")
        return stack.enter_context(running(executable, directory / "redis")).url, "its own Redis server"
    return f"sqlite:///{quote(str(directory / 'leases.db'))}", "its own SQLite file"


def _way(url: str, shown: str, stack: ExitStack, *, network: bool, cuts: bool = True) -> StoreLink:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if scheme == "sqlite":
        if network:
            raise BadInput("url", "a SQLite file is not behind a network", "use --url redis://…")
        return FileLink(url, shown)
    if not cuts and not network:
        return DirectLink(url, shown)
    address = parse_redis_url(url)
    if address.tls is not None or address.path is not None:
        raise BadInput(
            "url",
            "this drill needs a proxy between its workers and the server, which supports neither TLS nor a Unix socket",
            "use the same server as redis://host:port",
        )
    proxy = stack.enter_context(FaultProxy((address.host, address.port)))
    login, at, _ = parts.netloc.rpartition("@")
    return ProxyLink(urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{proxy.port}")), shown, proxy)
