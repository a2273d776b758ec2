"""A real PgBouncer in transaction mode, in front of a Postgres server of the tests, reached through a unix socket.

The program is Debian's package, which `make test` installs where it may. Only the process that was started here is
ended, by its pid.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg

from support.polling import pauses
from support.servers.postgres import PostgresServer, as_user

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
PORT: Final = 6432  # names the socket, in a directory of this test's own; nothing listens to the network
_LIMIT_S: Final = 30.0

_SETTINGS: Final = """[databases]
* = host={directory} user=postgres
[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {own}
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
"""


@contextlib.contextmanager
def start_pgbouncer(server: PostgresServer, database: str) -> Iterator[str]:
    """The URL of a database through a PgBouncer that runs for the length of the block."""
    assert PROGRAM is not None
    own = Path(tempfile.mkdtemp(prefix="hf-pgb-"))
    own.chmod(0o777)
    settings = own / "pgbouncer.ini"
    settings.write_text(_SETTINGS.format(directory=server.directory, own=own, port=PORT))
    with (own / "log").open("ab") as log:
        process = subprocess.Popen([PROGRAM, "-q", str(settings)], stdout=log, stderr=log, cwd=own, **as_user())
    url = f"postgresql://postgres@/{database}?host={quote(str(own), safe='')}&port={PORT}"
    try:
        limit, pause = time.monotonic() + _LIMIT_S, pauses()
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"pgbouncer did not start: {(own / 'log').read_text()[-2000:]}")
            time.sleep(next(pause))
        yield url
    finally:
        process.terminate()
        process.wait(_LIMIT_S)
        shutil.rmtree(own, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True
