"""All commands and queries for schedules, as plain methods.

The command line, the client and the HTTP API call these methods. The promises of `service` about tenants and repeated
commands hold here too.

Clock: that of the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.plane.model.caller import PAGE_MAX, Caller
from holdfast.plane.model.records import Job, Submission, check_id, check_whole
from holdfast.plane.schedules.model import Schedule, ScheduleSpec, ScheduleState
from holdfast.plane.schedules.rules import upcoming
from holdfast.plane.schedules.store import FIRST, ScheduleCursor, Schedules
from holdfast.plane.service.submission import check_not_reserved

UPCOMING: Final = 5


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Some of the schedules. `after`: where the next page begins; None: there is none."""

    items: list[Schedule]
    after: ScheduleCursor | None


class ScheduleService:
    """The commands and queries for schedules."""

    def __init__(self, schedules: Schedules) -> None:
        self.store = schedules

    async def page(
        self, caller: Caller, *, tenant: str | None = None, after: ScheduleCursor = FIRST, limit: int = 100
    ) -> SchedulePage:
        """Schedules by tenant and name."""
        most = check_whole("limit", limit, 1, PAGE_MAX)
        found = await self.store.page(caller.scope(tenant), after, most + 1)
        items = found[:most]
        last = ScheduleCursor(items[-1].tenant, items[-1].spec.name) if len(found) > most else None
        return SchedulePage(items, last)

    async def get(self, caller: Caller, name: str, *, tenant: str | None = None) -> Schedule:
        """One schedule, or `RowMissing`."""
        return await self.store.get(caller.own(tenant), name)

    async def put(
        self, caller: Caller, spec: ScheduleSpec, *, paused: bool = False, replaces: bool = True
    ) -> tuple[Schedule, bool]:
        """Create a schedule, or change it; also returns whether it was created. See `Schedules.put`."""
        caller.own(spec.tenant)
        return await self.store.put(spec, actor=caller.name, paused=paused, replaces=replaces)

    async def pause(
        self, caller: Caller, name: str, *, reason: str = "", tenant: str | None = None
    ) -> tuple[Schedule, bool]:
        """Stop firing until `resume`; also returns whether that changed anything."""
        return await self.store.pause(caller.own(tenant), name, actor=caller.name, reason=reason)

    async def resume(self, caller: Caller, name: str, *, tenant: str | None = None) -> tuple[Schedule, bool]:
        """Fire again, from the next due time on; also returns whether that changed anything."""
        return await self.store.resume(caller.own(tenant), name, actor=caller.name)

    async def delete(self, caller: Caller, name: str, *, tenant: str | None = None) -> Schedule:
        """Delete a schedule; its jobs stay."""
        return await self.store.delete(caller.own(tenant), name)

    async def run(
        self, caller: Caller, name: str, *, id: str | None = None, tenant: str | None = None
    ) -> tuple[Job, bool]:
        """Submit a job of a schedule now, also if it is paused; also returns whether the job was inserted.

        `id`: of the job, made up by the caller, who can then repeat the request.
        """
        if id is not None:
            check_not_reserved(Submission("any", id=check_id("id", id)))
        return await self.store.run(caller.own(tenant), name, actor=caller.name, identity=id)

    async def upcoming(self, schedule: Schedule, most: int = UPCOMING) -> list[int]:
        """The next due times of a schedule. A paused one has none."""
        if schedule.state is not ScheduleState.ACTIVE:
            return []
        begin_ns = max(schedule.decided.done_ns, await self.store.now_ns())
        return upcoming(schedule.spec.timetable(), begin_ns, most)
