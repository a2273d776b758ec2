"""The parts of a plane that a process can run: each can be started and stopped, and reports its health and its failure.

A part can run alone and in any number of replicas: they share the stores and leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from holdfast.core.metric_reading import Reading
from holdfast.plane.app import App
from holdfast.plane.jobs.progress import ProgressStore
from holdfast.plane.locks.registry import (
    DEAD_LETTER_CLEANUP,
    RECONCILER,
    REPLAYER,
    SCHEDULER_JOB,
    SCHEDULES,
    SNAPSHOT_WRITER,
    WORKER_JOB,
)
from holdfast.plane.loops.loop import Loop
from holdfast.plane.maintenance.reconciler import Reconciler
from holdfast.plane.maintenance.replayer import Replayer
from holdfast.plane.maintenance.retention import Cleanup, finished_runs, old_approvals
from holdfast.plane.maintenance.schedule_loop import ScheduleLoop
from holdfast.plane.maintenance.worker_snapshot import Snapshots, SnapshotWriter
from holdfast.plane.process import metrics as readings
from holdfast.plane.process.components import Components
from holdfast.plane.scheduler.placement import Placement
from holdfast.plane.scheduler.scheduler import Scheduler
from holdfast.plane.service.children import ChildJobs
from holdfast.plane.settings.lock_times import family_in_effect
from holdfast.plane.settings.settings import Settings
from holdfast.plane.worker.staleness import Attempts
from holdfast.plane.worker.worker import Worker


class State(StrEnum):
    """Where a part is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PartHealth:
    """The health of a part."""

    part: str
    state: State
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        """Whether it works."""
        return self.state is State.RUNNING

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {"part": self.part, "state": str(self.state), **self.detail}


class Part(Protocol):
    """One part of a plane."""

    @property
    def name(self) -> str:
        """The name of the part."""
        ...

    async def start(self) -> None:
        """Start. Raises what prevents that."""
        ...

    async def stop(self, grace: float) -> bool:
        """Start nothing more, finish running work within `grace` seconds, return the rest. False: some was returned."""
        ...

    async def ended(self) -> None:
        """Return or raise when it ends without `stop`. A part that cannot do so never returns."""
        ...

    def detail(self) -> Mapping[str, Any]:
        """Its current work, for people and programs."""
        ...

    def readings(self) -> Iterable[Reading]:
        """Its counters, for metrics."""
        ...


class SchedulerPart:
    """The scheduler and its dispatcher."""

    name = "scheduler"

    def __init__(self, components: Components) -> None:
        self._settings = components.settings.scheduler
        self.scheduler = Scheduler(placement_of(components), components.bus)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """See `Part`."""
        how = self.scheduler.serving(concurrency=self._settings.concurrency, ack_wait=self._settings.silence)
        await self._stack.enter_async_context(how)

    async def stop(self, grace: float) -> bool:
        """See `Part`. Handlers are short, and the bus bounds how long it waits for them."""
        self.scheduler.stop()
        await self._stack.aclose()
        return True

    async def ended(self) -> None:
        """See `Part`. The bus handles trouble with messages; only the dispatcher can fail."""
        await self.scheduler.dispatcher.ended()

    def detail(self) -> Mapping[str, Any]:
        """See `Part`."""
        return {
            "handling": self.scheduler.handling,
            **self.scheduler.statistics(),
            **{f"dispatcher.{name}": count for name, count in self.scheduler.dispatcher.statistics().items()},
        }

    def readings(self) -> Iterator[Reading]:
        """See `Part`."""
        return readings.of_scheduler(self.scheduler)


class LoopPart:
    """One of the periodic tasks."""

    def __init__(self, loop: Loop, counts: Callable[[], Iterable[Reading]] = tuple) -> None:
        """`counts`: counters of the task itself, besides those of its loop."""
        self.name = loop.name
        self._loop = loop
        self._task_counts = counts

    async def start(self) -> None:
        """See `Part`."""
        await self._loop.start()

    async def stop(self, grace: float) -> bool:
        """See `Part`."""
        interrupted = self._loop.statistics().interrupted
        await self._loop.stop(grace)
        return self._loop.statistics().interrupted == interrupted

    async def ended(self) -> None:
        """See `Part`."""
        await self._loop.ended()

    def detail(self) -> Mapping[str, Any]:
        """See `Part`."""
        counts = asdict(self._loop.statistics())
        return {**counts, "mode": str(counts["mode"])}

    def readings(self) -> Iterator[Reading]:
        """See `Part`."""
        yield from readings.of_loop(self._loop.statistics())
        yield from self._task_counts()


class WorkerPart:
    """The workers of this process."""

    name = "worker"

    def __init__(self, components: Components, app: App, names: Iterable[str] = ()) -> None:
        """`names`: of the workers; others get a generated name."""
        given = iter(names)
        count = components.settings.worker.count
        self.workers: Sequence[Worker] = [worker_of(components, app, next(given, None)) for _ in range(count)]

    async def start(self) -> None:
        """See `Part`."""
        async with asyncio.TaskGroup() as tasks:
            for worker in self.workers:
                tasks.create_task(worker.start())

    async def stop(self, grace: float) -> bool:
        """See `Part`."""
        drained = await asyncio.gather(*(worker.drain(grace) for worker in self.workers))
        return all(each.finished for each in drained)

    def hurry(self) -> None:
        """End the grace period of a stop that is under way."""
        for worker in self.workers:
            worker.hurry()

    async def ended(self) -> None:
        """See `Part`."""
        waits = [asyncio.ensure_future(worker.wait()) for worker in self.workers]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)
        for each in done:
            each.result()

    def detail(self) -> Mapping[str, Any]:
        """See `Part`."""
        counts = [worker.statistics() for worker in self.workers]
        return {
            "workers": [worker.name for worker in self.workers],
            "active": sum(each.active for each in counts),
            "stuck": sum(each.stuck for each in counts),
        }

    def readings(self) -> Iterator[Reading]:
        """See `Part`."""
        capacity = sum(worker.capacity for worker in self.workers)
        return readings.of_workers([worker.statistics() for worker in self.workers], capacity)


def loop_part(components: Components, name: str) -> LoopPart:
    """The part that runs the loop of that name, with its settings."""
    settings, locks = components.settings, components.locks
    how = {
        "mode": settings.value(f"{name}.lead"),
        "renew_every": settings.value(f"{name}.renew_every"),
        "failures": settings.value(f"{name}.failures"),
        "clock": components.clock,
        "entropy": components.entropy,
    }
    if name == "reconciler":
        family = family_in_effect(settings, SCHEDULER_JOB)
        limits, delays = settings.limits.states, components.policing.jitter.delays
        reconciler = Reconciler(components.store, locks, limits=limits, delays=delays, family=family)
        loop = reconciler.loop(
            family=family_in_effect(settings, RECONCILER), interval=settings.reconciler.interval, **how
        )
        return LoopPart(loop, partial(readings.of_reconciler, reconciler))
    if name == "replayer":
        placement = placement_of(components, actor="replayer")
        replayer = Replayer(
            placement,
            limits=settings.limits.states,
            interval=settings.replayer.interval,
            runs=family_in_effect(settings, WORKER_JOB),
        )
        loop = replayer.loop(family=family_in_effect(settings, REPLAYER), **how)
        return LoopPart(loop, partial(readings.of_replayer, replayer, placement))
    if name == "snapshot":
        family = family_in_effect(settings, SNAPSHOT_WRITER)
        snapshots = Snapshots(components.database, components.clock, components.audit, family)
        writer = SnapshotWriter(components.workers, snapshots, locks, components.clock)
        return LoopPart(writer.loop(interval=settings.snapshot.interval, **how))
    if name == "schedules":
        schedule_loop = ScheduleLoop(components.schedules, locks)
        loop = schedule_loop.loop(
            family=family_in_effect(settings, SCHEDULES), interval=settings.schedules.interval, **how
        )
        return LoopPart(loop, partial(readings.of_schedules, schedule_loop))
    flows = (finished_runs, old_approvals)
    cleanup = Cleanup(
        components.database,
        locks,
        components.clock,
        retention=settings.cleanup.retention,
        flows=flows,
        observer=components.audit,
        family=family_in_effect(settings, DEAD_LETTER_CLEANUP),
    )
    loop = cleanup.loop(interval=settings.cleanup.interval, **how)
    return LoopPart(loop, lambda: readings.of_cleanup(cleanup.statistics()))


def placement_of(components: Components, actor: str = "scheduler") -> Placement:
    """Places jobs, with the settings of the scheduler."""
    settings = components.settings.scheduler
    return Placement(
        components.store,
        components.locks,
        components.workers,
        delays=components.policing.jitter.delays,
        topic_grace_ns=settings.topic_grace_ns,
        prefetch=settings.prefetch,
        actor=actor,
        family=family_in_effect(components.settings, SCHEDULER_JOB),
    )


def worker_of(components: Components, app: App, name: str | None = None) -> Worker:
    """A worker with its settings. Without a name it gets a generated one."""
    settings: Settings = components.settings
    chosen = settings.worker
    return Worker(
        app,
        bus=components.bus,
        locks=components.locks,
        registry=components.workers,
        currency=Attempts(components.database, heartbeat=chosen.heartbeat),
        progress=ProgressStore(components.database),
        children=ChildJobs(components.service),
        pools=chosen.pools or None,
        concurrency=chosen.concurrency,
        heartbeat=chosen.heartbeat,
        lease_ttl=chosen.lease_ttl,
        lease_renew_every=chosen.lease_renew_every,
        lease_failures=chosen.lease_failures,
        family=family_in_effect(settings, WORKER_JOB),
        cancel_grace=chosen.cancel_grace,
        clock=components.clock,
        entropy=components.entropy,
        delays=components.policing.jitter.delays,
        name=name,
        claim_leases=chosen.claim_leases,
    )


def writes_needed(settings: Settings, parts: Collection[str]) -> bool:
    """Whether these parts can do their work only with a database that takes writes.

    All do, except workers alone: with a bus and leases elsewhere, a worker runs its assignments and reports results
    without the database. It cannot store heartbeats then; but no scheduler could send it anything either.
    """
    return set(parts) != {WorkerPart.name} or settings.bus is None or settings.leases_in_database
