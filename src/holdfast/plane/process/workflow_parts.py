"""The parts of a plane that run workflows: the engine, and two loops that find lost messages and due times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from holdfast.core.metric_reading import Reading
from holdfast.plane.locks.registry import WORKFLOW_DELAYS, WORKFLOW_RECONCILER, WORKFLOW_RUN
from holdfast.plane.maintenance.run_reconciler import RunReconciler
from holdfast.plane.maintenance.timers import Delays
from holdfast.plane.process import metrics as readings
from holdfast.plane.process.components import Components
from holdfast.plane.process.parts import LoopPart
from holdfast.plane.settings.lock_times import family_in_effect
from holdfast.plane.workflows.engine import WorkflowEngine


def engine_of(components: Components, name: str = "engine") -> WorkflowEngine:
    """Moves runs, as the settings want it."""
    return WorkflowEngine(
        components.runs,
        components.locks,
        components.bus,
        delays=components.policing.jitter.delays,
        indicators=components.policing.signals,
        family=family_in_effect(components.settings, WORKFLOW_RUN),
        name=name,
    )


class EnginePart:
    """The workflow engine."""

    name = "engine"

    def __init__(self, components: Components) -> None:
        self._settings = components.settings.engine
        self.engine = engine_of(components)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """See `Part`."""
        await self._stack.enter_async_context(self.engine.serving(concurrency=self._settings.concurrency))

    async def stop(self, grace: float) -> bool:
        """See `Part`. Handlers are short, and the bus bounds how long it waits for them."""
        self.engine.stop()
        await self._stack.aclose()
        return True

    async def ended(self) -> None:
        """See `Part`."""
        await asyncio.Event().wait()

    def detail(self) -> Mapping[str, Any]:
        """See `Part`."""
        return {"handling": self.engine.handling, **self.engine.statistics()}

    def readings(self) -> Iterator[Reading]:
        """See `Part`."""
        return readings.of_engine(self.engine)


def flow_loop_part(components: Components, name: str) -> LoopPart:
    """The part that runs the loop of that name, as the settings want it."""
    settings = components.settings
    how = {
        "mode": settings.value(f"{name}.lead"),
        "interval": settings.value(f"{name}.interval"),
        "renew_every": settings.value(f"{name}.renew_every"),
        "failures": settings.value(f"{name}.failures"),
        "clock": components.clock,
        "entropy": components.entropy,
    }
    engine = engine_of(components, name)
    if name == "delays":
        delays = Delays(engine, components.locks)
        return LoopPart(
            delays.loop(family=family_in_effect(settings, WORKFLOW_DELAYS), **how), partial(readings.of_delays, delays)
        )
    reconciler = RunReconciler(engine, components.locks, patience=settings.runs.patience)
    loop = reconciler.loop(family=family_in_effect(settings, WORKFLOW_RECONCILER), **how)
    return LoopPart(loop, partial(readings.of_run_reconciler, reconciler))
