"""Contenders for one busy lock that come again after a delay, as a scheduler's messages do (`RetryLater`).

Each contender tries, and when the lock is busy comes again after the delay; nobody waits at the store, so how the
retries fall is the delay's doing alone. Clock: monotonic for waiting, the wall clock for what is reported.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from holdfast.core.backoff import Backoff, Exponential, Fixed, Jittered
from holdfast.errors import BackendError, LeaseLost
from holdfast.leases.sync.client import Locks
from holdfast.types import MS, NS

BASE_NS: Final = 500 * MS
DELAYS: Final[Mapping[str, Backoff]] = MappingProxyType(
    {
        "fixed 500 ms": Fixed(BASE_NS),
        "500 ± 200 ms": Jittered(BASE_NS, 200 * MS),
        "exponential with jitter": Exponential(100 * MS, 2 * NS),
    }
)


def contend(
    locks: Locks,
    key: str,
    delay: str,
    threads: int,
    holds: int,
    hold: float,
    seed: int,
    stop: threading.Event,
    *,
    ttl: float,
) -> dict[str, Any]:
    """All contenders of one process, until each has had the lock so often. Waits, and when retries failed, in ns."""
    waits: list[int] = []
    busy: list[int] = []
    failed = [0]
    backoff = DELAYS[delay]

    def one(number: int) -> None:
        chance = random.Random(f"{seed}:{number}")  # noqa: S311 - spreads retries; guards nothing
        lock = locks.lock(key, ttl=ttl, family="drill")
        for _ in range(holds):
            began, attempt, last_ns = time.monotonic_ns(), 0, 0
            while not stop.is_set():
                lease = None
                with contextlib.suppress(BackendError, LeaseLost):
                    lease = lock.try_acquire()
                if lease is not None:
                    waits.append(time.monotonic_ns() - began)
                    stop.wait(hold)
                    lease.release()
                    break
                if attempt:  # that all meet at first is the load's doing; how they meet again is the delay's
                    busy.append(time.time_ns())
                last_ns = backoff.delay_ns(attempt, last_ns, chance.randrange)
                attempt += 1
                stop.wait(last_ns / NS)
            else:
                failed[0] += 1

    crew = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return {"waits": waits, "busy": busy, "unserved": failed[0]}
