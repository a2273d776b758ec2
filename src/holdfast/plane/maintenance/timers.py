"""The delay poller wakes runs whose time has come. Delays, retries and time limits are in the same column.

Promises: the next tick handles every time that has come, however long ago: the times are in the database, and one is
removed only by the write that acts on it. A run whose lock is busy is left for the next tick.
Near times do not wait for a tick: a message is due then (`run_store`), and the poller finds those that were lost.

Clock: the wall clock, on which runs carry their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.aio.client import Locks
from holdfast.errors import BackendError, RetryLater
from holdfast.plane.db.ports import Row
from holdfast.plane.db.statements import sql
from holdfast.plane.locks.registry import WORKFLOW_DELAYS, LockFamily
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.loops.loop import Loop, Tick
from holdfast.plane.loops.scan import Scan
from holdfast.plane.model.paging import Place
from holdfast.plane.workflows.core.run import CheckRun
from holdfast.plane.workflows.engine import WorkflowEngine
from holdfast.types import Duration

INTERVAL: Final = 5.0

_DUE: Final = sql("run_due")


@dataclass(frozen=True, slots=True)
class DelayStatistics:
    """Counts of a poller since it was made."""

    woken: int
    left: int  # left for the next tick: their lock was held
    errors: int


class Delays:
    """The delay poller of one plane."""

    def __init__(self, engine: WorkflowEngine, locks: Locks) -> None:
        self.engine = engine
        self._locks = locks
        self._woken = 0
        self._left = 0
        self._scan = Scan("delay poller", self._due, "wake_ns")

    def loop(
        self,
        *,
        family: LockFamily = WORKFLOW_DELAYS,
        interval: Duration = INTERVAL,
        mode: Mode | str = Mode.STICKY,
        **settings: Any,
    ) -> Loop:
        """The loop that runs it."""
        return Loop("delays", family, interval, self.tick, locks=self._locks, mode=mode, **settings)

    def statistics(self) -> DelayStatistics:
        """Counts so far."""
        return DelayStatistics(self._woken, self._left, self._scan.errors)

    async def tick(self, tick: Tick) -> None:
        """Wake every run whose time has come."""
        await self._scan.walk(tick, self._wake)

    async def _wake(self, row: Row) -> None:
        try:
            await self.engine.move(row["id"], CheckRun(), actor="delays", risk=row["risk"], timeout=0.0)
        except RetryLater as later:
            if isinstance(later.__cause__, BackendError):
                raise later.__cause__ from later
            self._left += 1
            return
        self._woken += 1

    async def _due(self, after: Place, most: int) -> Sequence[Row]:
        now_ns = self.engine.runs.clock.now().wall
        values = {"now_ns": now_ns, "wake_ns": after.at_ns, "id": after.id, "most": most}
        return await self.engine.runs.query(_DUE, values)
