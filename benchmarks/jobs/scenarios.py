"""The scenarios of jobs: how many per second, how soon they begin, and whether stored ones slow them down."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.jobs.ours import settings_of
from benchmarks.jobs.queues import CONCURRENCY, QUEUES, Queue, Site, exercised
from benchmarks.jobs.servers import Postgres
from benchmarks.jobs.stored import working_beside
from benchmarks.measure import Measurement

if TYPE_CHECKING:
    from benchmarks.scenarios import Bench

JOBS_PER_S = 5000.0  # submitted for each second that a measurement is to last
PACED_PER_S = 25.0
PACED_S = 10.0  # as often the length of other measurements, for there are few jobs in a second
STORED = (1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The servers besides Redis."""

    postgres: Postgres
    nats_url: str
    synced_redis_url: str  # a second Redis, whose jobs survive it


def missing(queue: Queue) -> str | None:
    """Why a queue cannot take part, or None."""
    return None if importlib.util.find_spec(queue.needs) is not None else f"{queue.needs} is not installed"


def throughput(queue: Queue, bench: Bench) -> Measurement:
    """Submit many together, and wait for the last."""
    found = exercised(queue, _site(bench), number=max(50, round(JOBS_PER_S * bench.seconds)), paced=0, rate=1.0)
    return Measurement(found["per_s"], {"submit_per_s": found["submit_per_s"], "cpu_us": found["cpu_us"]})


def latency(queue: Queue, bench: Bench) -> Measurement:
    """Submit some at a steady pace; the time from before the call until the function runs."""
    paced = max(10, round(PACED_PER_S * PACED_S * bench.seconds))
    found = exercised(queue, _site(bench), number=0, paced=paced, rate=PACED_PER_S)
    times = sorted(each / 1e6 for each in found["latencies_ns"])
    at = {percent: times[min(len(times) - 1, len(times) * percent // 100)] for percent in (50, 95, 99)}
    return Measurement(at[50], {"p95_ms": at[95], "p99_ms": at[99]})


def beside(dialect: str, stored: int, bench: Bench) -> Measurement:
    """Work beside stored jobs."""
    if dialect == "sqlite":
        settings = settings_of(f"sqlite:///{bench.place.directory}/plane.db", None, None, CONCURRENCY)
    else:
        fleet = bench.fleet_servers()
        bus = f"{fleet.nats_url}?stream=B{os.urandom(6).hex()}"
        settings = settings_of(fleet.postgres.new_database(), bus, f"{bench.place.url}/2", CONCURRENCY)
    return working_beside(settings, stored, 8 * bench.seconds)


def _site(bench: Bench) -> Site:
    fleet = bench.fleet_servers()
    directory = Path(bench.place.directory)
    return Site(directory, bench.place.url, fleet.synced_redis_url, fleet.postgres, fleet.nats_url)


QUEUE_RUNS = tuple((queue, missing(queue)) for queue in QUEUES)
ENGINES = ("sqlite", "postgres")
