"""Measuring throughput without contention: acquire and release in a loop, by one caller or by many, on their own keys.

Clock: the performance counter. A measurement warms up first (connections, scripts, caches), then counts for a while.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contender import AsyncConnect, AsyncCycle, Connect, Contender, Cycle, Place
from benchmarks.raw import Bare, Scripts

LIMIT_S = 60.0  # beyond its own length, a measurement that takes so long is given up
_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number that a scenario is about, and what else was seen."""

    value: float
    extras: Mapping[str, float] = field(default_factory=dict)


class Meter:
    """Counts over wall time and over the CPU time of this process."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def rate(self, count: int) -> Measurement:
        """So many since the meter was made."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Measurement(count / wall, {"cpu_us": 1e6 * cpu / max(1, count)})


def one_thread(contender: Contender[Connect], place: Place, seconds: float) -> Measurement:
    """One caller."""
    with contender.connect(place) as make:
        cycle = make("alone")
        for _ in range(_WARM_UP):
            cycle.acquire()
            cycle.release()
        meter = Meter()
        return meter.rate(_turns(cycle, time.perf_counter() + seconds))


def _turns(cycle: Cycle, until: float) -> int:
    acquire, release, clock = cycle.acquire, cycle.release, time.perf_counter
    count = 0
    while clock() < until:
        acquire()
        release()
        count += 1
    return count


def many_threads(contender: Contender[Connect], place: Place, seconds: float, threads: int) -> Measurement:
    """Many callers, each a thread with a key of its own."""
    with contender.connect(place) as make:
        ready, counts = threading.Barrier(threads + 1), [0] * threads
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                cycle = make(f"own:{number}")
                cycle.acquire()
                cycle.release()
                ready.wait(LIMIT_S)
                counts[number] = _turns(cycle, time.perf_counter() + seconds)
            except BaseException as error:
                errors.append(error)
                ready.abort()

        workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
        for worker in workers:
            worker.start()
        ready.wait(LIMIT_S)
        meter = Meter()
        join_all(workers, seconds + LIMIT_S)
        if errors:
            raise errors[0]
        return meter.rate(sum(counts))


def join_all(workers: list[threading.Thread], limit_s: float) -> None:
    """Wait for threads to end, together no longer than the limit."""
    until = time.monotonic() + limit_s
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))
        if worker.is_alive():
            raise TimeoutError("a worker thread did not end")


def many_tasks(contender: Contender[AsyncConnect], place: Place, seconds: float, tasks: int) -> Measurement:
    """Many callers (or one), each a task with a key of its own."""

    async def turns(cycle: AsyncCycle, until: float) -> int:
        acquire, release, clock = cycle.acquire, cycle.release, time.perf_counter
        count = 0
        while clock() < until:
            await acquire()
            await release()
            count += 1
        return count

    async def main() -> Measurement:
        async with asyncio.timeout(seconds + LIMIT_S), contender.connect(place) as make:
            cycles = [make(f"own:{number}") for number in range(tasks)]
            await asyncio.gather(*(turns(cycle, time.perf_counter() + 0.05) for cycle in cycles))
            meter = Meter()
            until = time.perf_counter() + seconds
            return meter.rate(sum(await asyncio.gather(*(turns(cycle, until) for cycle in cycles))))

    return asyncio.run(main())


def pipelined(place: Place, seconds: float, keys: int) -> Measurement:
    """The raw limit for many tasks: no tasks, one socket, all keys acquired in one write and released in another."""
    client = Bare(place)
    try:
        scripts = Scripts(client)
        names = [f"own:{number}" for number in range(keys)]

        def turn() -> None:
            values: list[Any] = client.ask_all([scripts.acquire(name) for name in names])
            client.ask_all([scripts.release(name, value) for name, value in zip(names, values, strict=True)])

        turn()
        meter, until, count = Meter(), time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            turn()
            count += keys
        return meter.rate(count)
    finally:
        client.close()
