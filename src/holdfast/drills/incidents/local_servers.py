"""The servers of incidents: Redis, Postgres and NATS, started on free loopback ports and ended by their pid.

Promises: a server is gone when its block ends, and when the process that started it is killed (Linux). Programs come
from the PATH, from the folders of Debian, or from Python packages that contain them. Postgres is started once for all
incidents of a run, each with a database of its own. It refuses to run as root, so root starts it as `nobody`.
Clock: monotonic, for time limits only.
"""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from holdfast.drills.env.redis_server import RedisServer, redis_server, running
from holdfast.drills.env.server_process import free_port, make_postgres_files, nats_program, postgres_program, tied
from holdfast.errors import Misconfigured

_HOST: Final = "127.0.0.1"
_START_S: Final = 60.0
_LOOK_S: Final = 0.02
_LOG_CHARS: Final = 500
_POSTGRES: Final = {
    "listen_addresses": _HOST,
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "max_connections": "60",
}


class LocalServer:
    """One server process that can be ended, stopped, and started again on the same port."""

    def __init__(self, directory: Path, answers: Callable[[int], bool], *, unprivileged: bool = False) -> None:
        """`answers`: whether the server at a port is ready. `unprivileged`: see `tied`."""
        self.port = free_port()
        self._directory = directory
        self._answers = answers
        self._unprivileged = unprivileged
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process. `Misconfigured`: it does not run."""
        if self._process is None:
            raise Misconfigured("the server is not running")
        return self._process.pid

    def start(self, words: Sequence[str]) -> None:
        """Start, and wait until it answers."""
        log = self._directory / "log"
        self._process = tied(words, self._directory, unprivileged=self._unprivileged)
        limit = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < limit:
            if self._answers(self.port):
                return
            time.sleep(_LOOK_S)  # between two checks of another process
        self.end()
        raise Misconfigured(f"{words[0]} does not start here: {log.read_text(errors='replace')[-_LOG_CHARS:]}")

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it as a crash does."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
            try:
                process.wait(_START_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class LocalPostgres(LocalServer):
    """A Postgres server."""

    def __init__(self, directory: Path) -> None:
        """Creates its files. The caller starts and ends it."""
        super().__init__(directory, _greets, unprivileged=True)
        self._programs = _postgres_programs()
        make_postgres_files(self._programs / "initdb", directory)

    def up(self) -> None:
        """Start it, or start it again."""
        said = {**_POSTGRES, "port": str(self.port), "unix_socket_directories": ""}
        options = [word for name, value in said.items() for word in ("-c", f"{name}={value}")]
        self.start([str(self._programs / "postgres"), "-D", str(self._directory / "data"), *options])

    def down(self) -> None:
        """End it and its children immediately."""
        self.end(signal.SIGQUIT)

    def url(self, database: str) -> str:
        """The URL of a database."""
        return f"postgresql://postgres@{_HOST}:{self.port}/{database}"

    def connect(self, database: str) -> Any:
        """A connection of the driver, which commits every statement. The caller closes it."""
        import psycopg

        return psycopg.connect(self.url(database), autocommit=True)

    def database(self) -> str:
        """Create a database; its name."""
        from psycopg import sql

        name = f"incident_{secrets.token_hex(4)}"
        with self.connect("postgres") as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return name


class LocalNats(LocalServer):
    """A NATS server with JetStream."""

    def __init__(self, directory: Path) -> None:
        """The caller starts and ends it."""
        super().__init__(directory, _informs)

    def up(self) -> None:
        """Start it, or start it again."""
        store = ("--jetstream", "--store_dir", str(self._directory / "store"))
        self.start([nats_program(), "--addr", _HOST, "--port", str(self.port), *store])

    @property
    def url(self) -> str:
        """The URL, with a stream of its own."""
        return f"nats://{_HOST}:{self.port}"


class IncidentServers:
    """Starts servers for incidents, for the duration of a block."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    @contextmanager
    def redis(self, *options: str) -> Iterator[RedisServer]:
        """A Redis server of one incident."""
        with self._folder() as folder, running(redis_server(), folder, *options) as server:
            yield server

    @contextmanager
    def nats(self) -> Iterator[LocalNats]:
        """A NATS server of one incident."""
        with self._folder() as folder:
            server = LocalNats(folder)
            try:
                server.up()
                yield server
            finally:
                server.end()

    @cached_property
    def postgres(self) -> LocalPostgres:
        """The Postgres server of all incidents."""
        server = LocalPostgres(self._stack.enter_context(self._folder()))
        self._stack.callback(server.down)
        server.up()
        return server

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """A directory that another user can reach: that of a drill is private."""
        with tempfile.TemporaryDirectory(prefix="holdfast-incident-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _greets(port: int) -> bool:
    """Whether a Postgres accepts sessions: it does not while it recovers."""
    import psycopg

    with suppress(psycopg.Error), psycopg.connect(f"postgresql://postgres@{_HOST}:{port}/postgres", connect_timeout=2):
        return True
    return False


def _informs(port: int) -> bool:
    with suppress(OSError), socket.create_connection((_HOST, port), 1.0) as line:
        return b'"jetstream":true' in line.recv(4096)
    return False


def _postgres_programs() -> Path:
    """The folder of `initdb` and `postgres`. `Misconfigured`: there is none, or no driver."""
    if find_spec("psycopg") is None:
        raise Misconfigured("this needs a driver for Postgres: pip install 'holdfast[postgres-binary]'")
    return Path(postgres_program()).parent
