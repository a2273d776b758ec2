"""Incidents outside of the plane: its servers, files, disks and clocks.

Each function injects one, waits until it is named, and repairs it if the end of the finding is to be seen.
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.drills.env.clocks import MovedClocks, built
from holdfast.drills.env.proxy import FaultProxy
from holdfast.drills.incidents.fleet import OTHER
from holdfast.drills.incidents.play import IncidentPlay
from holdfast.errors import Misconfigured

_HOST: Final = "127.0.0.1"
_HOUR_S: Final = 3600.0
_SLOW_S: Final = 3.0
_DISK_MB: Final = 48
_STEP: Final = 1_000_000


def store_outage(it: IncidentPlay) -> None:
    """Redis is killed."""
    with it.servers.redis() as redis:
        fleet = it.fleet(leases=redis.url)
        fleet.start()
        redis.kill()
        it.began("killed Redis")
        place = f"{_HOST}:{redis.port}"
        it.found(f"{place} is down: the connection is refused", command=f"redis-cli -h {_HOST} -p {redis.port} PING")


def store_hangs(it: IncidentPlay) -> None:
    """Redis is stopped, as a frozen container is; then it continues."""
    with it.servers.redis() as redis:
        fleet = it.fleet(leases=redis.url)
        fleet.start()
        os.kill(redis.pid, signal.SIGSTOP)
        it.began("stopped Redis")
        it.found("hangs: it accepts connections")
        os.kill(redis.pid, signal.SIGCONT)
        it.over()


def slow_store(it: IncidentPlay) -> None:
    """Each answer of Redis takes three seconds."""
    with it.servers.redis() as redis, FaultProxy((_HOST, redis.port)) as proxy:
        fleet = it.fleet(leases=f"redis://{proxy.address}")
        fleet.start()
        proxy.slow("to_client", _SLOW_S)
        it.began(f"delayed each answer by {_SLOW_S:g} s")
        it.found("is slow, not down: an answer takes 3")


def flush(it: IncidentPlay) -> None:
    """FLUSHALL while jobs run."""
    with it.servers.redis() as redis:
        fleet = it.fleet(leases=redis.url)
        fleet.start(slots=8)
        fleet.running(*(fleet.submit("nap", 600) for _ in range(4)))
        redis.ask("FLUSHALL")
        it.began("executed FLUSHALL")
        it.found("No operator broke them", "it executed FLUSHALL 1 times", "vanished within 10 s")


def wrong_password(it: IncidentPlay) -> None:
    """The password of Redis is changed, and not in the settings."""
    with it.servers.redis() as redis:
        redis.ask("CONFIG", "SET", "requirepass", "before")
        fleet = it.fleet(leases=f"redis://:before@{_HOST}:{redis.port}")
        fleet.start()
        with socket.create_connection((_HOST, redis.port), 5) as line:
            line.sendall(b"AUTH before\r\nCONFIG SET requirepass after\r\nCLIENT KILL TYPE normal SKIPME no\r\n")
            line.recv(100)
        it.began("changed the password of Redis")
        it.found("refuses its clients", "password")


def memory_full(it: IncidentPlay) -> None:
    """Redis has reached its limit of memory, and refuses writes."""
    with it.servers.redis() as redis:
        fleet = it.fleet(leases=redis.url)
        fleet.start()
        redis.ask("CONFIG", "SET", "maxmemory", "1")
        it.began("set maxmemory to 1 byte")
        it.found("refuses writes")


def read_only_replica(it: IncidentPlay) -> None:
    """The Redis of the settings has become a replica."""
    with it.servers.redis() as redis, it.servers.redis() as other:
        fleet = it.fleet(leases=redis.url)
        fleet.start()
        redis.follow(other.port)
        it.began("made Redis a replica of another server")
        it.found("is slave")


def unknown_name(it: IncidentPlay) -> None:
    """The name of the lease store can no longer be resolved."""
    fleet = it.fleet(leases="redis://store.invalid:6379")
    fleet.serve("engine")
    it.began("started processes whose store has a name without an address")
    it.found("cannot be reached", "store.invalid")


def database_locked(it: IncidentPlay) -> None:
    """A process holds the write lock of the SQLite file."""
    fleet = it.fleet()
    fleet.start()
    with closing(sqlite3.connect(fleet.directory / "plane.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        it.began("began a transaction that writes, and left it open")
        it.found(f"process {os.getpid()}")
        writer.execute("ROLLBACK")
        it.over()


def disk_full(it: IncidentPlay) -> None:
    """The disk with the database is full."""
    with _small_disk(it.directory / "disk") as disk:
        fleet = it.fleet(database=f"sqlite:///{disk}/plane.db?synchronous=normal")
        fleet.start()
        filling = disk / "filling"
        with suppress(OSError), filling.open("wb", buffering=0) as file:
            while file.write(b"\0" * _STEP):
                pass
        it.began("filled the disk")
        it.found(str(disk))
        filling.unlink()
        it.over()
        it.end()  # a disk that is in use cannot be unmounted


@contextmanager
def _small_disk(place: Path) -> Iterator[Path]:
    """A file system of its own. `Misconfigured`: none can be mounted here."""
    place.mkdir(parents=True)
    words = ("-t", "tmpfs", "-o", f"size={_DISK_MB}m,mode=0777", "tmpfs", str(place))
    try:
        subprocess.run(["mount", *words], check=True, capture_output=True)  # noqa: S603, S607 - the system's own
    except (OSError, subprocess.CalledProcessError) as error:
        raise Misconfigured("a full disk needs root, to mount a small one") from error
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)  # noqa: S603, S607 - the same


def clock_skew(it: IncidentPlay) -> None:
    """The clock of a worker is an hour ahead."""
    fleet = it.fleet()
    fleet.start()
    with MovedClocks(it.directory / "offsets", built(it.directory)) as clocks:
        clocks.jump(_HOUR_S)
        fleet.work(OTHER, env=clocks.environment)
        it.began("started a worker whose clock is an hour ahead")
        it.found("ahead: its heartbeat has a time in the future")
        it.end()


def database_outage(it: IncidentPlay) -> None:
    """Postgres is killed; then it starts again."""
    with it.servers.redis() as redis:
        server = it.servers.postgres
        fleet = it.fleet(database=server.url(server.database()), leases=redis.url)
        fleet.start()
        server.down()
        try:
            it.began("killed Postgres")
            it.found(f"{_HOST}:{server.port} is down")
            report = fleet.why()["findings"]
            blamed = {each["rule"] for each in report if each["severity"] == "act"}
            it.claim("no innocent server is blamed", blamed == {it.incident.finding}, ", ".join(sorted(blamed)))
            unseen = [each["rule"] for each in report[1:]]
            it.claim("the report names what it could not see", "cannot tell" in unseen, ", ".join(unseen))
        finally:
            server.up()
        it.over()


def database_hangs(it: IncidentPlay) -> None:
    """The main process of Postgres is stopped: its sessions continue, and new ones get no answer."""
    with it.servers.redis() as redis:
        server = it.servers.postgres
        fleet = it.fleet(database=server.url(server.database()), leases=redis.url)
        fleet.start()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            it.began("stopped Postgres")
            it.found("hangs")
        finally:
            os.kill(server.pid, signal.SIGCONT)


def blocked_transaction(it: IncidentPlay) -> None:
    """A forgotten transaction holds a lock of the job table, as a stuck migration does."""
    with it.servers.redis() as redis:
        server = it.servers.postgres
        name = server.database()
        fleet = it.fleet(database=server.url(name), leases=redis.url)
        fleet.start()
        with server.connect(name) as connection, connection.transaction():
            connection.execute("LOCK TABLE plane_job")
            it.began("locked the table of jobs in a transaction")
            found = it.found("blocks")
            typed = [each["command"] for each in found["next"]]
            it.claim("a command ends it", any("pg_terminate_backend" in each for each in typed), str(typed))
        it.over()


def connections_exhausted(it: IncidentPlay) -> None:
    """Another program holds all connections of Postgres."""
    with it.servers.redis() as redis, ExitStack() as held:
        server = it.servers.postgres
        name = server.database()
        fleet = it.fleet(database=server.url(name), leases=redis.url)
        fleet.start()
        import psycopg

        with suppress(psycopg.OperationalError):
            while True:  # ends when the server refuses
                held.enter_context(psycopg.connect(f"{server.url(name)}?application_name=reports"))
        it.began("took all connections of Postgres")
        it.found("no free connection")
        held.close()
        it.over()


def bus_outage(it: IncidentPlay) -> None:
    """NATS is killed."""
    with it.servers.redis() as redis, it.servers.nats() as nats:
        fleet = it.fleet(leases=redis.url, bus=nats.url)
        fleet.start()
        nats.end()
        it.began("killed NATS")
        it.found(f"{_HOST}:{nats.port} is down")
