"""Replicas of one loop on virtual time, each a process of its own that can crash, over one table of leases."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.aio.client import Locks
from holdfast.plane.locks import registry as families
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.loops.loop import Loop, Tick
from holdfast.stores.memory.store import MemoryTable
from holdfast.testing.sim.environment.clock import SimClock, SimEntropy
from holdfast.testing.sim.environment.domain import Domain
from holdfast.testing.sim.environment.host import virtual_locks, virtual_table
from holdfast.testing.sim.environment.loop import run_virtual, running_sim_loop

P = 30.0
TTL = 2 * P
SPREAD = P / 10
FAMILY = families.RECONCILER


@dataclass
class Seen:
    """One tick: who, when, under which fence."""

    replica: int
    at: float
    fence: int
    ended: float | None = None


Work = Callable[[Tick], Awaitable[None]]


@dataclass
class Fleet:
    """Replicas of one loop, each a process of its own, on one table of leases."""

    mode: Mode
    interval: float = P
    family: families.LockFamily = FAMILY
    seed: int = 0
    table: MemoryTable = field(default_factory=virtual_table)
    seen: list[Seen] = field(default_factory=list)
    domains: dict[int, Domain] = field(default_factory=dict)
    locks: dict[int, Locks] = field(default_factory=dict)
    loops: dict[int, Loop] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    async def add(self, work: Work | None = None, *, at_once: bool = False) -> int:
        number = next(self.numbers)
        domain = self.domains[number] = Domain(f"replica-{number}")
        context = domain.context()
        make = lambda: virtual_locks(self.table, name=f"replica-{number}", seed=self.seed)  # noqa: E731 - once
        locks = self.locks[number] = context.run(make)

        async def tick(tick: Tick) -> None:
            seen = Seen(number, now(), tick.fence)
            self.seen.append(seen)
            try:
                if work is not None:
                    await work(tick)
            finally:
                seen.ended = now()

        loop = self.loops[number] = Loop(
            "loop",
            self.family,
            self.interval,
            tick,
            locks=locks,
            mode=self.mode,
            at_once=at_once,
            clock=SimClock(running_sim_loop()),
            entropy=SimEntropy(f"{self.seed}/{number}/loop"),
        )
        await asyncio.get_running_loop().create_task(loop.start(), context=context)
        return number

    def crash(self, number: int) -> None:
        self.domains[number].stop()

    async def end(self) -> None:
        for number, loop in self.loops.items():
            while self.domains[number].stops:
                self.domains[number].resume(running_sim_loop())
            await loop.stop()
            await self.locks[number].close()

    @property
    def leaders(self) -> list[int]:
        return [number for number, loop in self.loops.items() if loop.statistics().leader]

    def gaps(self) -> list[float]:
        times = [each.at for each in self.seen]
        return [after - before for before, after in itertools.pairwise(times)]


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def fleet(mode: Mode, replicas: int, **settings: Any) -> AsyncIterator[Fleet]:
    made = Fleet(mode, **settings)
    for _ in range(replicas):
        await made.add()
    try:
        yield made
    finally:
        await made.end()


def virtually(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(scenario())
