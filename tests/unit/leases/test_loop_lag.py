"""A loop that is kept is late: it is seen while it lasts, from another thread, and for a while afterwards."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import holdfast
from holdfast import aio
from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.runtime.stalls import LoopSampler
from holdfast.runtime.statistics import of_locks
from holdfast.types import MS, NS, Instant


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ns = 1_000 * NS

    def now(self) -> Instant:
        return Instant(self.ns, self.ns, self.ns)


async def come_round() -> None:
    """Until every timer that is due has run."""
    await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_what_is_overdue_counts_at_once_and_is_remembered_until_it_is_old() -> None:
    clock = HandClock()
    sampler = LoopSampler(asyncio.get_running_loop(), clock, every_ns=MS)
    sampler.start()
    clock.ns += 400 * MS
    assert sampler.lag_ns(0) == 399 * MS, "before the loop has come round"
    await come_round()
    over = clock.ns
    assert sampler.lag_ns(over - NS) == 399 * MS
    clock.ns += MS
    assert sampler.lag_ns(over) == 0
    sampler.stop()
    clock.ns += NS
    assert sampler.lag_ns(over) == 0, "who does not look is not late"


@pytest.mark.asyncio
async def test_another_thread_sees_a_loop_that_is_blocked() -> None:
    async with aio.connect("memory://") as locks:
        sampler = LoopSampler(asyncio.get_running_loop(), locks.manager.clock, every_ns=MS)
        locks.manager.watch(sampler)
        sampler.start()
        seen: list[int] = []
        began = locks.manager.clock.now().mono

        def look() -> None:
            while not seen or seen[-1] < 20 * MS:
                seen.append(locks.manager.stalls.loop_lag_ns(began) or 0)

        watcher = threading.Thread(target=look)
        watcher.start()
        watcher.join(30)  # and this blocks the loop
        assert not watcher.is_alive()
        await come_round()
        (leases,) = [each for each in of_locks(locks.manager) if each.source == "leases"]
        lag = leases.values["loop_lag_ns"]
        assert isinstance(lag, int)
        assert lag >= 20 * MS
        sampler.stop()
    assert locks.manager.stalls.loop_lag_ns(0) is None, "a loop that may be closed is not asked"


def test_a_program_without_a_loop_has_no_lag_and_times_its_garbage_collections() -> None:
    with holdfast.connect("memory://") as locks:
        (leases,) = [each for each in of_locks(locks.manager) if each.source == "leases"]
    assert leases.values["loop_lag_ns"] is None
    assert leases.values["collection_ns"] is not None


def test_an_observer_that_never_returns_stops_the_keeper_and_health_says_so() -> None:
    """In an application, nothing else tells: the process lives, answers, and renews nothing."""

    class Hanging:
        free = threading.Event()
        hangs = threading.Event()

        def note(self, record: object) -> None: ...

        def measured(self, measure: Measure, family: str, outcome: MeasuredOutcome, ns: int) -> None:
            if measure is Measure.RENEW:
                self.hangs.set()
                self.free.wait(60)

    observer = Hanging()
    with holdfast.connect("memory://", observers=[observer]) as locks:
        lease = locks.lock("k", ttl=3.0, renew_every=0.1).acquire()
        try:
            assert locks.health()
            assert observer.hangs.wait(30)
            until = time.monotonic() + 30
            while locks.health() and time.monotonic() < until:
                if not lease.held:  # a host that is busy was too slow to look while it was
                    lease = locks.lock(f"k{time.monotonic_ns()}", ttl=3.0, renew_every=0.1).acquire()
                time.sleep(0.005)
            report = locks.health()
            assert (report.ok, report.stalled) == (False, True)
            assert "renewal is " in report.problems[0]
        finally:
            observer.free.set()
            lease.release()
