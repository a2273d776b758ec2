"""A whole fleet for tests: Postgres, NATS JetStream and Redis, and every part of the plane as processes of its own.

Nothing here is a stand-in. State is in a database of the test's own on a real Postgres; the bus is a NATS server of the
test's own with its file store; leases are in a Redis server of the test's own, reached through a proxy that can cut
the way to it. Parts are started with the commands that people use, and told what to do by a `holdfast.toml`, in which
leases last seconds and not minutes. Only processes that were started here are ended, by their pid.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import psycopg
import pytest

from holdfast.guards.install import install
from holdfast.plane.settings.settings import KEYS, Settings
from holdfast.plane.settings.sources import load
from holdfast.testing.proxy import FaultProxy
from support.cli.ready import ready_strict
from support.faults.freeze import freeze
from support.fixtures.fleet import ON_SERVERS
from support.fleet import fleet_app
from support.polling import pauses
from support.servers.nats import NatsServer, nats_executables, own_stream, start_nats
from support.servers.postgres import PostgresServer
from support.servers.redis import RedisServer, redis_executables, start_redis

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[2]
LIMIT_S: Final = 90.0
LOOPS: Final = "scheduler,reconciler,replayer,snapshot,cleanup"

on_the_fleet = pytest.mark.parametrize("fleet_servers", [ON_SERVERS], indirect=True)
"""Runs a test on the three servers, and puts them into its name."""

# A lease of three seconds is renewed every second. The limits on states are long: no fault here should end a job.
TIMES: Final = {
    "scheduler.job_ttl": 3,
    "scheduler.ack_wait": 3,
    "worker.heartbeat": 1,
    "worker.lease_ttl": 3,
    "worker.cancel_grace": 1,
    "reconciler.interval": 1,
    "replayer.interval": 1,
    "snapshot.interval": 1,
    "limits.replay": 2,
    "limits.scheduled": 120,
    "limits.dispatched": 120,
    "grace": 20,
    "api.port": 0,
}


def until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Return when the condition holds. It must come to hold."""
    end, pause = time.monotonic() + limit_s, pauses()
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit_s:g} s in vain for {what}")
        time.sleep(next(pause))


@dataclass
class Servers:
    """The three servers of one fleet."""

    postgres: PostgresServer
    nats: NatsServer
    redis: RedisServer
    way_to_redis: FaultProxy


@contextmanager
def started_servers(postgres: PostgresServer) -> Iterator[Servers]:
    """A NATS and a Redis of the test's own, beside the shared Postgres."""
    with ExitStack() as stack:
        nats = stack.enter_context(start_nats(nats_executables()[-1]))
        redis = stack.enter_context(start_redis(redis_executables()[-1]))
        way = stack.enter_context(FaultProxy(redis.port))
        yield Servers(postgres, nats, redis, way)


class Process:
    """One process of the plane, from its command to its exit code."""

    def __init__(self, name: str, words: Sequence[str], directory: Path, database: str) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        paths = os.pathsep.join((str(ROOT / "src"), str(HERE)))
        own = {"PYTHONPATH": paths, fleet_app.DATABASE: database}
        with self.log.open("wb") as log:
            self.popen = ready_strict().start(words, directory, {**os.environ, **own}, log, log)

    @property
    def pid(self) -> int:
        """Its id."""
        return self.popen.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.popen.poll() is None

    def events(self) -> list[dict[str, Any]]:
        """What it has said so far, in whole lines."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        return [json.loads(line) if line.startswith("{") else {"event": "text", "text": line} for line in lines]

    def said(self, *events: str) -> list[dict[str, Any]]:
        """What it has said of some kind."""
        return [each for each in self.events() if each["event"] in events]

    def ready(self) -> Self:
        """Return when it does what it is there for."""
        until(lambda: self.said("started", "ready") or not self.alive, f"{self.name} to start")
        assert self.alive, f"{self.name} did not start: {self.log.read_text(errors='replace')[-3000:]}"
        return self

    @property
    def address(self) -> str:
        """Where it answers HTTP."""
        return str(self.said("started")[0]["address"])

    @property
    def probe(self) -> str:
        """Where it tells how it is: at a port of its own, or where the API answers."""
        said = self.said("started")[0]
        return str(said["probe"] or said["address"])

    def pause(self) -> None:
        """Stop it from running at all, and return when it has stopped."""
        freeze(self.pid)

    def resume(self) -> None:
        """Let it run again."""
        self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a word, as the kernel does when memory is short."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(LIMIT_S)

    def terminate(self) -> int:
        """Tell it to end; its exit code."""
        self.popen.send_signal(signal.SIGTERM)
        until(lambda: not self.alive, f"{self.name} to end")
        assert self.popen.returncode is not None
        return self.popen.returncode

    def end(self) -> None:
        """End it in any case."""
        if self.alive:
            self.popen.send_signal(signal.SIGCONT)
            self.kill()


class Run(NamedTuple):
    """A run of a job that waits between its check and its write."""

    job: str
    fence: int
    process: Process


@dataclass
class Fleet:
    """Replicas of every part on one set of servers. `with fleet(…) as it:` starts and ends them."""

    servers: Servers
    directory: Path
    database: str
    bus: str
    settings: Settings
    processes: list[Process] = field(default_factory=list)
    planes: list[Process] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)
    api: Process | None = None
    dead: set[str] = field(default_factory=set)  # jobs that may have a dead letter
    _number: int = 0
    _queries: psycopg.Connection[tuple[Any, ...]] | None = None

    # Parts.

    def plane(self, *words: str) -> Process:
        """A replica of scheduler and loops. Not waited for."""
        made = self._start("plane", "up", "--only", LOOPS, "--json", *words)
        self.planes.append(made)
        return made

    def worker(self, *words: str) -> Process:
        """A replica of the worker. Not waited for."""
        ttl = str(self.settings.worker.lease_ttl)
        made = self._start("worker", "worker", "fleet_app:app", "--lease-ttl", ttl, "--json", *words)
        self.workers.append(made)
        return made

    def open_api(self, *words: str) -> Process:
        """The API, in place of the one before. Not waited for."""
        self.api = self._start("api", "up", "--only", "api", "--json", *words)
        return self.api

    def _start(self, kind: str, *words: str) -> Process:
        self._number += 1
        made = Process(f"{kind}-{self._number}", words, self.directory, self.database)
        self.processes.append(made)
        return made

    def gone(self, process: Process) -> None:
        """A process that was ended on purpose is not missed."""
        for line in (self.planes, self.workers):
            if process in line:
                line.remove(process)

    def the_one_with(self, pid: int) -> Process:
        """The process with an id."""
        return next(each for each in self.processes if each.pid == pid)

    # Looking behind it.

    @contextmanager
    def sql(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A connection of the test's own."""
        with psycopg.connect(self.database, autocommit=True, application_name="fleet test") as connection:
            yield connection

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement finds. Only for the thread of the test, which keeps the connection."""
        if self._queries is None or self._queries.closed:
            self._queries = psycopg.connect(self.database, autocommit=True, application_name="fleet test")
        return self._queries.execute(statement, values).fetchall()

    def close(self) -> None:
        """Close the connection of `query`."""
        if self._queries is not None:
            self._queries.close()

    def now_ns(self) -> int:
        """What time it is in the database."""
        return int(self.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000000)::BIGINT")[0][0])

    def state(self, job: str) -> str:
        """The state of a job."""
        return str(self.query("SELECT state FROM plane_job WHERE id = %s", job)[0][0])

    def run_fence(self, job: str) -> int | None:
        """The fence of the run that the scheduler believes in."""
        found: int | None = self.query("SELECT run_fence FROM plane_job WHERE id = %s", job)[0][0]
        return found

    def wait_for_state(self, job: str, *states: str) -> None:
        """Return when a job is in one of the states."""
        until(lambda: self.state(job) in states, f"{job} to be {' or '.join(states)}")

    def at_the_door(self, job: str, *, after: Run | None = None) -> Run:
        """The run of a job that has checked and not yet written; the one that follows another, if that is given."""
        found: list[Run] = []

        def there() -> bool:
            for path in self.directory.glob(f"{job}.*.here"):
                run = Run(job, int(path.suffixes[-2][1:]), self.the_one_with(int(path.read_text())))
                if after is None or run.fence != after.fence:
                    found.append(run)
            return bool(found)

        until(there, f"a run of {job} at the door")
        return min(found, key=lambda run: run.fence)

    def go(self, run: Run) -> None:
        """Let a run that waits continue."""
        (self.directory / f"{run.job}.{run.fence}.go").touch()

    def open_door(self, job: str) -> None:
        """Let every run of a job continue, also those to come."""
        (self.directory / f"{job}.open").touch()


@contextmanager
def fleet(
    servers: Servers, directory: Path, *, planes: int = 2, workers: int = 2, times: Mapping[str, float] | None = None
) -> Iterator[Fleet]:
    """A fleet that runs, with so many replicas and one API. `times` are settings that differ from `TIMES`."""
    with ExitStack() as stack:
        database = stack.enter_context(servers.postgres.database())
        made = _furnished(servers, directory, database, times or {})
        stack.callback(_end_all, made)
        for _ in range(planes):
            made.plane()
        for _ in range(workers):
            made.worker()
        made.open_api()
        for each in made.processes:
            each.ready()
        yield made


def _furnished(servers: Servers, directory: Path, database: str, times: Mapping[str, float]) -> Fleet:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(fleet_app.TABLES)
        install(connection, "fleet_row", id="job")
    bus = own_stream(servers.nats)
    places = {"database": database, "bus": bus, "leases": f"redis://{servers.way_to_redis.address}"}
    chosen: dict[str, Any] = {**places, **TIMES, **times}
    path = directory / "holdfast.toml"
    path.write_text(_toml({name: value for name, value in chosen.items() if name in KEYS}))
    return Fleet(servers, directory, database, bus, load(str(path)))


def _toml(values: dict[str, Any]) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items() if "." not in name]
    for section in sorted({name.partition(".")[0] for name in values if "." in name}):
        lines.append(f"[{section}]")
        inside = (item for item in values.items() if item[0].startswith(f"{section}."))
        lines += [f"{name.partition('.')[2]} = {json.dumps(value)}" for name, value in inside]
    return "\n".join(lines) + "\n"


def _end_all(made: Fleet) -> None:
    made.close()
    for each in made.processes:
        each.end()
