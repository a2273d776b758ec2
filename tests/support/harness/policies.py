"""Processes of a plane as far as its error policy goes: locks whose store fails on demand, on one real database.

Time is manual where it decides anything (the wall clock of words and counts); pauses of tasks are real and short.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast import aio
from holdfast.core.lease.error_policy import OnError
from holdfast.core.lease.policy_exercise import Exercise
from holdfast.core.ports import Clock
from holdfast.errors import Unavailable
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import ChannelListener, Database, Dialect, Work
from holdfast.plane.policy.busy_jitter import BusyJitter
from holdfast.plane.policy.duplicate_counters import DuplicateCounters
from holdfast.plane.policy.escalation import Escalator
from holdfast.plane.policy.escalation_rules import EscalationRule
from holdfast.plane.policy.follower import PolicyFollower
from holdfast.plane.policy.runtime import PolicyRuntime
from holdfast.plane.policy.store import PlanePolicy
from holdfast.plane.settings.settings import SchedulerSettings, Settings
from holdfast.runtime.lease_manager import LeaseManager
from holdfast.runtime.policy_switch import policy_switch
from holdfast.runtime.recorder import Recorder
from holdfast.runtime.system import SystemClock, SystemEntropy, this_owner
from holdfast.stores.memory.store import MemoryTable
from holdfast.types import NS, Instant
from support.faults.faulty_store import Plan, PlannedEngine

T = TypeVar("T")

RULE = EscalationRule()


class ShiftedClock:
    """Real time, with a wall clock that the test can put forward."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self.ahead_ns = 0

    def now(self) -> Instant:
        now = self._real.now()
        return Instant(now.mono, now.boot, now.wall + self.ahead_ns)

    def move(self, ns: int) -> None:
        self.ahead_ns += ns


class Brittle:
    """A real database that cannot be reached while the test says so."""

    def __init__(self, inner: Database) -> None:
        self.inner = inner
        self.down = False
        self.asked = 0

    @property
    def dialect(self) -> Dialect:
        return self.inner.dialect

    @property
    def file(self) -> str | None:
        return self.inner.file

    async def write(self, work: Work[T], *, checked: bool = False, lasting: bool = True) -> T:
        self._reach()
        return await self.inner.write(work, checked=checked, lasting=lasting)

    async def read(self, work: Work[T], *, one_view: bool = True, lasting: bool = True) -> T:
        self._reach()
        return await self.inner.read(work, one_view=one_view, lasting=lasting)

    def listen(self, channel: str) -> ChannelListener:
        return self.inner.listen(channel)

    def statistics(self) -> Mapping[str, int]:
        return {}

    async def close(self) -> None:
        await self.inner.close()

    def _reach(self) -> None:
        self.asked += 1
        if self.down:
            raise Unavailable("the database is down, says the test")


@dataclass
class Replica:
    """One process."""

    database: Brittle
    locks: aio.Locks
    plan: Plan
    policing: PolicyRuntime

    @property
    def modes(self) -> dict[str, str]:
        """What its locks do."""
        return self.locks.policy.current()

    async def fall_back(self, times: int, risk: str = "low", family: str = "workflow.run") -> None:
        """Take so many locks while the store is down."""
        self.plan.down("acquire")
        for number in range(times):
            async with self.locks.lock(f"holdfast:wf:run:lock:{number}", ttl=30, family=family, risk=risk) as lease:
                assert lease.guaranteed is False
        self.plan.well()


@asynccontextmanager
async def replica(
    url: str,
    clock: Clock,
    *,
    name: str = "a",
    settings: Mapping[str, OnError | float] | None = None,
    scheduler: SchedulerSettings | None = None,
    file: Path | None = None,
    exercises: tuple[Exercise, ...] = (),
    rule: EscalationRule | None = None,
    begin: bool = True,
    run: bool = True,
    **how: Any,
) -> AsyncIterator[Replica]:
    """A process that has begun to follow the policy, and continues to."""
    plan, database = Plan(), Brittle(open_database(url))
    engine = PlannedEngine(MemoryTable(), plan)
    recorder = Recorder()
    manager = LeaseManager(
        engine.blocking,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        recorder=recorder,
        policy=policy_switch(None, None, clock, recorder, name),
        owner=lambda: this_owner("test", name),
        request_timeout_ns=2 * NS,
    )
    policy = PlanePolicy(database, clock)
    signals = DuplicateCounters(database, clock, process=name, recorder=recorder)
    jitter = BusyJitter(Settings(scheduler=scheduler or SchedulerSettings()))
    try:
        async with aio.Locks(engine, manager) as locks:
            follower = PolicyFollower(
                *(policy, database, locks, clock),
                actor=name,
                jitter=jitter,
                settings=settings,
                file=file,
                exercises=exercises,
                **how,
            )
            escalator = None if rule is None else Escalator(policy, signals, clock, rule, actor=name)
            policing = PolicyRuntime(policy, signals, follower, locks, jitter, escalator, flush_s=0.02)
            if begin:
                await policing.begin()
            if not run:
                yield Replica(database, locks, plan, policing)
                return
            async with policing.running():
                yield Replica(database, locks, plan, policing)
    finally:
        await database.close()
