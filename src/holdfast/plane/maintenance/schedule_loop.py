"""The loop that submits the jobs of schedules at their due times.

Promises: the loop ticks at each due time that it knows, and finds new ones by the next tick of its interval. Every due
time is decided, also after a crash or a takeover: the times are in the database, and one transaction submits the job
and advances the schedule (`plane.schedules.store`). So ticks of two leaders, which a lost lease makes possible, submit
nothing twice. A schedule whose decision raises is logged, counted, and tried again
by the next tick; the others are decided.

Clock: that of the database; the loop's own for ticks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.aio.client import Locks
from holdfast.plane.db.ports import Row
from holdfast.plane.locks.registry import SCHEDULES, LockFamily
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.loops.loop import Loop, Tick
from holdfast.plane.loops.scan import Scan
from holdfast.plane.model.paging import Place
from holdfast.plane.schedules.store import DueRow, ScheduleCursor, Schedules
from holdfast.types import NS, Duration

INTERVAL: Final = 5.0
OVERDUE_NS: Final = NS  # until the next attempt, if a due time could not be decided or waits for the end of a job


@dataclass(frozen=True, slots=True)
class ScheduleLoopStatistics:
    """Counts of a loop since it was made."""

    fired: int  # submitted jobs
    skipped: int  # due times at which the last job had not finished
    missed: int  # due times that passed while no loop ran, and are not caught up
    errors: int  # decisions that raised, and are made again


class ScheduleLoop:
    """The loop of one plane."""

    def __init__(self, schedules: Schedules, locks: Locks) -> None:
        self._schedules = schedules
        self._locks = locks
        self._tally: Counter[str] = Counter()
        self._scan = Scan("schedules", self._due, "submit_ns")

    def loop(
        self,
        *,
        family: LockFamily = SCHEDULES,
        interval: Duration = INTERVAL,
        mode: Mode | str = Mode.STICKY,
        **settings: Any,
    ) -> Loop:
        """The loop that runs it."""
        return Loop("schedules", family, interval, self.tick, locks=self._locks, mode=mode, **settings)

    def statistics(self) -> ScheduleLoopStatistics:
        """Counts so far."""
        tally = self._tally
        return ScheduleLoopStatistics(tally["fired"], tally["skipped"], tally["missed"], self._scan.errors)

    async def tick(self, tick: Tick) -> None:
        """Decide all due times that have come."""
        await self._scan.walk(tick, self._fire)
        if (next_in_ns := await self._schedules.next_in_ns()) is not None:
            tick.again_in(next_in_ns if next_in_ns > 0 else OVERDUE_NS)

    async def _fire(self, row: Row) -> None:
        decision = await self._schedules.fire(*ScheduleCursor.parsed(row["id"]))
        if decision is not None:
            self._tally.update(fired=len(decision.fired), skipped=decision.skipped, missed=decision.missed)

    async def _due(self, after: Place, most: int) -> Sequence[Row]:
        place = None if not after.id else DueRow(after.at_ns, *ScheduleCursor.parsed(after.id))
        found = await self._schedules.due(place, most)
        return [{"submit_ns": each.submit_ns, "id": ScheduleCursor(each.tenant, each.name).text} for each in found]
