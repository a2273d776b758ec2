"""Stores on real servers that lose a part of themselves: a restarted Postgres, and clusters of etcd and of NATS.

Promises: `lose` ends one server as a crash does, and `recover` starts it again with its data. All servers are gone when
the block ends.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote

import holdfast
from holdfast.drills.env.processes import Stalled
from holdfast.drills.env.server_process import (
    etcd_program,
    free_port,
    make_postgres_files,
    nats_program,
    postgres_program,
    tied,
    wait_until,
)
from holdfast.errors import BackendError, Misconfigured

NODES: Final = 3
_ASK_S: Final = 5.0
_LOG_CHARS: Final = 300


class StoreServers(ABC):
    """The servers of one store."""

    lost: ClassVar[str]  # what a drill takes away
    url: str

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []
        self._away = -1  # the server that was lost

    @abstractmethod
    def _words(self, number: int) -> Sequence[str]:
        """The command of a server."""

    @abstractmethod
    def _place(self, number: int) -> Path:
        """Its directory."""

    @abstractmethod
    def _leader(self) -> int | None:
        """The number of the server to lose. None: there is no leader now."""

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        return tied(self._words(number), self._place(number))

    def start(self, size: int) -> None:
        """Start all, and wait until the store serves."""
        self._running = [self._start(number) for number in range(size)]
        self.wait_until_served()

    def lose(self) -> int:
        """End the leader as a crash does. Returns the time of death."""
        wait_until(lambda: self._leader() is not None, "a leader")
        self._away = self._leader() or 0
        self._kill(self._running[self._away])
        return time.time_ns()

    def recover(self) -> None:
        """Start the server that was lost, and wait until the store serves."""
        self._running[self._away] = self._start(self._away)
        self.wait_until_served()

    def wait_until_served(self) -> None:
        """Wait until a client gets answers."""
        with holdfast.connect(self.url, service="drill", request_timeout=_ASK_S) as locks:

            def served() -> bool:
                if any(each.poll() is not None for each in self._running):
                    raise Misconfigured(f"a server of the drill ended: {self._log()}")
                with suppress(BackendError):
                    locks.ping()
                    return self._leader() is not None
                return False

            try:
                wait_until(served, "the store to serve")
            except Stalled as stalled:
                raise Stalled(f"{stalled}: {self._log()}") from None

    def _log(self) -> str:
        texts = [(self._place(number) / "log").read_text(errors="replace") for number in range(len(self._running))]
        return " | ".join(text[-_LOG_CHARS:].strip() for text in texts)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def close(self) -> None:
        """End everything."""
        for process in self._running:
            self._kill(process)


class PostgresRestart(StoreServers):
    """One Postgres server, which crashes and comes back with everything that was committed."""

    lost = "the server"

    def __init__(self) -> None:
        super().__init__()
        self._program = postgres_program()
        # Not the directory of the drill: the path of a socket is short, and another user reaches this one.
        self._directory = Path(tempfile.mkdtemp(prefix="hf-drill-", dir="/tmp"))
        self.url = f"postgresql://postgres@/postgres?host={quote(str(self._directory), safe='')}"
        try:
            make_postgres_files(Path(self._program).with_name("initdb"), self._directory)
        except BaseException:
            self.close()
            raise

    def _words(self, number: int) -> Sequence[str]:
        settings = ("listen_addresses=", "timezone=UTC", "autovacuum=off", "fsync=off", "shared_buffers=16MB")
        options = (word for setting in settings for word in ("-c", setting))
        return [self._program, "-D", str(self._directory / "data"), "-k", str(self._directory), *options]

    def _place(self, number: int) -> Path:
        return self._directory

    def _leader(self) -> int | None:
        return 0

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        return tied(self._words(number), self._place(number), unprivileged=True)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """End it immediately, without a checkpoint. Its children end with it, which they would not after SIGKILL."""
        process.send_signal(signal.SIGQUIT)
        process.wait()

    def close(self) -> None:
        """See `StoreServers.close`."""
        super().close()
        shutil.rmtree(self._directory, ignore_errors=True)


class _Cluster(StoreServers):
    """Three servers on loopback ports."""

    def __init__(self, directory: Path, program: str) -> None:
        super().__init__()
        self._directory = directory
        self._program = program
        self._clients = [free_port() for _ in range(NODES)]
        self._peers = [free_port() for _ in range(NODES)]
        for number in range(NODES):
            self._place(number).mkdir(parents=True)

    def _place(self, number: int) -> Path:
        return self._directory / f"n{number}"


class EtcdCluster(_Cluster):
    """Three members of etcd."""

    lost = "the leader"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, etcd_program())
        self.url = "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self._clients)

    def _words(self, number: int) -> Sequence[str]:
        client, peer = f"http://127.0.0.1:{self._clients[number]}", f"http://127.0.0.1:{self._peers[number]}"
        members = ",".join(f"n{at}=http://127.0.0.1:{port}" for at, port in enumerate(self._peers))
        return [
            *(self._program, "--name", f"n{number}", "--data-dir", str(self._place(number) / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", members),
            *("--log-level", "warn", "--unsafe-no-fsync"),
        ]

    def _leader(self) -> int | None:
        for number, port in enumerate(self._clients):
            found = _asked(f"http://127.0.0.1:{port}/v3/maintenance/status", b"{}")
            if found is not None and found.get("leader", "0") == found["header"]["member_id"]:
                return number
        return None


class NatsCluster(_Cluster):
    """Three servers of NATS, with a bucket that all of them keep."""

    lost = "the leader of the bucket"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, nats_program())
        self._monitors = [free_port() for _ in range(NODES)]
        places = ",".join(f"127.0.0.1:{port}" for port in self._clients)
        self.url = f"nats://{places}?bucket=drill&replicas={NODES}"

    def _words(self, number: int) -> Sequence[str]:
        routes = ",".join(f"nats://127.0.0.1:{port}" for port in self._peers)
        return [
            *(self._program, "--addr", "127.0.0.1", "--port", str(self._clients[number]), "--jetstream"),
            *("--store_dir", str(self._place(number)), "--server_name", f"n{number}", "--cluster_name", "drill"),
            *("--cluster", f"nats://127.0.0.1:{self._peers[number]}", "--routes", routes),
            *("-m", str(self._monitors[number])),
        ]

    def _leader(self) -> int | None:
        for port in self._monitors:
            found = _asked(f"http://127.0.0.1:{port}/jsz?acc=$G&streams=1") or {}
            for account in found.get("account_details") or ():
                for stream in account.get("stream_detail") or ():
                    name = (stream.get("cluster") or {}).get("leader", "")
                    if stream["name"] == "KV_drill" and name:
                        return int(name.removeprefix("n"))
        return None


def _asked(url: str, body: bytes | None = None) -> Any:
    """The JSON that a server answers with. None: it does not answer."""
    try:
        with urllib.request.urlopen(url, body, timeout=_ASK_S) as answer:  # noqa: S310 - our own http URL
            return json.load(answer)
    except (OSError, ValueError):
        return None


@contextmanager
def store_servers(kind: str, directory: Path) -> Iterator[StoreServers]:
    """The servers of a store for the duration of the block. `kind`: postgres, etcd or nats."""
    servers: StoreServers
    if kind == "postgres":
        servers = PostgresRestart()
    else:
        servers = EtcdCluster(directory) if kind == "etcd" else NatsCluster(directory)
    try:
        servers.start(1 if kind == "postgres" else NODES)
        yield servers
    finally:
        servers.close()
