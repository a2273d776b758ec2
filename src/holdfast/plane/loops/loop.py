"""The runner of periodic tasks: any number of replicas run a loop, and one of them ticks.

    async with Loop("reconciler", families.RECONCILER, 30.0, reconciler.tick, locks=locks): ...

Promises: one tick for each interval, whether there is one replica or ten, as long as ticks are shorter than that. Two
ticks never overlap, however long one takes: the lease is renewed while it runs, and a tick is cancelled when the lease
is lost. A tick that raises, a busy lock and a store that does not answer are counted, logged if an operator should
know, and followed by the next attempt: only `stop` ends a loop. A stop starts nothing more, gives a running tick the
grace period, and releases the leadership.

Sticky (the default): the leader stays the leader. After a clean stop another replica takes over immediately, after a
crash within the TTL of the family and one interval. Rotating: the lock is held for two intervals and never released
(R46, R51, R54). Its holder ticks at the beginning and in the middle of its window; when it has run out, another replica
goes first. The time between two ticks is then at most one interval and a fifth, for one replica as for many; after a
crash, what is left of the window comes on top.

A tick may request the next one earlier (`Tick.again_in`), for work with a known time; such ticks come between those of
the grid.

Does not promise that a tick which never awaits is stopped: what it writes has to carry the fence of the tick's lease.

Clock: the monotonic clock that is passed in decides when to tick; waiting is the event loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.core.failpoints import ARMED, areach
from holdfast.core.ports import Clock, Entropy
from holdfast.errors import BadInput, Closed, FencedOut, LeaseLost
from holdfast.flows.log import OutageLog, log_event, log_fields
from holdfast.plane.locks.registry import LockFamily, Scope
from holdfast.plane.loops.cadence import Cadence, Mode
from holdfast.plane.loops.leadership import leadership
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.types import MS, NS, Duration, check_label, duration_ns

GRACE: Final = 10.0
AGAIN_MIN_NS: Final = 20 * MS  # between the end of a tick and a requested one
INTERVAL_MIN_NS: Final = 25 * MS  # half of the shortest lease
INTERVAL_MAX_NS: Final = 86_400 * NS

_log: Final = logging.getLogger("holdfast.plane.loops")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick: its lease, whether it should continue, and when the next one is needed."""

    lease: Lease
    number: int = 0  # its number on the grid of this leadership; 0: the first
    stopping: Callable[[], bool] = lambda: False
    again_in: Callable[[int], None] = lambda _ns: None
    """Request a tick after that many nanoseconds, if the grid has none before. It does not move the grid."""

    @property
    def fence(self) -> int:
        """The fence for its writes."""
        return self.lease.fence

    def more(self) -> bool:
        """Whether to start another batch. False: the loop is stopping. `LeaseLost`: another replica may lead."""
        self.lease.ensure_held()
        return not self.stopping()


TickWork: TypeAlias = Callable[[Tick], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LoopStatistics:
    """Counts of a loop in this replica since it was made."""

    name: str
    mode: Mode
    interval_ns: int
    leader: bool = False
    fence: int | None = None  # of the present leadership
    ticks: int = 0  # that ended well
    failed: int = 0  # that raised
    interrupted: int = 0  # that ran when the grace period was over
    late: int = 0  # ticks that were skipped because one took longer than the interval
    skipped_busy: int = 0  # attempts to lead while another replica did
    skipped_error: int = 0  # attempts to lead that the store did not answer
    lost: int = 0  # leaderships that ended before they were given up
    took_over: int = 0  # leaderships
    last_tick_ns: int | None = None  # when the last good tick ended; wall clock
    last_took_ns: int = 0
    longest_ns: int = 0


class Loop:
    """One loop in one replica. Make it, enter it, and leave it; it cannot be used twice."""

    def __init__(
        self,
        name: str,
        family: LockFamily,
        interval: Duration,
        tick: TickWork,
        *,
        locks: Locks,
        mode: Mode | str = Mode.STICKY,
        at_once: bool = False,
        renew_every: Duration | None = None,
        failures: int | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        grace: Duration = GRACE,
    ) -> None:
        """`at_once`: the first attempt to lead is made at the start, not after a random part of an interval.

        A sticky leader's lease is renewed every `renew_every` (a third of its TTL), and given up when `failures` (3)
        renewals in a row failed. `grace` is how long a tick that runs may continue when the block is left.
        """
        if family.scope is not Scope.LOOP or family.places:
            raise BadInput("family", f"{family.name} is not the lock of a loop", "declare one with scope LOOP")
        interval_ns = duration_ns("interval", interval, low_ns=INTERVAL_MIN_NS, high_ns=INTERVAL_MAX_NS)
        self.name = check_label("name", name)
        self._tick_work = tick
        self._clock = clock or SystemClock()
        self._draw = (entropy or SystemEntropy()).below
        self._cadence = Cadence(interval_ns)
        self._at_once = at_once
        self._grace_ns = duration_ns("grace", grace)
        mode = _mode(mode)
        every = None if renew_every is None else duration_ns("renew_every", renew_every, low_ns=MS) / NS
        timed = family.timed(renew_every=every, failures=failures)
        self._leadership = leadership(mode, locks, timed, self._cadence, entropy or SystemEntropy())
        self._counts = LoopStatistics(self.name, mode, interval_ns)
        self._lockless = OutageLog(
            _log,
            "a tick is skipped, for the lock of its loop could not be had",
            "the lock of a loop can be had again",
            loop=self.name,
        )
        self._stop = asyncio.Event()
        self._stopped: asyncio.Task[bool] | None = None  # done when the loop is to stop
        self._main: asyncio.Task[None] | None = None
        self._working: asyncio.Task[None] | None = None
        self._again_ns: int | None = None  # until a tick that the last one has requested

    def statistics(self) -> LoopStatistics:
        """Counts since the beginning, and whether this replica leads."""
        return self._counts

    async def start(self) -> None:
        """Start. Returns immediately; the store is used in the background."""
        if self._main is not None:
            raise BadInput("loop", f"{self.name} was started before", "make another")
        self._stopped = asyncio.create_task(self._stop.wait(), name=f"loop {self.name} stopped")
        self._main = asyncio.create_task(self._run(self._stopped), name=f"loop {self.name}")

    async def stop(self, grace: Duration | None = None) -> None:
        """Start nothing more, let a running tick finish within `grace`, then cancel it; release the leadership."""
        grace_ns = self._grace_ns if grace is None else duration_ns("grace", grace)
        self._stop.set()
        if self._main is None:
            return
        await asyncio.wait({self._main}, timeout=grace_ns / NS)
        if not self._main.done() and self._working is not None:
            self._working.cancel()
        await asyncio.wait({self._main})
        self._main.result()

    async def ended(self) -> None:
        """Return when it has ended, by a stop or because its locks were closed, or raise what ended it otherwise."""
        if self._main is not None:
            await asyncio.shield(self._main)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(None if error is None else 0)

    # Leading and waiting.

    async def _run(self, stopped: asyncio.Task[bool]) -> None:
        try:
            if not self._at_once:
                await self._pause(self._cadence.phase_ns(self._draw), stopped)
            while not self._stop.is_set():
                lease = await self._take(stopped)
                if lease is not None:
                    await self._lead(lease, stopped)
        except Closed:
            text = "a loop has ended because its locks were closed; stop loops first"
            log_event(_log, logging.ERROR, text, loop=self.name)
        finally:
            stopped.cancel()
            await asyncio.wait({stopped})

    async def _take(self, stopped: asyncio.Task[bool]) -> Lease | None:
        """One attempt to lead, and what is left of the time until the next if it was in vain."""
        try:
            lease = await self._unless(stopped, self._leadership.take())
            if lease is not None or self._stop.is_set():
                return lease
            self._count(skipped_busy=1)
            pause_ns = await self._unless(stopped, self._leadership.busy_ns()) or 0
            self._lockless.ended()
        except Closed:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the next interval may be better
            self._count(skipped_error=1)
            self._lockless.met(error)
            pause_ns = self._cadence.retry_ns(self._draw)
        await self._pause(pause_ns, stopped)
        return None

    async def _lead(self, lease: Lease, stopped: asyncio.Task[bool]) -> None:
        """Tick until the leadership ends: by a stop, a loss, or the end of the window."""
        self._lockless.ended()
        self._count(took_over=1)
        self._counts = replace(self._counts, leader=True, fence=lease.fence)
        over_ns: int | None = None
        try:
            if ARMED:
                await areach("plane.loop.lead")
            over_ns = await self._lead_on(lease, stopped)
        finally:
            self._counts = replace(self._counts, leader=False, fence=None)
            if over_ns is None and lease.lost.is_set():
                self._count(lost=1)
                told = {"loop": self.name, "key": lease.key, "fence": lease.fence, "reason": lease.lost.reason}
                log_fields(_log, logging.WARNING, "leadership of a loop was lost", told, per=self.name)
            await self._leadership.let_go(lease)
        if over_ns is not None:
            await self._pause(over_ns, stopped)

    async def _lead_on(self, lease: Lease, stopped: asyncio.Task[bool]) -> int | None:
        """Ticks. When they end with their window: how long to wait."""
        began, number = self._clock.now().mono, 0
        while not self._stop.is_set() and await self._tick(lease, number):
            now = self._clock.now().mono
            coming, at_ns, missed = self._cadence.next_due(began, number, now, self._draw)
            if self._again_ns is not None and now + self._again_ns < at_ns:
                at_ns = now + self._again_ns
            else:
                number = coming
                self._count(late=missed)
            window_ns = self._leadership.window_ns(lease)
            if window_ns is not None and at_ns - now >= window_ns:
                return self._leadership.over_ns(lease)
            await self._pause(at_ns - now, stopped, lease)
            if not lease.held:  # a window that ran out between two ticks was not lost
                return None if window_ns is None else self._leadership.over_ns(lease)
        return None

    # One tick.

    async def _tick(self, lease: Lease, number: int) -> bool:
        """Run the work once. False: the lease is lost, and the work was cancelled if it had not ended."""
        began = self._clock.now().mono
        self._again_ns = None
        tick = Tick(lease, number, self._stop.is_set, self._again_in)
        work = self._working = asyncio.create_task(_awaited(self._tick_work, tick), name=f"tick of {self.name}")
        loss = asyncio.create_task(self._leadership.lost(lease), name=f"lease of {self.name}")
        try:
            await asyncio.wait({work, loss}, return_when=asyncio.FIRST_COMPLETED)
            cut = not work.done()
        finally:
            for task in (work, loss):
                task.cancel()
            await asyncio.wait({work, loss})
            self._working = None
        if not loss.cancelled() and (error := loss.exception()) is not None:
            log_event(_log, logging.ERROR, "the lease of a loop could not be looked after", error, loop=self.name)
        self._judge(work, lease, self._clock.now().mono - began, cut=cut)
        return not cut and lease.held

    def _judge(self, work: asyncio.Task[None], lease: Lease, took_ns: int, *, cut: bool) -> None:
        """Count and log how a tick ended."""
        self._counts = replace(self._counts, last_took_ns=took_ns, longest_ns=max(self._counts.longest_ns, took_ns))
        error = None if work.cancelled() else work.exception()
        if cut or (isinstance(error, LeaseLost) and error.key == lease.key):
            text = "a tick was cancelled because its lease is lost"
            log_event(
                _log, logging.WARNING, text, loop=self.name, key=lease.key, fence=lease.fence, seconds=took_ns / NS
            )
        elif isinstance(error, FencedOut) and error.key == lease.key:
            # Not a bug: the store has lost our lease, or an operator released it, and we do not know yet.
            self._count(failed=1)
            text = "a tick was refused because a newer leader runs the loop"
            log_event(_log, logging.WARNING, text, loop=self.name, key=lease.key, fence=lease.fence, seen=error.seen)
        elif work.cancelled():
            self._count(interrupted=1)
            log_event(_log, logging.WARNING, "a tick was interrupted", loop=self.name, seconds=took_ns / NS)
        elif error is None:
            self._count(ticks=1)
            self._counts = replace(self._counts, last_tick_ns=self._clock.now().wall)
        else:
            self._count(failed=1)
            log_fields(_log, logging.ERROR, "a tick failed", {"loop": self.name}, error, per=self.name)

    # Waiting.

    async def _pause(self, ns: int, stopped: asyncio.Task[bool], lease: Lease | None = None) -> None:
        """Wait for a while, or until the loop is to stop, or the lease is lost."""
        loss = None if lease is None else asyncio.create_task(lease.lost.wait())
        awaited: set[asyncio.Task[Any]] = {stopped} if loss is None else {stopped, loss}
        try:
            await asyncio.wait(awaited, timeout=ns / NS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if loss is not None:
                loss.cancel()
                await asyncio.wait({loss})

    async def _unless(self, stopped: asyncio.Task[bool], work: Coroutine[Any, Any, T]) -> T | None:
        """Do something that may take long. A stop ends it; what it had got by then is returned all the same."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    def _again_in(self, ns: int) -> None:
        self._again_ns = max(AGAIN_MIN_NS, ns)

    def _count(self, **more: int) -> None:
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + n for name, n in more.items()})


async def _awaited(work: TickWork, tick: Tick) -> None:
    if ARMED:
        await areach("plane.loop.tick")
    await work(tick)
    if ARMED:
        await areach("plane.loop.ticked")


def _mode(mode: Mode | str) -> Mode:
    try:
        return Mode(mode)
    except ValueError:
        raise BadInput("mode", f"{mode!r} is no way to lead", f"use {' or '.join(Mode)}") from None
