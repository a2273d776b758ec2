"""Routes for jobs and dead letters."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Response

from holdfast.errors import BadInput
from holdfast.plane.jobs.waiting_reason import WaitReason
from holdfast.plane.model.records import Job
from holdfast.web import cursors
from holdfast.web.middleware.auth import Role
from holdfast.web.middleware.authorization import Asking, Segment, Serving, needs, own_tenant
from holdfast.web.middleware.json_body import JsonRoute
from holdfast.web.schemas.jobs import (
    CancelJob,
    EventList,
    EventShown,
    JobFilter,
    JobOutlineShown,
    JobPage,
    JobShown,
    Key,
    LetterFilter,
    LetterOutlineShown,
    LetterPage,
    LetterShown,
    SubmitJob,
)

JOBS = "jobs"
LETTERS = "letters"

router = APIRouter(tags=["jobs"], route_class=JsonRoute)
letters = APIRouter(tags=["dead letters"], route_class=JsonRoute)

_AGAIN: dict[int | str, dict[str, Any]] = {200: {"model": JobShown, "description": "The job was there already."}}


@router.post(
    "/jobs",
    status_code=201,
    responses=_AGAIN,
    dependencies=[needs(Role.OPERATOR)],
    summary="Submit a job",
)
async def submit(
    asked: SubmitJob,
    response: Response,
    service: Serving,
    caller: Asking,
    idempotency_key: Annotated[Key | None, Header()] = None,
) -> JobShown:
    """Make a job. The same idempotency key gives the same job again, and is refused for another one."""
    if None not in (idempotency_key, asked.idempotency_key) and idempotency_key != asked.idempotency_key:
        raise BadInput("idempotency_key", "is not that of the header", "give one of the two, or the same in both")
    key = asked.idempotency_key or idempotency_key
    now_ns = service.parts.store.clock.now().wall
    wanted = asked.submission(own_tenant(caller, asked.tenant), key, caller.name, now_ns)
    made, new = await service.submit(caller, wanted, pool=asked.pool)
    return _made(response, made, new, await service.warning(caller, made))


@router.get("/jobs", dependencies=[needs(Role.VIEWER)], summary="List jobs")
async def jobs(service: Serving, caller: Asking, which: Annotated[JobFilter, Query()]) -> JobPage:
    """Jobs in outline, newest first. One job has its payload and its result."""
    page = await service.jobs(
        caller,
        tenant=which.tenant,
        state=which.state,
        topic=which.topic,
        after=cursors.after(JOBS, which.cursor),
        limit=which.limit,
    )
    return JobPage(items=[JobOutlineShown.of(job) for job in page.items], next=cursors.next_of(JOBS, page.after))


@router.get("/jobs/{job_id}", dependencies=[needs(Role.VIEWER)], summary="Look at a job")
async def job(job_id: Segment, service: Serving, caller: Asking) -> JobShown:
    """One job."""
    found = await service.job(caller, job_id)
    return JobShown.whole(found, await service.progress(found), await service.waiting(caller, found))


@router.get("/jobs/{job_id}/events", dependencies=[needs(Role.VIEWER)], summary="The history of a job")
async def events(job_id: Segment, service: Serving, caller: Asking) -> EventList:
    """Every change of state, oldest first."""
    return EventList(items=[EventShown.of(event) for event in await service.events(caller, job_id)])


@router.post(
    "/jobs/{job_id}/cancel",
    status_code=202,
    responses={200: {"model": JobShown, "description": "The job was over already, and stays as it is."}},
    dependencies=[needs(Role.OPERATOR)],
    summary="Cancel a job",
)
async def cancel(
    job_id: Segment, response: Response, service: Serving, caller: Asking, why: CancelJob | None = None
) -> JobShown:
    """Ask for a job to be ended. The request is kept; a scheduler does it. Can be repeated."""
    found, asked = await service.cancel(caller, job_id, reason=(why or CancelJob()).reason)
    response.status_code = 202 if asked else 200
    return JobShown.whole(found)


@router.post(
    "/jobs/{job_id}/retry",
    status_code=201,
    responses=_AGAIN,
    dependencies=[needs(Role.OPERATOR)],
    summary="Try a dead job again",
)
async def retry(job_id: Segment, response: Response, service: Serving, caller: Asking) -> JobShown:
    """Make a new job of one that nobody will try again by itself. A second retry gives the job of the first."""
    made, new = await service.retry(caller, job_id)
    return _made(response, made, new, await service.warning(caller, made))


@letters.get("/dead-letters", dependencies=[needs(Role.VIEWER)], summary="List dead letters")
async def dead_letters(service: Serving, caller: Asking, which: Annotated[LetterFilter, Query()]) -> LetterPage:
    """Dead letters in outline, newest first. One dead letter has its body."""
    page = await service.dead_letters(
        caller, tenant=which.tenant, after=cursors.after(LETTERS, which.cursor), limit=which.limit
    )
    items = [LetterOutlineShown.of(each) for each in page.items]
    return LetterPage(items=items, next=cursors.next_of(LETTERS, page.after))


@letters.get("/dead-letters/{letter_id}", dependencies=[needs(Role.VIEWER)], summary="Look at a dead letter")
async def dead_letter(letter_id: Segment, service: Serving, caller: Asking) -> LetterShown:
    """One dead letter. That of a job has the job's id."""
    return LetterShown.whole(await service.dead_letter(caller, letter_id))


@letters.post(
    "/dead-letters/{letter_id}/retry",
    status_code=201,
    responses=_AGAIN,
    dependencies=[needs(Role.OPERATOR)],
    summary="Try a dead letter again",
)
async def retry_letter(letter_id: Segment, response: Response, service: Serving, caller: Asking) -> JobShown:
    """Make a new job of a dead letter. A second retry gives the job of the first."""
    made, new = await service.retry_dead_letter(caller, letter_id)
    return _made(response, made, new, await service.warning(caller, made))


@letters.delete(
    "/dead-letters/{letter_id}",
    status_code=204,
    response_class=Response,
    dependencies=[needs(Role.OPERATOR)],
    summary="Forget a dead letter",
)
async def forget_letter(letter_id: Segment, service: Serving, caller: Asking) -> None:
    """Forget a dead letter. Its job stays."""
    await service.forget_dead_letter(caller, letter_id)


def _made(response: Response, made: Job, new: bool, warning: WaitReason | None) -> JobShown:
    response.status_code = 201 if new else 200
    response.headers["location"] = f"/api/v1/jobs/{quote(made.id, safe='')}"
    return JobShown.whole(made, waiting=warning)
