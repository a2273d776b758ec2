"""Who takes part in the scenarios of jobs: how the worker of each is started, and what each of them promises.

Each queue has one submitting process and one worker process. Ours has the scheduler in it too; with `-apart` that is a
process of its own, as the servers of the others are. Ours, Procrastinate's and Dramatiq's have the same number of
places; Celery's worker takes one task at a time in its main thread (`solo`), which is the quickest that it can do with
tasks that do nothing: with its pools of processes or threads it was slower here.

Those on Redis run twice: with a server that keeps nothing, as Redis is often run, and (`-synced`) with one that has
each write on the disk before it answers, as Postgres and our own database do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks.contender import Role, module
from benchmarks.jobs.servers import Postgres

ROOT = Path(__file__).resolve().parents[2]
CONCURRENCY = 32
LIMIT_S = 200.0


@dataclass(frozen=True, slots=True)
class Site:
    """Where the queues of one run are."""

    directory: Path
    redis_url: str
    synced_redis_url: str
    postgres: Postgres
    nats_url: str


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue."""

    name: str
    role: Role
    needs: str
    workers: tuple[tuple[str, ...], ...]  # the arguments of Python that start its processes
    places: Callable[[Site], Mapping[str, str]]  # what its processes find in the environment


def _redis(site: Site) -> Mapping[str, str]:
    return {"BENCH_BROKER": f"{site.redis_url}/0", "BENCH_RESULTS": f"{site.redis_url}/1"}


def _synced(site: Site) -> Mapping[str, str]:
    with module("redis").Redis.from_url(site.synced_redis_url) as client:
        client.flushall()
    return {"BENCH_BROKER": f"{site.synced_redis_url}/0", "BENCH_RESULTS": f"{site.synced_redis_url}/1"}


def _procrastinate(site: Site) -> Mapping[str, str]:
    url = site.postgres.new_database()
    environment = {**os.environ, "BENCH_POSTGRES": url}
    make = [sys.executable, "-m", "procrastinate", "--app=benchmarks.jobs.peer_procrastinate.app", "schema", "--apply"]
    subprocess.run(make, env=environment, cwd=ROOT, check=True, capture_output=True, timeout=60)
    return {"BENCH_POSTGRES": url}


def _embedded(site: Site) -> Mapping[str, str]:
    return {"BENCH_DATABASE": f"sqlite:///{site.directory}/plane.db"}


def _postgres(site: Site) -> Mapping[str, str]:
    """Jobs, messages and leases in one database: the same server as Procrastinate's, and no other."""
    return {"BENCH_DATABASE": site.postgres.new_database()}


def _fleet(site: Site) -> Mapping[str, str]:
    return {
        "BENCH_DATABASE": site.postgres.new_database(),
        "BENCH_BUS": f"{site.nats_url}?stream=B{os.urandom(6).hex()}",
        "BENCH_LEASES": f"{site.redis_url}/2",
    }


_CELERY = ("-m", "celery", "-A", "benchmarks.jobs.peer_celery", "worker", "-l", "ERROR", "--without-gossip")
_SOLO = ((*_CELERY, "-P", "solo"),)
_DRAMATIQ = (("-m", "dramatiq", "benchmarks.jobs.peer_dramatiq", "-p", "1", "-t", str(CONCURRENCY)),)
_PROCRASTINATE = (("-m", "benchmarks.jobs.peer_procrastinate"),)
_OURS = ("-m", "benchmarks.jobs.ours")
_APART = ((*_OURS, "scheduler"), (*_OURS, "worker"))

QUEUES = (
    Queue("holdfast-embedded", Role.OURS, "holdfast", (_OURS,), _embedded),
    Queue("holdfast-embedded-apart", Role.OURS, "holdfast", _APART, _embedded),
    Queue("holdfast-postgres", Role.OURS, "psycopg", (_OURS,), _postgres),
    Queue("holdfast-postgres-apart", Role.OURS, "psycopg", _APART, _postgres),
    Queue("holdfast-fleet", Role.OURS, "psycopg", (_OURS,), _fleet),
    Queue("holdfast-fleet-apart", Role.OURS, "psycopg", _APART, _fleet),
    Queue("procrastinate", Role.PEER, "procrastinate", _PROCRASTINATE, _procrastinate),
    Queue("dramatiq", Role.PEER, "dramatiq", _DRAMATIQ, _redis),
    Queue("celery", Role.PEER, "celery", _SOLO, _redis),
    Queue("dramatiq-synced", Role.PEER, "dramatiq", _DRAMATIQ, _synced),
    Queue("celery-synced", Role.PEER, "celery", _SOLO, _synced),
)


def exercised(queue: Queue, site: Site, *, number: int, paced: int, rate: float) -> dict[str, Any]:
    """Start a worker, submit to it from another process, and end it. What that process has measured."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "BENCH_STAMPS": str(site.directory / "stamps"),
        "BENCH_CONCURRENCY": str(CONCURRENCY),
        "BENCH_NUMBER": str(number),
        "BENCH_PACED": str(paced),
        "BENCH_RATE": str(rate),
        **queue.places(site),
    }
    with ExitStack() as stack:
        log = stack.enter_context((site.directory / "worker.log").open("wb"))
        workers = [stack.enter_context(_working(each, environment, log)) for each in queue.workers]
        client = subprocess.run(
            [sys.executable, "-m", "benchmarks.jobs.client", queue.name],
            env={**environment, "BENCH_WORKERS": " ".join(map(str, workers))},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    if client.returncode:
        said = (site.directory / "worker.log").read_text(errors="replace")
        raise RuntimeError(f"{queue.name}: {client.stderr[-600:]} … its worker said: {said[-600:]}")
    found: dict[str, Any] = json.loads(client.stdout.splitlines()[-1])
    return found


@contextmanager
def _working(arguments: Sequence[str], environment: Mapping[str, str], log: BinaryIO) -> Iterator[int]:
    worker = subprocess.Popen(
        [sys.executable, *arguments], env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    try:
        yield worker.pid
    finally:
        worker.terminate()
        try:
            worker.wait(15)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait(10)
