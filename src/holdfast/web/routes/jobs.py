"""Routes for jobs and dead letters."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request, Response

from holdfast.errors import BadInput
from holdfast.plane.jobs.waiting_reason import WaitReason
from holdfast.plane.model.caller import Caller
from holdfast.plane.model.records import Job
from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.service.change_watcher import ChangeWatcher
from holdfast.types import duration_ns
from holdfast.web import cursors
from holdfast.web.middleware.auth import Asking, Role, Segment, Serving, needs, own_tenant
from holdfast.web.middleware.json_body import JsonRoute
from holdfast.web.middleware.long_poll import client_wait
from holdfast.web.routes import health, job_stream
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
    Place,
    SubmitJob,
    UpdateList,
    WatchedList,
    WatchItems,
)

JOBS = "jobs"
LETTERS = "letters"

router = APIRouter(tags=["jobs"], route_class=JsonRoute)
letters = APIRouter(tags=["dead letters"], route_class=JsonRoute)

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {job_stream.MEDIA_TYPE: {"schema": {"type": "string"}}}},
    204: {"description": "The job has ended, and nothing follows `Last-Event-ID`."},
}
_AGAIN: dict[int | str, dict[str, Any]] = {200: {"model": JobShown, "description": "The job existed already."}}


@router.post(
    "/jobs",
    status_code=201,
    responses=_AGAIN,
    dependencies=[needs(Role.OPERATOR)],
    summary="Submit a job",
)
async def submit(
    body: SubmitJob,
    response: Response,
    service: Serving,
    caller: Asking,
    idempotency_key: Annotated[Key | None, Header()] = None,
) -> JobShown:
    """Insert a job. The same idempotency key returns the same job, and is refused for another one."""
    if None not in (idempotency_key, body.idempotency_key) and idempotency_key != body.idempotency_key:
        raise BadInput("idempotency_key", "differs from the header", "give one of the two, or the same in both")
    key = body.idempotency_key or idempotency_key
    now_ns = service.parts.store.clock.now().wall
    wanted = body.submission(own_tenant(caller, body.tenant), key, caller.name, now_ns)
    made, new = await service.submit(caller, wanted, pool=body.pool)
    return _made(response, made, new, await service.warning(caller, made))


@router.get("/jobs", dependencies=[needs(Role.VIEWER)], summary="List jobs")
async def jobs(service: Serving, caller: Asking, which: Annotated[JobFilter, Query()]) -> JobPage:
    """Job outlines, newest first. A single job includes payload and result."""
    page = await service.jobs(
        caller,
        tenant=which.tenant,
        state=which.state,
        topic=which.topic,
        after=cursors.after(JOBS, which.cursor),
        limit=which.limit,
    )
    return JobPage(items=[JobOutlineShown.of(job) for job in page.items], next=cursors.next_of(JOBS, page.after))


@router.post("/watch/jobs", dependencies=[needs(Role.VIEWER)], summary="Wait for changes of jobs")
async def watch(
    body: WatchItems, request: Request, service: Serving, caller: Asking, process_health: health.Asked
) -> WatchedList:
    """Wait until jobs change or end. The response contains those that have; it is empty after the timeout.

    Many clients that wait cost the database one query. A process that shuts down responds early; ask again.
    """
    return await watched(service.job_changes, body, request, caller, process_health)


@router.get("/jobs/{job_id}", dependencies=[needs(Role.VIEWER)], summary="Look at a job")
async def job(job_id: Segment, service: Serving, caller: Asking) -> JobShown:
    """One job."""
    found = await service.job(caller, job_id)
    progress, waiting = await service.progress(found), await service.waiting(caller, found)
    return JobShown.whole(found, progress, waiting, await service.children(found))


@router.get(
    "/jobs/{job_id}/events",
    response_model=EventList,
    responses=_STREAM,
    dependencies=[needs(Role.VIEWER)],
    summary="The history of a job",
)
async def events(
    job_id: Segment,
    request: Request,
    service: Serving,
    caller: Asking,
    process_health: health.Asked,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    last_event_id: Annotated[Place | None, Header(include_in_schema=False)] = None,
) -> EventList | Response:
    """Every change of state, oldest first.

    With `Accept: text/event-stream`: server-sent events as they happen, with emitted values and progress, until the job
    has ended. Each has the data of an item of `/jobs/{job_id}/updates`; `Last-Event-ID` continues a stream.
    """
    if job_stream.MEDIA_TYPE not in accept:
        return EventList(items=[EventShown.of(event) for event in await service.events(caller, job_id)])
    streams: job_stream.OpenStreams = request.app.state.streams
    streams.admit()
    page = await service.timeline(caller, job_id, last_event_id or "")
    if last_event_id and page.ended and not page.entries:
        return Response(status_code=204)  # nothing follows: the client must not come again
    return job_stream.JobStream(streams, service, process_health, caller).starting(page)


@router.get("/jobs/{job_id}/updates", dependencies=[needs(Role.VIEWER)], summary="States and values of a job")
async def updates(
    job_id: Segment, service: Serving, caller: Asking, after: Annotated[Place, Query()] = ""
) -> UpdateList:
    """States and emitted values after a place, oldest first. `POST /watch/jobs` waits for more."""
    return UpdateList.of(await service.timeline(caller, job_id, after))


@router.post(
    "/jobs/{job_id}/cancel",
    status_code=202,
    responses={200: {"model": JobShown, "description": "The job had finished and does not change."}},
    dependencies=[needs(Role.OPERATOR)],
    summary="Cancel a job",
)
async def cancel(
    job_id: Segment, response: Response, service: Serving, caller: Asking, why: CancelJob | None = None
) -> JobShown:
    """Request the cancellation of a job. The request is stored; a scheduler carries it out. Can be repeated."""
    found, cancelling = await service.cancel(caller, job_id, reason=(why or CancelJob()).reason)
    response.status_code = 202 if cancelling else 200
    return JobShown.whole(found)


@router.post(
    "/jobs/{job_id}/retry",
    status_code=201,
    responses=_AGAIN,
    dependencies=[needs(Role.OPERATOR)],
    summary="Try a dead job again",
)
async def retry(job_id: Segment, response: Response, service: Serving, caller: Asking) -> JobShown:
    """Retry a dead-lettered job as a new job. A second retry returns the job of the first."""
    made, new = await service.retry(caller, job_id)
    return _made(response, made, new, await service.warning(caller, made))


@letters.get("/dead-letters", dependencies=[needs(Role.VIEWER)], summary="List dead letters")
async def dead_letters(service: Serving, caller: Asking, which: Annotated[LetterFilter, Query()]) -> LetterPage:
    """Outlines of dead letters, newest first. A single dead letter includes its body."""
    page = await service.dead_letters(
        caller, tenant=which.tenant, after=cursors.after(LETTERS, which.cursor), limit=which.limit
    )
    items = [LetterOutlineShown.of(each) for each in page.items]
    return LetterPage(items=items, next=cursors.next_of(LETTERS, page.after))


@letters.get("/dead-letters/{letter_id}", dependencies=[needs(Role.VIEWER)], summary="Look at a dead letter")
async def dead_letter(letter_id: Segment, service: Serving, caller: Asking) -> LetterShown:
    """One dead letter. The dead letter of a job has the job's id."""
    return LetterShown.whole(await service.dead_letter(caller, letter_id))


@letters.post(
    "/dead-letters/{letter_id}/retry",
    status_code=201,
    responses=_AGAIN,
    dependencies=[needs(Role.OPERATOR)],
    summary="Try a dead letter again",
)
async def retry_letter(letter_id: Segment, response: Response, service: Serving, caller: Asking) -> JobShown:
    """Retry a dead letter as a new job. A second retry returns the job of the first."""
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
    """Delete a dead letter. Its job stays."""
    await service.forget_dead_letter(caller, letter_id)


async def watched(
    changes: ChangeWatcher, body: WatchItems, request: Request, caller: Caller, process_health: ProcessHealth
) -> WatchedList:
    """The response to a request that waits for changes of jobs or runs."""
    timeout_ns = duration_ns("timeout", body.timeout)
    async with client_wait(request, process_health) as client:
        waiting = changes.wait(caller, body.known, timeout_ns, ended=body.ended)
        return WatchedList.of(await client.unless_ended(waiting) or {})


def _made(response: Response, made: Job, new: bool, warning: WaitReason | None) -> JobShown:
    response.status_code = 201 if new else 200
    response.headers["location"] = f"/api/v1/jobs/{quote(made.id, safe='')}"
    return JobShown.whole(made, waiting=warning)
