"""Measuring hand-over: one holds, N wait, and the lock goes from hand to hand.

What counts is the time from the *call* of release to the moment the next holder has the lock. The rate is the inverse
of its median: the time a lock is held does not count, nor does a moment in which the machine did something else. Two
rules make every grant a hand-over, for every contender alike:

- *After you*: a client that has released asks again only after another client has had the lock. Without it, a client
  that polls takes its own lock again and again, while the others sleep.
- A lock is held for two milliseconds, so that the last holder is back in the queue, and has been told that it is busy,
  before it is released again. Otherwise two of them would pass it to and fro while the others sleep, and would never
  meet a lock that is held.

Before that, while the first holder still has it, the server's own counters say what the waiters cost while they wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.contender import AsyncConnect, AsyncCycle, Connect, Contender, Cycle, Place
from benchmarks.measure import LIMIT_S, Measurement, join_all
from benchmarks.server import Load, Server

KEY = "handed-over"
_SETTLE_S = 0.3  # for all clients to be queued
_HOLD_S = 0.002
_FEWEST = 3  # hand-overs, however long they take
_LONGER = 2  # than other measurements: those who poll are handed few locks in a second


@dataclass(slots=True)
class Relay:
    """Who had it last, when it was released, and how long each hand-over took."""

    previous: Any = None  # the event that the previous holder waits for
    released_at: float = 0.0
    latencies: list[float] = field(default_factory=list)
    stopping: bool = False

    def taken(self, after_you: Any) -> None:
        """A client has the lock."""
        now = time.perf_counter()
        if self.released_at:
            self.latencies.append(now - self.released_at)
        previous, self.previous = self.previous, after_you
        if previous is not None:
            previous.set()

    def let_go(self) -> None:
        """The holder is about to call release."""
        self.released_at = time.perf_counter()


def _result(latencies: list[float], idle: tuple[Load, Load], busy: tuple[Load, Load]) -> Measurement:
    if not latencies:
        raise TimeoutError("no client acquired the lock during the measurement")
    ordered, count = sorted(latencies), len(latencies)
    return Measurement(
        1 / ordered[count // 2],
        {
            "p50_ms": 1e3 * ordered[count // 2],
            "p99_ms": 1e3 * ordered[min(count - 1, count * 99 // 100)],
            "commands": (busy[1].commands - busy[0].commands) / count,
            "reads": (busy[1].reads - busy[0].reads) / count,
            "idle_per_s": (idle[1].commands - idle[0].commands - 1) / (idle[1].at_s - idle[0].at_s),  # without INFO
        },
    )


def by_tasks(
    contender: Contender[AsyncConnect],
    place: Place,
    server: Server,
    seconds: float,
    waiters: int,
    *,
    apart: bool = False,
) -> Measurement:
    """Tasks of one loop. `apart`: each with a client of its own, as separate processes would be."""
    relay = Relay()

    async def work(cycle: AsyncCycle) -> None:
        after_you = asyncio.Event()
        while True:  # until cancelled
            await cycle.acquire()
            try:
                relay.taken(after_you)
                await asyncio.sleep(_HOLD_S)
            finally:
                relay.let_go()
                await cycle.release()
            await after_you.wait()
            after_you.clear()

    async def main() -> Measurement:
        async with asyncio.timeout(seconds + LIMIT_S), AsyncExitStack() as stack:
            make = await stack.enter_async_context(contender.connect(place))
            first = make(KEY)
            await first.acquire()
            workers = []
            for _ in range(waiters + 1):
                own = await stack.enter_async_context(contender.connect(place)) if apart else make
                workers.append(asyncio.create_task(work(own(KEY))))
            await asyncio.sleep(_SETTLE_S)
            before = server.load()
            await asyncio.sleep(seconds)
            idle = before, server.load()
            await first.release()
            await asyncio.sleep(_SETTLE_S / 2)
            seen, before = len(relay.latencies), server.load()
            await asyncio.sleep(_LONGER * seconds)
            while len(relay.latencies) < seen + _FEWEST:  # noqa: ASYNC110 - an event would cost what is measured
                await asyncio.sleep(seconds)  # the time limit around all this ends it
            latencies, busy = relay.latencies[seen:], (before, server.load())
            await _end(workers)
            return _result(latencies, idle, busy)

    return asyncio.run(main())


async def _end(workers: list[asyncio.Task[None]]) -> None:
    """Cancel them all, and again those who swallowed it; raise what one of them failed with."""
    pending = set(workers)
    while pending:
        for worker in pending:
            worker.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)
    for worker in workers:
        if not worker.cancelled():
            worker.result()


def by_threads(
    contender: Contender[Connect], place: Place, server: Server, seconds: float, waiters: int
) -> Measurement:
    """Threads of one process."""
    relay = Relay()
    events = [threading.Event() for _ in range(waiters + 1)]
    errors: list[BaseException] = []

    def work(cycle: Cycle, after_you: threading.Event) -> None:
        try:
            while not relay.stopping:
                cycle.acquire()
                relay.taken(after_you)
                time.sleep(_HOLD_S)
                relay.let_go()
                cycle.release()
                after_you.wait(LIMIT_S)
                after_you.clear()
        except BaseException as error:
            errors.append(error)

    with contender.connect(place) as make:
        first = make(KEY)
        first.acquire()
        workers = [threading.Thread(target=work, args=(make(KEY), event), daemon=True) for event in events]
        for worker in workers:
            worker.start()
        time.sleep(_SETTLE_S)
        before = server.load()
        time.sleep(seconds)
        idle = before, server.load()
        first.release()
        time.sleep(_SETTLE_S / 2)
        seen, before = len(relay.latencies), server.load()
        time.sleep(_LONGER * seconds)
        until = time.monotonic() + LIMIT_S
        while len(relay.latencies) < seen + _FEWEST and time.monotonic() < until:
            time.sleep(seconds)
        latencies, busy = relay.latencies[seen:], (before, server.load())
        relay.stopping = True
        until = time.monotonic() + LIMIT_S
        while (alive := [worker for worker in workers if worker.is_alive()]) and time.monotonic() < until:
            for event in events:
                event.set()
            alive[0].join(0.02)
        join_all(workers, 1.0)
    if errors:
        raise errors[0]
    return _result(latencies, idle, busy)


def by_raw_task(contender: Contender[AsyncConnect], place: Place, seconds: float) -> Measurement:
    """The raw limit: a bare client releases the lock and acquires it again, on behalf of the next client."""

    async def main() -> Measurement:
        latencies: list[float] = []
        async with contender.connect(place) as make:
            cycle, until = make(KEY), time.perf_counter() + seconds
            await cycle.acquire()
            while not latencies or time.perf_counter() < until:
                await asyncio.sleep(_HOLD_S)  # as long as all others hold it: what idles begins slowly
                began = time.perf_counter()
                await cycle.release()
                await cycle.acquire()
                latencies.append(time.perf_counter() - began)
        return Measurement(1 / median(latencies))

    return asyncio.run(main())


def by_raw_thread(contender: Contender[Connect], place: Place, seconds: float) -> Measurement:
    """The same without a loop."""
    latencies: list[float] = []
    with contender.connect(place) as make:
        cycle, until = make(KEY), time.perf_counter() + seconds
        cycle.acquire()
        while not latencies or time.perf_counter() < until:
            time.sleep(_HOLD_S)
            began = time.perf_counter()
            cycle.release()
            cycle.acquire()
            latencies.append(time.perf_counter() - began)
    return Measurement(1 / median(latencies))
