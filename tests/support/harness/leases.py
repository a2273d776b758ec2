"""Where scenarios are played: the same `async def`, against `holdfast` and against `holdfast.aio`.

A scenario speaks to the asyncio facade. In the blocking color it gets the blocking facade behind a thin dress that
lets every result be awaited; the scenario is then driven by `run_now`, so anything that really suspends is found out.
Time is either real, or manual: then nothing happens until the scenario lets time pass, and what is due happens then.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import holdfast
from holdfast import aio
from holdfast.core.history.events import Record
from holdfast.core.ports import Observer
from holdfast.core.timer_wheel import TimerWheel
from holdfast.runtime.lease_manager import LeaseManager
from holdfast.runtime.policy_switch import policy_switch
from holdfast.runtime.recorder import Recorder
from holdfast.runtime.run_sync import run_now
from holdfast.runtime.system import SystemClock, SystemEntropy, this_owner
from holdfast.stores.memory.store import MemoryTable
from holdfast.types import NS, Instant
from support.faults.faulty_store import Plan, PlannedEngine

T = TypeVar("T")

LIMIT_S = 20.0  # how long any condition is awaited before the scenario has failed
POLL_S = 0.002

_DRESSED: dict[type, type] = {
    holdfast.Locks: aio.Locks,
    holdfast.Lock: aio.Lock,
    holdfast.Lease: aio.Lease,
    holdfast.DegradedLease: aio.DegradedLease,
    holdfast.Lost: aio.Lost,
    holdfast.Leader: aio.Leader,
}


class Dress:
    """A blocking object that looks like its asyncio twin: whatever is a coroutine there can be awaited here."""

    def __init__(self, worn: Any) -> None:
        self.worn = worn

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.worn, name)
        if not callable(value):
            return dressed(value)
        if inspect.iscoroutinefunction(getattr(_DRESSED[type(self.worn)], name)):

            async def awaited(*args: Any, **kwargs: Any) -> Any:
                return dressed(value(*args, **kwargs))

            return awaited
        return lambda *args, **kwargs: dressed(value(*args, **kwargs))

    async def __aenter__(self) -> Any:
        return dressed(self.worn.__enter__())

    async def __aexit__(self, *raised: object) -> Any:
        return self.worn.__exit__(*raised)

    def __bool__(self) -> bool:
        return bool(self.worn)

    def __repr__(self) -> str:
        return repr(self.worn)


def dressed(value: Any) -> Any:
    """The twin, if there is one."""
    return Dress(value) if type(value) in _DRESSED else value


def plain(value: Any) -> Any:
    """What is under the dress."""
    return value.worn if isinstance(value, Dress) else value


class ManualClock:
    """Three clocks that stand still until the test moves them."""

    def __init__(self, wall_ns: int = 1_700_000_000 * NS) -> None:
        self.mono = self.boot = 1_000 * NS
        self.wall = wall_ns

    def now(self) -> Instant:
        return Instant(self.mono, self.boot, self.wall)

    def move(self, ns: int) -> None:
        self.mono += ns
        self.boot += ns
        self.wall += ns


class ManualTicks:
    """A ticker without a thread: what is due happens when the stage lets time pass."""

    def __init__(self, clock: ManualClock, act: Callable[[list[Any]], Coroutine[Any, Any, None]]) -> None:
        self.timer_wheel: TimerWheel[Any] = TimerWheel(slot_ns=1)
        self._clock = clock
        self._act = act

    def put_all(self, items: Sequence[Any], due_ns: int) -> None:
        """Enter many items that are due together."""
        for item in items:
            self.put(item, due_ns)

    def put(self, item: Any, due_ns: int) -> None:
        self.timer_wheel.put(item, due_ns)

    def drop(self, item: Any) -> None:
        self.timer_wheel.drop(item)

    def items(self) -> list[Any]:
        return list(self.timer_wheel)

    def lag_ns(self) -> int:
        due = self.timer_wheel.next_due_ns()
        return 0 if due is None else max(0, self._clock.mono - due)

    def late_ns(self, since_ns: int) -> int:
        return 0

    def abandon(self) -> list[Any]:
        left = list(self.timer_wheel)
        self.timer_wheel = TimerWheel(slot_ns=1)
        return left

    def stop(self, timeout_ns: int) -> None:
        self.timer_wheel = TimerWheel(slot_ns=1)

    def run(self) -> None:
        due = self.timer_wheel.pop_due(self._clock.mono)
        if due:
            run_now(self._act(due))


class KnownEntropy:
    """Tokens that can be searched for, and chance from a seed."""

    def __init__(self, seed: int = 7) -> None:
        self._count = itertools.count(1)
        self._random = random.Random(seed)
        self.tokens: list[str] = []

    def token(self) -> str:
        self.tokens.append(f"c0ffee{next(self._count):026x}")
        return self.tokens[-1]

    def below(self, n: int) -> int:
        return self._random.randrange(n)


class Notebook:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def note(self, record: Record) -> None:
        self.records.append(record)

    def kinds(self) -> list[str]:
        return [str(record.kind) for record in self.records]


class Company(Protocol):
    """A concurrent actor."""

    async def result(self) -> Any:
        """Wait for the end, and return or raise what came of it."""
        ...

    def done(self) -> bool:
        """Whether it has ended."""
        ...


class _ThreadCompany:
    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self._value = run_now(work)
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        return not self._thread.is_alive()

    async def result(self) -> Any:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "a thread of the scenario did not end"
        if self._error is not None:
            raise self._error
        return self._value


class _TaskCompany:
    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.task = asyncio.get_running_loop().create_task(work)

    def done(self) -> bool:
        return self.task.done()

    async def result(self) -> Any:
        return await asyncio.wait_for(asyncio.shield(self.task), LIMIT_S)


class Stage:
    """One color, one table of leases, one plan of faults, and any number of `Locks` on them."""

    def __init__(self, colour: str) -> None:
        self.colour = colour
        self.blocking = colour == "blocking"
        self.plan = Plan()
        self.notes = Notebook()
        self.entropy = KnownEntropy()
        self.clock = ManualClock()
        self.manual = False
        self.table = MemoryTable()
        self.leases: list[Any] = []  # every lease that was handed out: one that is dropped while held is a warning
        self._ticks: list[ManualTicks] = []
        self._opened: list[Any] = []

    # Setting the scene.

    def stop_time(self) -> None:
        """From now on time is manual. Call it first."""
        self.manual = True
        self.table = MemoryTable(self.clock)

    def locks(
        self,
        *,
        policy: Mapping[str, str] | None = None,
        policy_file: Path | None = None,
        observers: Sequence[Observer] = (),
        request_timeout: float = 2.0,
    ) -> aio.Locks:
        """Another `Locks` on the same leases, as another process would have it."""
        clock = self.clock if self.manual else SystemClock()
        recorder = Recorder([self.notes, *observers])
        engine = PlannedEngine(self.table, self.plan)
        manager = LeaseManager(
            engine.blocking,
            clock=clock,
            entropy=self.entropy if self.manual else SystemEntropy(),
            recorder=recorder,
            policy=policy_switch(policy, policy_file, clock, recorder, "the-stage"),
            owner=lambda: this_owner("stage"),
            request_timeout_ns=round(request_timeout * NS),
            make_ticks=self._make_ticks if self.manual else None,
        )
        locks: Any = holdfast.Locks(engine, manager) if self.blocking else aio.Locks(engine, manager)
        self._opened.append(locks)
        return cast("aio.Locks", dressed(locks))

    def _make_ticks(self, name: str, act: Callable[[list[Any]], Coroutine[Any, Any, None]]) -> ManualTicks:
        self._ticks.append(ManualTicks(self.clock, act))
        return self._ticks[-1]

    # Letting things happen.

    def play(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Play a scenario to its end, in this stage's color."""
        if self.blocking:
            run_now(scenario)
        else:
            asyncio.run(self._played(scenario))

    async def _played(self, scenario: Coroutine[Any, Any, None]) -> None:
        try:
            await scenario
        finally:
            self.plan.well()
            for locks in self._opened:
                await locks.close()

    def tidy(self) -> None:
        """Close what was opened."""
        self.plan.well()
        if self.blocking:
            for locks in self._opened:
                locks.close()

    def pass_time(self, seconds: float) -> None:
        """Move the manual clock; whatever comes due on the way happens at its time."""
        until = self.clock.mono + round(seconds * NS)
        while True:
            nexts = [due for ticks in self._ticks if (due := ticks.timer_wheel.next_due_ns()) is not None]
            due = min(nexts, default=until)
            if due > until or not nexts:
                break
            self.clock.move(max(0, due - self.clock.mono))
            for ticks in self._ticks:
                ticks.run()
        self.clock.move(until - self.clock.mono)

    def stand_still(self, seconds: float) -> None:
        """The host is paused: time passes and nothing in this process runs."""
        self.clock.move(round(seconds * NS))

    def start(self, work: Coroutine[Any, Any, Any]) -> Company:
        """Start a concurrent actor: a thread or a task."""
        return _ThreadCompany(work) if self.blocking else _TaskCompany(work)

    async def until(self, condition: Callable[[], object], what: str = "the condition") -> None:
        """Wait for a condition, bounded."""
        limit = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < limit, f"{what} did not come true"
            await self.breathe()

    async def breathe(self) -> None:
        """Let others run."""
        if self.blocking:
            threading.Event().wait(POLL_S)
        else:
            await asyncio.sleep(POLL_S)
