"""Measures many waiters of one lock in one process, and many leases that were not released.

    python tools/crowds.py                                  100,000 waiters and 1,000,000 leases, on every store
    python tools/crowds.py --waiters 10000 --expired 0      less of it
    python tools/crowds.py --json                           for programs

The same is in the suite with smaller numbers. What is looked at: that memory for a waiter is a few KiB and is given
back, that one of all waiters stands at the store, that leases of the same process are renewed meanwhile; and that no
single acquisition pays for everything that has run out, and that in the end nothing of it is left. Times are for
people: they say what this machine did, and decide nothing. The exit code is 1 when one of the rest does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import redis

from holdfast.aio import connect
from holdfast.drills.env.redis_server import redis_server, running
from holdfast.errors import Misconfigured
from holdfast.runtime.run_sync import run_now
from holdfast.runtime.system import SystemEntropy
from holdfast.stores.redis import engine as redis_store
from holdfast.stores.sqlite import engine as sqlite_store
from holdfast.types import MS, NS, AcquireRequest, Grant

KIB: Final = 1024
WAITER_KIB_MAX: Final = 8.0
LIMIT_S: Final = 600.0
BATCH: Final = 10_000
SWEPT_MAX: Final = 2_048  # leases that one acquisition may clear away in a file


class Waited(NamedTuple):
    """What a crowd of waiters cost."""

    store: str
    waiters: int
    at_the_store: int  # waiters that the store knows of
    kib_each: float
    blocks_left: int  # of memory, for each hundred waiters, when all have gone
    renewed: bool  # a lease of the same process, meanwhile
    seconds: float

    @property
    def sound(self) -> bool:
        """Whether it is what is promised."""
        return self.at_the_store <= 1 and self.kib_each < WAITER_KIB_MAX and self.blocks_left < 100 and self.renewed


class Swept(NamedTuple):
    """What very many leases that ran out cost those who came after."""

    store: str
    expired: int
    most_together: int  # cleared away by one acquisition; 0: the server does it
    grants: int  # until nothing was left
    left: int
    slowest_ms: float
    median_ms: float
    rising: bool  # fences

    @property
    def sound(self) -> bool:
        """Whether it is what is promised."""
        return not self.left and self.most_together <= SWEPT_MAX and self.rising


def alone(url: str, store: str, number: int) -> Waited:
    """The same in a process that has done nothing else, so that what it keeps is what this took."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_crowd, url, store, number).result()


def _crowd(url: str, store: str, number: int) -> Waited:
    asyncio.run(waited(url, store, 100))  # what is made once is made now
    return asyncio.run(waited(url, store, number))


async def waited(url: str, store: str, number: int, *, ttl: float = 3.0, renewals: int = 2) -> Waited:
    """So many wait for one lock, and go again, while another lease of this length is renewed so often."""
    began = time.monotonic()
    async with connect(url) as locks, connect(url) as others:
        held = await others.lock("crowded", ttl=60).acquire()
        mine = await locks.lock("mine", ttl=ttl).acquire()
        blocks, resident = _blocks(), _resident()
        crowd = [asyncio.create_task(locks.lock("crowded", ttl=60).acquire(timeout=LIMIT_S)) for _ in range(number)]
        async with asyncio.timeout(LIMIT_S):
            while sum(locks.manager.recorder.waiters().values()) < number:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
            kib = (_resident() - resident) / KIB / number
            renewed = locks.statistics().renewed
            while locks.statistics().renewed < renewed + renewals and mine.held:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.01)
        known = (await others.inspect("crowded")).waiters or 0
        for each in crowd:
            each.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        crowd.clear()
        kept = mine.held and not locks.statistics().lost
        await held.release()
        await mine.release()
        await asyncio.sleep(0.01)  # the loop itself has to let go of them
        left = max(0, _blocks() - blocks) * 100 // number
    return Waited(store, number, known, round(kib, 2), left, kept, round(time.monotonic() - began, 1))


def swept_file(path: Path, number: int) -> Swept:
    """So many leases in a SQLite file have expired, and a client takes new ones."""
    engine = sqlite_store.open_engine(f"sqlite:///{path}?synchronous=normal")
    run_now(engine.blocking.acquire(_ask("first", MS), NS))
    with closing(sqlite3.connect(path, isolation_level=None)) as file:

        def there() -> int:
            (count,) = file.execute(
                "SELECT count(*) FROM holdfast_lease WHERE key >= 'gone:' AND key < 'gone;'"
            ).fetchone()
            return int(count)

        _fill(file, number)
        found = _taken(lambda ask: run_now(engine.blocking.acquire(ask, 60 * NS)), there, "sqlite", number)
    engine.close()
    return found


def swept_redis(url: str, number: int) -> Swept:
    """The same in a Redis, which expires keys itself: checks whether anything of ours stays."""
    engine = redis_store.open_engine(url)
    with redis.Redis.from_url(url) as client:
        for first in range(0, number, BATCH):
            batch = client.pipeline(transaction=False)
            for each in range(first, min(number, first + BATCH)):
                batch.set(f"gone:{each}", f"me@host:1/a hf1 crowd 5 {each + 1} {'0' * 32}", px=1)
            batch.execute()

        def there() -> int:
            found: Any = client.dbsize()
            return max(0, int(found) - len(taken) - 1)  # what is held, and the fence counter

        taken: set[str] = set()

        def acquire(ask: AcquireRequest) -> object:
            taken.add(ask.key)
            return run_now(engine.blocking.acquire(ask, 60 * NS))

        found = _taken(acquire, there, "redis", number)
    engine.close()
    return found._replace(most_together=0)


def _fill(file: sqlite3.Connection, number: int) -> None:
    """Copies of a lease that has run out, under names of their own."""
    names = [row[1] for row in file.execute("PRAGMA table_info(holdfast_lease)")]
    copied = ", ".join("'gone:' || n" if name == "key" else name for name in names)
    numbers = "WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted LIMIT ?)"
    copies = f"SELECT {copied} FROM counted, holdfast_lease WHERE holdfast_lease.key = 'first'"
    file.execute(f"INSERT INTO holdfast_lease {numbers} {copies}", (number,))


def _taken(acquire: Callable[[AcquireRequest], object], there: Callable[[], int], store: str, number: int) -> Swept:
    took: list[float] = []
    fences: list[int] = []
    most, before = 0, there()
    ends = time.monotonic() + LIMIT_S
    while before and time.monotonic() < ends:
        began = time.perf_counter()
        granted = acquire(_ask(f"new:{len(took)}", 60 * NS))
        took.append(time.perf_counter() - began)
        if isinstance(granted, Grant):
            fences.append(granted.fence)
        if (
            len(took) % 32 == 1 or number <= BATCH
        ):  # counting costs more than what is measured; a sweep comes no oftener
            left = there()
            most, before = max(most, before - left), left
    times = sorted(took) or [0.0]
    rising = len(fences) == len(took) and all(one < two for one, two in pairwise(fences))
    slowest, median = round(times[-1] * 1000, 1), round(times[len(times) // 2] * 1000, 3)
    return Swept(store, number, most, len(took), before, slowest, median, rising)


def _ask(key: str, ttl_ns: int) -> AcquireRequest:
    return AcquireRequest(key, _ENTROPY.token(), "me@host:1/a", "crowd", ttl_ns, None, 0)


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


_ENTROPY: Final = SystemEntropy()


def rows(waiters: int, expired: int) -> Iterator[Waited | Swept]:
    """Everything that can be measured here."""
    with tempfile.TemporaryDirectory(prefix="hf-crowds-") as place, ExitStack() as stack:
        folder = Path(place)
        server = None
        with suppress(Misconfigured):  # then there are figures of the others
            server = stack.enter_context(running(redis_server(), folder / "redis"))
        if waiters:
            yield alone("memory://crowds", "memory", waiters)
            yield alone(f"sqlite:///{folder}/waiters.db", "sqlite", waiters)
            if server is not None:
                yield alone(server.url, "redis", waiters)
        if expired:
            yield swept_file(folder / "expired.db", expired)
            if server is not None:
                yield swept_redis(f"{server.url}/1", expired)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--waiters", type=int, default=100_000, help="of one lock, in one process; 0: none")
    parser.add_argument("--expired", type=int, default=1_000_000, help="leases that were not released; 0: none")
    parser.add_argument("--json", action="store_true", help="one object for each line")
    asked = parser.parse_args(words)
    sound = True
    for row in rows(asked.waiters, asked.expired):
        shown = json.dumps(row._asdict()) if asked.json else "  ".join(f"{n} {v}" for n, v in row._asdict().items())
        print(shown if row.sound else f"{shown}  <- not as promised", flush=True)
        sound = sound and row.sound
    return 0 if sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
