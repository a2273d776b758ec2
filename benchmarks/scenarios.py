"""Every scenario: its name, what its number means, what we aim for, who takes part and how they are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import contenders_asyncio as tasks
from benchmarks import contenders_files as files
from benchmarks import contenders_quorum as quorums
from benchmarks import contenders_redis as threads
from benchmarks import contenders_renewing as renewing
from benchmarks import handover, measure, measuring, processes
from benchmarks.contender import AsyncConnect, Connect, Contender, Keep, Place, Role
from benchmarks.jobs import scenarios as jobs
from benchmarks.jobs.queues import Queue
from benchmarks.measure import Measurement
from benchmarks.renewing import keeping
from benchmarks.server import Server


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how long to measure."""

    place: Place
    server: Server | None  # None in runs that have no scenario for it
    seconds: float
    renew_seconds: float
    fleet: jobs.Fleet | None = None  # likewise

    def fleet_servers(self) -> jobs.Fleet:
        """Postgres and NATS, for scenarios of jobs."""
        if self.fleet is None:
            raise RuntimeError("this scenario needs Postgres and NATS")
        return self.fleet

    def redis(self) -> Server:
        """The server, for scenarios that look at its counters."""
        if self.server is None:
            raise RuntimeError("this scenario needs a server")
        return self.server


@dataclass(frozen=True, slots=True)
class Entrant:
    """One contender in one scenario."""

    name: str
    role: Role
    left_out: str | None  # why it does not take part here
    run: Callable[[Bench], Measurement]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question, put to several contenders."""

    name: str
    title: str
    unit: str
    entrants: tuple[Entrant, ...]
    aim: float | None = None  # how many times as good as the best peer
    less_is_better: bool = False
    server: bool = True  # whether it needs one
    fleet: bool = False  # whether it needs Postgres and NATS as well
    rounds_most: int | None = None  # those that take long are repeated less often
    quick: bool = True  # part of the short run


def _entrants(
    contenders: Sequence[Contender[Any]], run: Callable[[Contender[Any], Bench], Measurement], size: int = 1
) -> tuple[Entrant, ...]:
    return tuple(Entrant(c.name, c.role, c.left_out(size), partial(run, c)) for c in contenders)


def _raw(contender: Contender[Any], run: Callable[[Bench], Measurement]) -> Entrant:
    return Entrant("raw", Role.RAW, contender.left_out(1), run)


def _alone_sync(contender: Contender[Connect], bench: Bench) -> Measurement:
    return measure.one_thread(contender, bench.place, bench.seconds)


def _alone_async(count: int) -> Callable[[Contender[AsyncConnect], Bench], Measurement]:
    return lambda contender, bench: measure.many_tasks(contender, bench.place, bench.seconds, count)


def _alone() -> list[Scenario]:
    async_peers = tuple(each for each in tasks.ALONE if each.role is not Role.RAW)
    return [
        Scenario("sync-1", "one thread", "cycles/s", _entrants(threads.ALONE, _alone_sync), 2),
        Scenario("aio-1", "asyncio, one task", "cycles/s", _entrants(tasks.ALONE, _alone_async(1)), 1.5),
        Scenario(
            "aio-1000",
            "asyncio, 1000 tasks, each on its own key",
            "cycles/s",
            (
                *_entrants(async_peers, _alone_async(1_000)),
                _raw(tasks.RAW, lambda bench: measure.pipelined(bench.place, bench.seconds, 1_000)),
            ),
            8,
        ),
        Scenario(
            "threads-32",
            "32 threads, each on its own key",
            "cycles/s",
            _entrants(threads.ALONE, lambda each, bench: measure.many_threads(each, bench.place, bench.seconds, 32)),
            2.5,
        ),
    ]


def _quorums() -> list[Scenario]:
    """Locks of three servers. They bring their own, so none is needed besides."""
    many = f"asyncio, 100 tasks, each on its own key, a majority of {quorums.NODES} servers"
    return [
        Scenario(
            "quorum-sync-1",
            f"one thread, a majority of {quorums.NODES} servers",
            "cycles/s",
            _entrants(quorums.THREADS, _alone_sync),
            server=False,
        ),
        Scenario(
            "quorum-aio-1",
            f"asyncio, one task, a majority of {quorums.NODES} servers",
            "cycles/s",
            _entrants(quorums.TASKS, _alone_async(1)),
            server=False,
        ),
        Scenario(
            "quorum-aio-100", many, "cycles/s", _entrants(quorums.TASKS, _alone_async(100)), server=False, quick=False
        ),
    ]


def _handover_tasks(waiters: int, *, apart: bool = False) -> Scenario:
    def run(contender: Contender[AsyncConnect], bench: Bench) -> Measurement:
        return handover.by_tasks(contender, bench.place, bench.redis(), bench.seconds, waiters, apart=apart)

    return Scenario(
        f"handover-{'apart' if apart else 'aio'}-{waiters}",
        f"asyncio, hand-over with {waiters} waiting" + (", each with a client of its own" if apart else ""),
        "hand-overs/s",
        (
            *_entrants(tasks.WAITING, run, waiters),
            _raw(tasks.RAW, lambda bench: handover.by_raw_task(tasks.RAW, bench.place, bench.seconds)),
        ),
        None if apart else 20,
        rounds_most=3,
        quick=waiters == 10,
    )


def _handover_threads(waiters: int) -> Scenario:
    def run(contender: Contender[Connect], bench: Bench) -> Measurement:
        return handover.by_threads(contender, bench.place, bench.redis(), bench.seconds, waiters)

    return Scenario(
        f"handover-threads-{waiters}",
        f"threads, hand-over with {waiters} waiting",
        "hand-overs/s",
        (
            *_entrants(threads.WAITING, run, waiters),
            _raw(threads.RAW, lambda bench: handover.by_raw_thread(threads.RAW, bench.place, bench.seconds)),
        ),
        1.5,
        rounds_most=3,
        quick=waiters == 10,
    )


def _renew(leases: int) -> Scenario:
    def run(contender: Contender[Keep], bench: Bench) -> Measurement:
        return keeping(contender, bench.place, bench.redis(), bench.renew_seconds, leases)

    return Scenario(
        f"renew-{leases}",
        f"{leases} leases held and renewed, TTL {renewing.TTL_S} s",
        "CPU s per 10 s",
        _entrants(renewing.RENEWING, run, leases),
        20,
        less_is_better=True,
        rounds_most=1,
        quick=leases <= 1_000,
    )


def _files() -> list[Scenario]:
    def four(contender: Contender[Connect], bench: Bench) -> Measurement:
        return processes.on_one_key(contender, bench.place, 2 * bench.seconds, 4)

    return [
        Scenario("sqlite-1", "a file, one process", "cycles/s", _entrants(files.ALONE, _alone_sync), 2, server=False),
        Scenario(
            "sqlite-4",
            "a file, four processes on one key",
            "owner changes/s",
            _entrants(files.WAITING, four),
            5,
            server=False,
            rounds_most=3,
        ),
    ]


def _measuring() -> list[Scenario]:
    def on(engine: str, url: Callable[[Place], str]) -> Scenario:
        ours = Entrant("holdfast", Role.OURS, None, lambda bench: measuring.cost(url(bench.place), bench.seconds))
        title = f"what counting and measuring cost an acquire and release, {engine}"
        how: dict[str, Any] = {"less_is_better": True, "server": engine == "redis"}
        return Scenario(f"measuring-{engine}", title, "ns", (ours,), **how)

    return [
        on("memory", lambda place: "memory://"),
        on("sqlite", lambda place: f"sqlite:///{place.directory}/leases.db"),
        on("redis", lambda place: place.url),
    ]


def _jobs() -> list[Scenario]:
    def entrants(run: Callable[[Queue, Bench], Measurement]) -> tuple[Entrant, ...]:
        return tuple(Entrant(queue.name, queue.role, why, partial(run, queue)) for queue, why in jobs.QUEUE_RUNS)

    def stored(number: int) -> Scenario:
        runs = [
            Entrant(f"holdfast-{engine}", Role.OURS, None, partial(jobs.beside, engine, number))
            for engine in jobs.ENGINES
        ]
        return Scenario(
            f"plane-stored-{number}",
            f"the plane works off a backlog, beside {number:,} jobs that are over",
            "jobs/s",
            tuple(runs),
            rounds_most=1 if number > 100_000 else 2,
            quick=False,
            fleet=True,
        )

    return [
        Scenario(
            "plane-jobs",
            "jobs that do nothing, submitted together, all done",
            "jobs/s",
            entrants(jobs.throughput),
            1,
            quick=False,
            fleet=True,
        ),
        Scenario(
            "plane-latency",
            f"jobs at a pace of {jobs.PACED_PER_S:g} per second, from before the call until the function runs",
            "ms",
            entrants(jobs.latency),
            1,
            less_is_better=True,
            rounds_most=3,
            quick=False,
            fleet=True,
        ),
        *map(stored, jobs.STORED),
    ]


def all_scenarios() -> list[Scenario]:
    """In the order in which they are run."""
    return [
        *_alone(),
        *(_handover_tasks(waiters) for waiters in (1, 10, 100, 500)),
        _handover_tasks(10, apart=True),
        *(_handover_threads(waiters) for waiters in (1, 10, 100)),
        *(_renew(leases) for leases in (1_000, 10_000)),
        *_files(),
        *_quorums(),
        *_measuring(),
        *_jobs(),
    ]
