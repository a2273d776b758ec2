"""A clock that a test moves, for locks in memory: leases expire, and are lost, without waiting.

    clock = testing.MovableClock()
    with clock.locks() as locks, locks.lock("invoice:7", ttl=30) as lease:
        clock.pause(40)  # as a process that was suspended for 40 s: nothing was renewed meanwhile
        assert not lease.held

Promises: store, leases and renewals read this clock alone. `advance` performs every renewal that falls due on the way,
as in a program that runs; `pause` performs none. Both return when the background threads have handled what is due.

Does not promise anything about other clocks: a wait for a busy lock (`timeout=`) takes real time, and so does a sleep.

Clock: that of the host, plus the time that the test has added.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from holdfast import aio
from holdfast.errors import HoldfastError
from holdfast.leases.sync.client import Locks
from holdfast.runtime.lease_manager import LeaseManager, make_manager
from holdfast.runtime.system import SystemClock
from holdfast.runtime.timer_thread import TimerThread
from holdfast.stores.memory.store import MemoryEngine
from holdfast.stores.memory.table import MemoryTable
from holdfast.types import MS, NS, Duration, Instant, duration_ns

SETTLE_S: Final = 10.0
MOVE_MAX_NS: Final = 366 * 86_400 * NS


class MovableClock:
    """The clocks of this host, and an offset that a test increases."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self._added_ns = 0
        self._timers: list[_WakingTimer] = []
        self._engine = MemoryEngine(MemoryTable(self))
        self._moving = threading.Lock()

    def now(self) -> Instant:
        """Read all three clocks."""
        real, added_ns = self._real.now(), self._added_ns
        return Instant(real.mono + added_ns, real.boot + added_ns, real.wall + added_ns)

    def locks(self) -> Locks:
        """Blocking locks by this clock. All locks of one clock share one memory store. Close them at the end."""
        return Locks(self._engine, self._manager())

    def aio_locks(self) -> aio.Locks:
        """The same for asyncio."""
        return aio.Locks(self._engine, self._manager())

    def advance(self, seconds: Duration) -> None:
        """Let time pass: every renewal that falls due on the way is performed in time."""
        with self._moving:
            until_ns = self.now().mono + duration_ns("seconds", seconds, high_ns=MOVE_MAX_NS)
            while (now_ns := self.now().mono) < until_ns:
                due = [each for timer in self._timers if (each := timer.due_ns()) is not None]
                step_ns = min((each for each in due if each > now_ns), default=until_ns)
                self._move(min(step_ns, until_ns) - now_ns)

    def pause(self, seconds: Duration) -> None:
        """Let time pass as for a process that was suspended: nothing happens until it has passed."""
        with self._moving:
            self._move(duration_ns("seconds", seconds, high_ns=MOVE_MAX_NS))

    def _move(self, by_ns: int) -> None:
        self._added_ns += max(0, by_ns)
        for timer in self._timers:
            timer.wake()
        limit = time.monotonic() + SETTLE_S
        while not all(timer.settled() for timer in self._timers):
            if time.monotonic() > limit:
                raise HoldfastError(f"a background thread of the leases did not finish its work within {SETTLE_S:g} s")
            time.sleep(MS / NS)

    def _manager(self) -> LeaseManager:
        def timer(name: str, act: Any) -> _WakingTimer:
            made = _WakingTimer(name, self, act)
            self._timers.append(made)
            return made

        return make_manager(
            self._engine.blocking,
            service="test",
            instance=None,
            policy=None,
            policy_file=None,
            observers=(),
            request_timeout=2.0,
            clock=self,
            make_ticks=timer,
        )


class _WakingTimer(TimerThread[Any]):
    """A timer thread that can be told that its clock has moved."""

    def wake(self) -> None:
        """Read the clock again."""
        self._wakeup.notify()

    def due_ns(self) -> int | None:
        """When the first item is due."""
        return self._next_due_ns()

    def settled(self) -> bool:
        """Whether everything that is due was handled."""
        due, now_ns = self._next_due_ns(), self._clock.now().mono
        if due is not None and due <= now_ns:
            return self._stopping
        return self._stopping or not self._serving or self._asleep_until_ns > now_ns  # asleep: it handles nothing
