"""A Postgres whose disk is recorded, and servers on what is left of it.

The files are made once, with small WAL segments so that several are used, and with the tables of the plane; that is
what is on the disk when the record begins. Postgres refuses to run as root: then it runs as `nobody`, who must be able
to reach the stage, so this one is not in pytest's directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg

from holdfast.plane.process.components import open_components
from holdfast.plane.settings.settings import Settings
from support.power.harness import PowerStage
from support.servers.postgres import START_LIMIT_S, STOP_LIMIT_S, PostgresExecutable, as_user

CAREFUL: Final = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
UNSEEN: Final = ("postmaster.pid",)  # its last line is rewritten in shared memory

_SETTINGS: Final = {
    "listen_addresses": "",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "4MB",  # a few segments between two checkpoints
    "min_wal_size": "2MB",
    "shared_buffers": "1MB",  # so that pages are written out before a checkpoint
    "autovacuum": "off",
    "timezone": "UTC",
    "data_sync_retry": "off",
}


class PowerPostgres:
    """One directory with a server's files, before and after the crash."""

    def __init__(self, executable: PostgresExecutable, library: Path) -> None:
        self.executable = executable
        self.directory = Path(tempfile.mkdtemp(prefix="hf-power-"))
        self.directory.chmod(0o755)
        own = self.directory / library.name
        shutil.copyfile(library, own)
        self._sockets = self.directory / "s"
        self._sockets.mkdir()
        self._give(self._sockets)
        self.stage = PowerStage(self.directory, own)
        self._made()

    @property
    def url(self) -> str:
        """How clients reach whatever server runs now."""
        return f"postgresql://postgres@/postgres?host={quote(str(self._sockets), safe='')}"

    def close(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _made(self) -> None:
        data = self.stage.disk / "data"
        self._give(self.stage.disk)
        words = (f"{self.executable.folder}/initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "--no-sync")
        more = ("--encoding=UTF8", "--locale=C", "--wal-segsize=1", "--no-instructions")
        subprocess.run([*words, *more], capture_output=True, timeout=START_LIMIT_S, check=True, cwd="/", **as_user())
        with self.running(data, {**CAREFUL, "fsync": "off"}):
            asyncio.run(self._tables())
        self.stage.begin()

    async def _tables(self) -> None:
        async with open_components(Settings(database=self.url, leases="memory://")) as components:
            await components.database.write(lambda tx: tx.query("CREATE TABLE careless (number INTEGER PRIMARY KEY)"))

    def _give(self, path: Path) -> None:
        """To the one who runs the server."""
        if os.geteuid() == 0:
            user = as_user()
            for each in (path, *path.rglob("*")):
                os.chown(each, user["user"], user["group"], follow_symlinks=False)

    @contextlib.contextmanager
    def recorded(self, settings: Mapping[str, str]) -> Iterator[None]:
        """A server on the disk that is recorded, for the length of the block."""
        with self.running(self.stage.disk / "data", settings, self.stage.environment()):
            yield

    @contextlib.contextmanager
    def after(self, image: Path) -> Iterator[None]:
        """A server on what was left, for the length of the block: it recovers first."""
        (image / "data" / "postmaster.pid").unlink(missing_ok=True)  # its process is gone, and another may have its id
        self._give(image)
        with self.running(image / "data", {**CAREFUL, "fsync": "off"}):
            yield

    @contextlib.contextmanager
    def running(
        self, data: Path, settings: Mapping[str, str], environment: Mapping[str, str] | None = None
    ) -> Iterator[None]:
        log = self.directory / "log"
        chosen = {**_SETTINGS, **settings}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(f"{self.executable.folder}/postgres", "-D", str(data), "-k", str(self._sockets)),
                    *(word for name, value in chosen.items() for word in ("-c", f"{name}={value}")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=environment,
                start_new_session=True,
                **as_user(),
            )
        try:
            self._wait(process, log)
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_LIMIT_S)

    def _wait(self, process: subprocess.Popen[bytes], log: Path) -> None:
        limit = time.monotonic() + START_LIMIT_S
        while process.poll() is None and time.monotonic() < limit:
            try:
                with psycopg.connect(self.url, connect_timeout=2) as connection:
                    connection.execute("SELECT 1")
                return
            except psycopg.OperationalError:
                time.sleep(0.02)  # between two attempts, not instead of one
        raise RuntimeError(f"{self.executable} did not start: {log.read_text(errors='replace')[-3000:]}")
