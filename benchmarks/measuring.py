"""Measuring what it costs to count and to measure: the same acquire and release, with and without.

Without: everything that is done for metrics alone is replaced by nothing, in the running program. Short blocks of the
two take turns, and the value is the median of what neighbors differ by, so that a noisy machine hits both.

Clocks: what it costs is CPU time of the thread, because others on the machine must not be in it; what it is compared
with, a whole cycle with the store's answer, is on the performance counter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import holdfast
from benchmarks.contender import TTL_S
from benchmarks.measure import Measurement
from holdfast.flows import acquire as acquiring
from holdfast.runtime.lease_manager import LeaseManager

BLOCK_NS = 4_000_000
BLOCKS_LEAST = 10


class _Block(NamedTuple):
    """One block: what a cycle took on average."""

    wall_ns: float
    cpu_ns: float


def cost(url: str, seconds: float) -> Measurement:
    """Nanoseconds that one acquire and release costs more because it is counted and measured."""
    with holdfast.connect(url) as locks:
        lock = locks.lock("alone", ttl=TTL_S, family="bench")

        def cycles(number: int) -> _Block:
            began, cpu = time.perf_counter_ns(), time.thread_time_ns()
            for _ in range(number):
                lock.acquire().release()
            return _Block((time.perf_counter_ns() - began) / number, (time.thread_time_ns() - cpu) / number)

        cycles(50)
        number = max(5, round(BLOCK_NS / cycles(50).wall_ns))
        until, found = time.perf_counter() + seconds, list[tuple[_Block, _Block]]()
        while time.perf_counter() < until or len(found) < BLOCKS_LEAST:
            found.append(_pair(locks.manager, partial(cycles, number), first=len(found) % 2 == 0))
    cost_ns = median(measured.cpu_ns - plain.cpu_ns for measured, plain in found)
    cycle_ns = median(plain.wall_ns for _, plain in found)
    return Measurement(cost_ns, {"cycle_us": cycle_ns / 1000, "share": 100 * cost_ns / cycle_ns})


def _pair(manager: LeaseManager, block: Callable[[], _Block], *, first: bool) -> tuple[_Block, _Block]:
    if first:
        measured = block()
        with _unmeasured(manager):
            return measured, block()
    with _unmeasured(manager):
        plain = block()
    return block(), plain


@contextmanager
def _unmeasured(manager: LeaseManager) -> Iterator[None]:
    """A program that has no metrics."""
    recorder: Any = manager.recorder
    shared: Any = manager
    flows: Any = acquiring
    measure_wait = flows._measure_wait

    def nothing(*_: object) -> None: ...

    flows._measure_wait = nothing
    shared._measure_hold = nothing
    recorder.tally = lambda *_: False
    recorder.waits = recorder.waits_no_more = nothing
    try:
        yield
    finally:
        flows._measure_wait = measure_wait
        del shared._measure_hold, recorder.tally, recorder.waits, recorder.waits_no_more
