"""Routes for schedules: jobs that the plane submits at due times."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Response

from holdfast.plane.schedules.model import Schedule
from holdfast.plane.schedules.store import FIRST, ScheduleCursor
from holdfast.plane.service.service import Service
from holdfast.web import cursors
from holdfast.web.middleware.auth import Asking, Role, Segment, Serving, needs, own_tenant
from holdfast.web.middleware.json_body import JsonRoute
from holdfast.web.schemas.jobs import JobShown
from holdfast.web.schemas.schedules import (
    OneSchedule,
    PauseSchedule,
    PutSchedule,
    RunSchedule,
    ScheduleFilter,
    SchedulePageShown,
    ScheduleShown,
)

SCHEDULES = "schedules"

router = APIRouter(tags=["schedules"], route_class=JsonRoute)

_KNOWN: dict[int | str, dict[str, Any]] = {200: {"model": ScheduleShown, "description": "It existed already."}}
_AGAIN: dict[int | str, dict[str, Any]] = {200: {"model": JobShown, "description": "The job existed already."}}

Whose = Annotated[OneSchedule, Query()]


@router.get("/schedules", dependencies=[needs(Role.VIEWER)], summary="List schedules")
async def schedules(service: Serving, caller: Asking, which: Annotated[ScheduleFilter, Query()]) -> SchedulePageShown:
    """Schedules by tenant and name."""
    after = FIRST
    if which.cursor is not None:
        after = ScheduleCursor.parsed(cursors.place_in(SCHEDULES, which.cursor)[0], "cursor")
    page = await service.schedules.page(caller, tenant=which.tenant, after=after, limit=which.limit)
    cursor = None if page.after is None else cursors.cursor_of(SCHEDULES, page.after.text, 0)
    return SchedulePageShown(items=[ScheduleShown.of(each) for each in page.items], next=cursor)


@router.get("/schedules/{name}", dependencies=[needs(Role.VIEWER)], summary="Show a schedule")
async def schedule(name: Segment, service: Serving, caller: Asking, whose: Whose) -> ScheduleShown:
    """One schedule with its next due times."""
    return await _whole(service, await service.schedules.get(caller, name, tenant=whose.tenant))


@router.put(
    "/schedules/{name}",
    status_code=201,
    responses=_KNOWN,
    dependencies=[needs(Role.OPERATOR)],
    summary="Create or change a schedule",
)
async def put_schedule(
    name: Segment, asked: PutSchedule, response: Response, service: Serving, caller: Asking, whose: Whose
) -> ScheduleShown:
    """Create a schedule, or replace its options. Other due times begin now. 409 if an app declares it."""
    spec = asked.spec(name, own_tenant(caller, whose.tenant))
    stored, new = await service.schedules.put(caller, spec, paused=asked.paused, replaces=asked.replace)
    response.status_code = 201 if new else 200
    return await _whole(service, stored)


@router.delete(
    "/schedules/{name}",
    status_code=204,
    response_class=Response,
    dependencies=[needs(Role.OPERATOR)],
    summary="Delete a schedule",
)
async def delete_schedule(name: Segment, service: Serving, caller: Asking, whose: Whose) -> None:
    """Delete a schedule. Its jobs stay. 409 if an app declares it."""
    await service.schedules.delete(caller, name, tenant=whose.tenant)


@router.post("/schedules/{name}/pause", dependencies=[needs(Role.OPERATOR)], summary="Pause a schedule")
async def pause_schedule(
    name: Segment, service: Serving, caller: Asking, whose: Whose, why: PauseSchedule | None = None
) -> ScheduleShown:
    """Stop firing until it is resumed. Due times that pass meanwhile are not submitted. Can be repeated."""
    reason = (why or PauseSchedule()).reason
    paused, _ = await service.schedules.pause(caller, name, reason=reason, tenant=whose.tenant)
    return await _whole(service, paused)


@router.post("/schedules/{name}/resume", dependencies=[needs(Role.OPERATOR)], summary="Resume a schedule")
async def resume_schedule(name: Segment, service: Serving, caller: Asking, whose: Whose) -> ScheduleShown:
    """Fire again, from the next due time on. Can be repeated."""
    resumed, _ = await service.schedules.resume(caller, name, tenant=whose.tenant)
    return await _whole(service, resumed)


@router.post(
    "/schedules/{name}/run",
    status_code=201,
    responses=_AGAIN,
    dependencies=[needs(Role.OPERATOR)],
    summary="Run a schedule now",
)
async def run_schedule(
    name: Segment,
    response: Response,
    service: Serving,
    caller: Asking,
    whose: Whose,
    asked: RunSchedule | None = None,
) -> JobShown:
    """Submit a job of the schedule now, besides its due times, also if it is paused."""
    identity = None if asked is None else asked.id
    job, made = await service.schedules.run(caller, name, id=identity, tenant=whose.tenant)
    response.status_code = 201 if made else 200
    response.headers["location"] = f"/api/v1/jobs/{quote(job.id, safe='')}"
    return JobShown.whole(job, None, await service.warning(caller, job))


async def _whole(service: Service, found: Schedule) -> ScheduleShown:
    return ScheduleShown.of(found, await service.schedules.upcoming(found))
