"""The parts of a plane, each with the same four verbs: start, stop within a time, say how it is, and say when it fails.

A part can run alone and in any number of replicas: what they share is the ground that they stand on, and leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from holdfast.plane import subjects
from holdfast.plane.app import App
from holdfast.plane.attempts import Attempts
from holdfast.plane.cleanup import Cleanup
from holdfast.plane.loops import Loop
from holdfast.plane.opening import Ground
from holdfast.plane.placement import Placement
from holdfast.plane.ports import Consumer, Consumption
from holdfast.plane.reconciler import Reconciler
from holdfast.plane.replayer import Replayer
from holdfast.plane.scheduler import Scheduler
from holdfast.plane.settings import Settings
from holdfast.plane.snapshot import Snapshots, SnapshotWriter
from holdfast.plane.worker import Worker
from holdfast.types import NS


class State(StrEnum):
    """Where a part is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Health:
    """How a part is."""

    part: str
    state: State
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        """Whether it does what it is there for."""
        return self.state is State.RUNNING

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {"part": self.part, "state": str(self.state), **self.detail}


class Part(Protocol):
    """One part of a plane."""

    @property
    def name(self) -> str:
        """Which one it is."""
        ...

    async def start(self) -> None:
        """Begin. Returns when it does, or raises what stands in the way."""
        ...

    async def stop(self, grace: float) -> bool:
        """Begin nothing more, finish what was begun within `grace` seconds, give back the rest. False: some was."""
        ...

    async def ended(self) -> None:
        """Return when it has ended without being asked to, or raise why. A part that cannot end so never returns."""
        ...

    def detail(self) -> Mapping[str, Any]:
        """What it does now, for people and programs."""
        ...


class SchedulerPart:
    """The scheduler and its dispatcher."""

    name = "scheduler"

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._settings = ground.settings.scheduler
        placement = Placement(ground.store, ground.locks, ground.workers, delays=self._settings.delays)
        self.scheduler = Scheduler(placement, ground.bus)
        self._stack = AsyncExitStack()
        self._consumers: list[Consumer] = []

    async def start(self) -> None:
        """See `Part`."""
        await self._stack.enter_async_context(self.scheduler.dispatcher.running())
        for subject, handler in self.scheduler.handlers.items():
            how = Consumption(
                subject,
                subjects.SCHEDULER,
                concurrency=self._settings.concurrency,
                ack_wait_ns=round(self._settings.ack_wait * NS),
            )
            self._consumers.append(await self._stack.enter_async_context(self._ground.bus.consume(how, handler)))

    async def stop(self, grace: float) -> bool:
        """See `Part`. Handlers are short, and the bus bounds how long it waits for them."""
        self.scheduler.stop()
        await self._stack.aclose()
        return True

    async def ended(self) -> None:
        """See `Part`."""
        await asyncio.Event().wait()

    def detail(self) -> Mapping[str, Any]:
        """See `Part`."""
        return {
            "handling": sum(each.handling for each in self._consumers),
            **self.scheduler.statistics(),
            **{f"dispatcher.{name}": count for name, count in self.scheduler.dispatcher.statistics().items()},
        }


class LoopPart:
    """One of the periodic tasks."""

    def __init__(self, loop: Loop) -> None:
        self.name = loop.name
        self._loop = loop

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
        await asyncio.Event().wait()

    def detail(self) -> Mapping[str, Any]:
        """See `Part`."""
        counts = asdict(self._loop.statistics())
        return {**counts, "mode": str(counts["mode"])}


class WorkerPart:
    """The workers of this process."""

    name = "worker"

    def __init__(self, ground: Ground, app: App) -> None:
        self.workers: Sequence[Worker] = [_worker(ground, app) for _ in range(ground.settings.worker.count)]

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


def loop_of(ground: Ground, name: str) -> Loop:
    """The loop of that name, as the settings want it."""
    settings, locks = ground.settings, ground.locks
    how = {"mode": settings.value(f"{name}.lead"), "clock": ground.clock, "entropy": ground.entropy}
    if name == "reconciler":
        reconciler = Reconciler(ground.store, locks, limits=settings.limits.states, delays=settings.scheduler.delays)
        return reconciler.loop(interval=settings.reconciler.interval, **how)
    if name == "replayer":
        look = Placement(ground.store, locks, ground.workers, delays=settings.scheduler.delays, actor="replayer")
        return Replayer(look, limits=settings.limits.states, interval=settings.replayer.interval).loop(**how)
    if name == "snapshot":
        writer = SnapshotWriter(ground.workers, Snapshots(ground.database, ground.clock), locks, ground.clock)
        return writer.loop(interval=settings.snapshot.interval, **how)
    cleanup = Cleanup(ground.database, locks, ground.clock, retention=settings.cleanup.retention)
    return cleanup.loop(interval=settings.cleanup.interval, **how)


def _worker(ground: Ground, app: App) -> Worker:
    settings: Settings = ground.settings
    chosen = settings.worker
    return Worker(
        app,
        bus=ground.bus,
        locks=ground.locks,
        registry=ground.workers,
        currency=Attempts(ground.database),
        pools=chosen.pools or None,
        concurrency=chosen.concurrency,
        heartbeat=chosen.heartbeat,
        lease_ttl=chosen.lease_ttl,
        cancel_grace=chosen.cancel_grace,
        clock=ground.clock,
        entropy=ground.entropy,
        delays=settings.scheduler.delays,
    )
