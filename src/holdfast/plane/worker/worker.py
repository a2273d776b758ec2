"""A worker: takes attempts from its pools, runs them under leases, tells the registry that it lives, and goes in peace.

    async with Worker(app, bus=bus, locks=locks, registry=registry, concurrency=8) as worker:
        await worker.wait()

Promises: see `attempt` for what happens to a message, `worker_pool` for how many are taken. When a worker is drained it
takes nothing more from that moment, lets what runs finish within the grace period, and gives the rest back: nothing is
acknowledged that was not done. What is not done in time is told to stop early enough to have its `cancel_grace` within
the grace period, and not on top of it; if that is the longer of the two, it counts, and everything is told at once.
The end of either, a second or half of it, is kept for giving back and closing: no function is waited for then. Does not
promise that a function runs once: a worker that dies, or is paused for longer than its lease, is followed by another.
Clock: heartbeats carry wall-clock time and are sent on the loop's own.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Protocol, Self

from holdfast.aio.client import Locks
from holdfast.core.histogram import Distribution
from holdfast.core.ports import Clock, Entropy, RidesAlong
from holdfast.core.retry_delays import AnyDelays
from holdfast.errors import BackendError, BadInput, Timeout
from holdfast.flows.log import Trouble, say
from holdfast.plane.app import App
from holdfast.plane.db.ports import Bus, Consumption
from holdfast.plane.jobs.progress import ProgressReporter, ProgressStore
from holdfast.plane.locks import registry as families
from holdfast.plane.locks.registry import LockFamily
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.records import CONCURRENCY_MAX, Heartbeat, check_name, check_whole
from holdfast.plane.worker.attempt import Attempt, Workplace, lease_family
from holdfast.plane.worker.executor import Crew
from holdfast.plane.worker.result_cache import Finished
from holdfast.plane.worker.slots import WorkerPool
from holdfast.plane.worker.staleness import StalenessCheck
from holdfast.plane.worker.statistics import WorkerStatistics
from holdfast.runtime.system import SystemClock, SystemEntropy, this_owner
from holdfast.types import NS, Duration, duration_ns

BEAT_TIMEOUT_S: Final = 2.0
GRACE: Final = 30.0
STOPS_AT_ONCE: Final = 8
SETTLE_NS: Final = NS
"""For giving back, releasing and closing, when everything has stopped or would not."""

_log: Final = logging.getLogger("holdfast.plane.worker")


class Registry(Protocol):
    """Where workers say that they live. `plane.fleet.registry.Workers` is one."""

    async def record(self, said: Heartbeat) -> bool:
        """Keep what a worker says about itself."""
        ...

    async def leave(self, worker: str) -> bool:
        """The worker has left for good."""
        ...


@dataclass(frozen=True, slots=True)
class Drained:
    """How a worker ended."""

    interrupted: int  # attempts that had to be stopped; their messages were given back
    stuck: int  # functions that ran on although they were told to stop

    @property
    def finished(self) -> bool:
        """Whether everything that had been begun was finished."""
        return not self.interrupted and not self.stuck


class Worker:
    """Runs the functions of an app. Make it, enter it, and leave it; it cannot be used twice."""

    def __init__(
        self,
        app: App,
        *,
        bus: Bus,
        locks: Locks,
        registry: Registry,
        currency: StalenessCheck | None = None,
        progress: ProgressStore | None = None,
        pools: Sequence[str] | None = None,
        concurrency: int = 8,
        name: str | None = None,
        heartbeat: Duration = 5.0,
        lease_ttl: Duration | None = None,
        lease_renew_every: Duration | None = None,
        lease_failures: int | None = None,
        family: LockFamily = families.WORKER_JOB,
        cancel_grace: Duration = 5.0,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        delays: AnyDelays = families.RETRY_DELAYS,
    ) -> None:
        """`pools`: all that the app has topics for, unless given. `concurrency`: attempts at once, in each pool.

        `currency` is asked whether a message that was delivered before is still wanted; None: it is run in any case.
        `progress` stores what functions report with `ctx.progress()`; None: it is not stored.
        `name` must be this worker's alone. `lease_ttl` bounds how soon another takes over (30 s); the lease is renewed
        every `lease_renew_every` (a third of that), and given up when `lease_failures` (3) renewals in a row failed.
        `family` names these leases: where the plane has a key prefix of its own, so must its workers.
        `cancel_grace` is how long a function may go on after it was asked to stop, before its lease is given up.
        """
        self.name = _own_name(app) if name is None else check_name("name", name)
        check_whole("concurrency", concurrency, 1, CONCURRENCY_MAX)
        self._bus = bus
        self._registry = registry
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._beat_every_ns = duration_ns("heartbeat", heartbeat, low_ns=1_000_000)
        leases = lease_family(lease_ttl, lease_renew_every, lease_failures, family)
        self._ack_wait_ns = round(leases.ttl * NS)  # whoever is silent for so long has lost its lease as well
        # A lease that is written with the plane's own commits is durable with all that stands before it.
        store = locks.ports.store
        self._leases_last = isinstance(store, RidesAlong) and store.rides
        chosen = _chosen(app, pools)
        topics = [topic for topic, function in app.functions.items() if function.pool in chosen]
        self._unheard = Trouble(_log, "the registry does not hear a worker", "the registry hears a worker again")
        self._counts = WorkerStatistics(held={topic: Distribution() for topic in topics})
        self._crew = Crew(f"holdfast-{self.name}")
        self._draining = asyncio.Event()
        self._hurried = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._grace_ns = round(GRACE * NS)
        self._cancel_grace_ns = duration_ns("cancel_grace", cancel_grace)
        self._progress = None if progress is None else ProgressReporter(progress)
        self._serving: asyncio.Task[None] | None = None
        owner = this_owner(app.name)
        self._host, self._pid = owner.host, owner.pid
        model = Workplace(
            worker=self.name,
            bus=bus,
            locks=locks,
            clock=self._clock,
            entropy=self._entropy,
            crew=self._crew,
            finished=Finished(),
            statistics=self._counts,
            hurried=self._hurried,
            family=leases,
            cancel_grace_ns=self._cancel_grace_ns,
            delays=delays,
            currency=currency,
            progress=self._progress,
        )
        places = [model if len(chosen) == 1 else replace(model, worker=f"{self.name}:{pool}") for pool in chosen]
        self._worker_pools = [
            WorkerPool(app, pool, concurrency, place, self._beat_now.set)
            for pool, place in zip(chosen, places, strict=True)
        ]

    def statistics(self) -> WorkerStatistics:
        """Counts since the beginning, and what runs now."""
        return replace(
            self._counts, active=len(self.running()), stuck=sum(worker_pool.stuck for worker_pool in self._worker_pools)
        )

    @property
    def capacity(self) -> int:
        """How many attempts it can make at once, in all its pools together."""
        return sum(worker_pool.places for worker_pool in self._worker_pools)

    def running(self) -> list[Attempt]:
        """The attempts that are being made now."""
        return [attempt for worker_pool in self._worker_pools for attempt in worker_pool.attempts]

    async def start(self) -> None:
        """Announce the worker and take messages. Returns when it does, or raises what stood in the way."""
        if self._serving is not None:
            raise BadInput("worker", f"{self.name} was started before", "make another")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(self._serve(ready), name=f"worker {self.name}")
        try:
            await asyncio.wait((ready, self._serving), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # a start that is given up leaves nobody behind who still tries
            self._serving.cancel()
            await asyncio.wait((self._serving,))
            self._serving = None
            raise
        if not ready.done():
            await self._serving  # it ended before it was ready, in an error

    async def wait(self) -> None:
        """Return when the worker has been drained, by whomever; raise what ended it otherwise."""
        if self._serving is not None:
            await asyncio.shield(self._serving)

    async def drain(self, grace: Duration = GRACE) -> Drained:
        """Take nothing more, let what runs finish within `grace`, stop and give back the rest. Idempotent.

        The last `cancel_grace` of it, but for a second, is for what was told to stop; a shorter `grace` tells
        everything at once.
        """
        grace_ns = duration_ns("grace", grace)
        if not self._draining.is_set():
            self._grace_ns = grace_ns
            self._draining.set()
        await self.wait()
        return Drained(
            sum(each.interrupted for each in self._worker_pools), sum(each.stuck for each in self._worker_pools)
        )

    def hurry(self) -> None:
        """End the grace period now: stop what runs, wait for no store and no bus. Drains if nobody has asked yet."""
        self._hurried.set()
        self._draining.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain(GRACE if error is None else 0)

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        beating = asyncio.create_task(self._beat_on())
        try:
            async with AsyncExitStack() as stack:
                for worker_pool in self._worker_pools:
                    stops = Consumption(subjects.stop_subject(worker_pool.worker), subjects.WORKERS, STOPS_AT_ONCE)
                    await stack.enter_async_context(self._bus.consume(stops, worker_pool.stop))
                for worker_pool in self._worker_pools:
                    worker_pool.open(
                        await stack.enter_async_context(self._bus.consume(self._how(worker_pool), worker_pool.handle))
                    )
                ready.set_result(None)
                await self._draining.wait()
                await self._finish()
        finally:
            for worker_pool in self._worker_pools:
                worker_pool.close()
            beating.cancel()
            await asyncio.wait((beating,))
            self._crew.close()
            if self._progress is not None:
                await self._progress.close()
        for worker_pool in self._worker_pools:
            await self._tell(self._registry.leave(worker_pool.worker), worker_pool)

    def _how(self, worker_pool: WorkerPool) -> Consumption:
        shared, *own = worker_pool.subjects
        return Consumption(
            shared,
            subjects.WORKERS,
            also=tuple(own),
            concurrency=worker_pool.places,
            ack_wait_ns=self._ack_wait_ns,
            judges_lost=True,
            lasting=not self._leases_last,
            along=worker_pool.along,
        )

    async def _finish(self) -> None:
        """Take nothing more; wait until all is done, the rest must be told to stop, or somebody is in a hurry."""
        for worker_pool in self._worker_pools:
            worker_pool.drain()
        self._beat_now.set()
        say(_log, logging.INFO, "worker takes nothing more", worker=self.name, running=len(self.running()))
        done = asyncio.gather(*(worker_pool.empty() for worker_pool in self._worker_pools))
        hurried = asyncio.create_task(self._hurried.wait())
        patience_ns = _patience_ns(self._grace_ns, self._cancel_grace_ns)
        try:
            await asyncio.wait((done, hurried), timeout=patience_ns / NS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done.cancel()
            hurried.cancel()
            await asyncio.gather(done, hurried, return_exceptions=True)  # not `wait`: the end of `done` is to be seen
        for worker_pool in self._worker_pools:
            worker_pool.interrupt(_stopping_ns(self._grace_ns, self._cancel_grace_ns))
        self._hurried.set()

    async def _beat_on(self) -> None:
        """Say that we live, at once when there is news, and every few seconds; not in step with other workers."""
        while True:
            self._beat_now.clear()
            await self._beat()
            spread = self._beat_every_ns // 5
            delay_ns = self._beat_every_ns - spread + self._entropy.below(2 * spread + 1)
            try:
                async with asyncio.timeout(delay_ns / NS):
                    await self._beat_now.wait()
            except TimeoutError:
                continue

    async def _beat(self) -> None:
        for worker_pool in self._worker_pools:
            heartbeat = worker_pool.heartbeat(self._clock.now().wall, self._host, self._pid)
            self._counts.beats += await self._tell(self._registry.record(heartbeat), worker_pool)

    async def _tell(self, word: Coroutine[Any, Any, bool], worker_pool: WorkerPool) -> bool:
        """Tell the registry something. A worker that cannot say that it lives goes on living."""
        try:
            try:
                async with asyncio.timeout(BEAT_TIMEOUT_S):
                    await word
            except TimeoutError as error:
                if isinstance(error, BackendError):
                    raise
                raise Timeout(f"no answer within {BEAT_TIMEOUT_S:g} s") from None  # a store is slow: no riddle
        except Exception as error:  # noqa: BLE001 - whatever the registry's trouble is, it must not become ours
            self._counts.beats_failed += 1
            self._unheard.met(error, worker=worker_pool.worker)
            return False
        self._unheard.ended()
        return True

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} pools={[each.pool for each in self._worker_pools]} active={len(self.running())}>"


def _patience_ns(grace_ns: int, cancel_grace_ns: int) -> int:
    """How long what runs is left alone, if all is to be over when the grace period is: also the stopping takes time."""
    return max(0, grace_ns - cancel_grace_ns - SETTLE_NS)


def _stopping_ns(grace_ns: int, cancel_grace_ns: int) -> int:
    """How long what was told to stop is waited for, so that the rest of the end has its time too."""
    whole_ns = max(grace_ns, cancel_grace_ns)
    return min(cancel_grace_ns, whole_ns - min(SETTLE_NS, whole_ns // 2))


def _chosen(app: App, pools: Sequence[str] | None) -> tuple[str, ...]:
    if not app.functions:
        raise BadInput("app", f"{app.name} has no jobs", "decorate a function with @app.job(topic)")
    if pools is None:
        return app.pools
    chosen = tuple(dict.fromkeys(check_name("pool", pool) for pool in pools))
    unknown = [pool for pool in chosen if pool not in app.pools]
    if unknown or not chosen:
        have = ", ".join(app.pools)
        raise BadInput("pools", f"{', '.join(unknown) or 'none'}: {app.name} has no topic there", f"use {have}")
    return chosen


def _own_name(app: App) -> str:
    """A name that no other worker has: who, where, which process, and a few random characters."""
    owner = this_owner(app.name)
    host = re.sub(r"[^A-Za-z0-9_-]", "-", owner.host)[:30]
    return f"{app.name[:40]}-{host}-{owner.pid}-{owner.instance}"
