"""Routes for workflows, their runs, and approvals."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request, Response

from holdfast.errors import BadInput
from holdfast.plane.approvals.rules import ApprovalVerdict
from holdfast.plane.model.caller import Caller
from holdfast.plane.workflows.core.run import StoredRun
from holdfast.types import duration_ns
from holdfast.web import cursors
from holdfast.web.middleware.auth import Asking, Role, Segment, Serving, needs, own_tenant
from holdfast.web.middleware.json_body import JsonRoute
from holdfast.web.routes import health
from holdfast.web.routes.jobs import watched
from holdfast.web.schemas.approvals import (
    ApprovalFilter,
    ApprovalOutlineShown,
    ApprovalPage,
    ApprovalShown,
    Decide,
    DecisionShown,
)
from holdfast.web.schemas.jobs import Key, WatchedList, WatchItems
from holdfast.web.schemas.runs import (
    CancelRun,
    DefineWorkflow,
    RerunRun,
    RunFilter,
    RunLine,
    RunPage,
    RunShown,
    StartRun,
    Timeline,
    TimelineFilter,
    TimelineShown,
    VersionFilter,
    WorkflowFilter,
    WorkflowOutlineShown,
    WorkflowPage,
    WorkflowShown,
)

WORKFLOWS = "workflows"
RUNS = "runs"
LINES = "lines"
APPROVALS = "approvals"

workflows = APIRouter(tags=["workflows"], route_class=JsonRoute)
router = APIRouter(tags=["runs"], route_class=JsonRoute)
approvals = APIRouter(tags=["approvals"], route_class=JsonRoute)

_AGAIN: dict[int | str, dict[str, Any]] = {200: {"model": RunShown, "description": "The run existed already."}}
_KEPT: dict[int | str, dict[str, Any]] = {200: {"model": WorkflowShown, "description": "It was stored already."}}


# Workflows.


@workflows.post(
    "/workflows",
    status_code=201,
    responses=_KEPT,
    dependencies=[needs(Role.OPERATOR)],
    summary="Define a workflow",
)
async def define(body: DefineWorkflow, response: Response, service: Serving, caller: Asking) -> WorkflowShown:
    """Store a definition. An unchanged one keeps its version; a changed one is the next. 422 names all problems."""
    kept, new = await service.flows.define_document(caller, body.definition, tenant=body.tenant)
    response.status_code = 201 if new else 200
    return WorkflowShown.whole(kept)


@workflows.get("/workflows", dependencies=[needs(Role.VIEWER)], summary="List workflows")
async def kept_workflows(service: Serving, caller: Asking, which: Annotated[WorkflowFilter, Query()]) -> WorkflowPage:
    """Outlines of the newest versions that the caller may see. A single workflow includes its definition."""
    after = ("", "")
    if which.cursor is not None:
        scope, _, name = cursors.place_in(WORKFLOWS, which.cursor)[0].partition(" ")
        after = (scope, name)
    items, following = await service.flows.definitions(caller, tenant=which.tenant, after=after, limit=which.limit)
    cursor = None if following is None else cursors.cursor_of(WORKFLOWS, " ".join(following), 0)
    return WorkflowPage(items=[WorkflowOutlineShown.of(each) for each in items], next=cursor)


@workflows.get("/workflows/{name}", dependencies=[needs(Role.VIEWER)], summary="Look at a workflow")
async def kept_workflow(
    name: Segment, service: Serving, caller: Asking, which: Annotated[VersionFilter, Query()]
) -> WorkflowShown:
    """One definition, by default its newest version."""
    return WorkflowShown.whole(await service.flows.definition(caller, name, which.version, tenant=which.tenant))


# Runs.


@router.post(
    "/runs",
    status_code=201,
    responses=_AGAIN,
    dependencies=[needs(Role.OPERATOR)],
    summary="Start a run",
)
async def start_run(
    body: StartRun,
    response: Response,
    service: Serving,
    caller: Asking,
    idempotency_key: Annotated[Key | None, Header()] = None,
) -> RunShown:
    """Start a run of a workflow. The same idempotency key returns the same run, and is refused for another one."""
    key = _key(idempotency_key, body.idempotency_key)
    now_ns = service.flows.store.clock.now().wall
    return _made(
        response,
        *await service.flows.start(
            caller,
            body.workflow,
            body.input,
            version=body.version,
            tenant=own_tenant(caller, body.tenant),
            run_id=body.id,
            idempotency_key=key,
            deadline_ns=None if body.deadline_in is None else now_ns + duration_ns("deadline_in", body.deadline_in),
            trace=body.trace,
            labels=body.labels,
        ),
    )


@router.get("/runs", dependencies=[needs(Role.VIEWER)], summary="List runs")
async def runs(service: Serving, caller: Asking, which: Annotated[RunFilter, Query()]) -> RunPage:
    """Run outlines, newest first. A single run includes its input, its output and those of its steps."""
    page = await service.flows.runs(
        caller,
        tenant=which.tenant,
        status=which.status,
        workflow=which.workflow,
        after=cursors.after(RUNS, which.cursor),
        limit=which.limit,
    )
    return RunPage(items=[RunLine.of(each) for each in page.items], next=cursors.next_of(RUNS, page.after))


@router.post("/watch/runs", dependencies=[needs(Role.VIEWER)], summary="Wait for changes of runs")
async def watch_runs(
    body: WatchItems, request: Request, service: Serving, caller: Asking, process_health: health.Asked
) -> WatchedList:
    """Wait until runs change or end, as for jobs."""
    return await watched(service.run_changes, body, request, caller, process_health)


@router.get("/runs/{run_id}", dependencies=[needs(Role.VIEWER)], summary="Look at a run")
async def run(run_id: Segment, service: Serving, caller: Asking) -> RunShown:
    """One run and its steps."""
    return RunShown.of(await service.flows.run(caller, run_id))


@router.get("/runs/{run_id}/timeline", dependencies=[needs(Role.VIEWER)], summary="The history of a run")
async def timeline(
    run_id: Segment, service: Serving, caller: Asking, which: Annotated[TimelineFilter, Query()]
) -> Timeline:
    """The complete history, oldest first, with the fences of the writes."""
    seen = (0, -1)
    if which.cursor is not None:
        text, version = cursors.place_in(LINES, which.cursor)
        if not text.isdecimal() or len(text) > 9:
            raise BadInput("cursor", "is not a cursor of this list", "pass on the cursor of the page before, unchanged")
        seen = (version, int(text))
    found = await service.flows.timeline(caller, run_id, after=seen, limit=which.limit)
    full = len(found) == which.limit
    cursor = cursors.cursor_of(LINES, str(found[-1].line), found[-1].version) if full else None
    return Timeline(items=[TimelineShown.of(each) for each in found], next=cursor)


@router.post(
    "/runs/{run_id}/cancel",
    status_code=202,
    responses={200: {"model": RunShown, "description": "The run had finished and does not change."}},
    dependencies=[needs(Role.OPERATOR)],
    summary="Cancel a run",
)
async def cancel_run(
    run_id: Segment, response: Response, service: Serving, caller: Asking, why: CancelRun | None = None
) -> RunShown:
    """Request the cancellation of a run and of all that it has started. The request is stored; an engine does it."""
    found, cancelling = await service.flows.cancel(caller, run_id, reason=(why or CancelRun()).reason)
    response.status_code = 202 if cancelling else 200
    return RunShown.of(found)


@router.post(
    "/runs/{run_id}/rerun",
    status_code=201,
    responses=_AGAIN,
    dependencies=[needs(Role.OPERATOR)],
    summary="Run a run again",
)
async def rerun_run(
    run_id: Segment,
    response: Response,
    service: Serving,
    caller: Asking,
    how: RerunRun | None = None,
    idempotency_key: Annotated[Key | None, Header()] = None,
) -> RunShown:
    """A new run with the same definition and input as a finished one."""
    keep = how is not None and how.keep
    return _made(response, *await service.flows.rerun(caller, run_id, keep=keep, idempotency_key=idempotency_key))


# Approvals.


@approvals.get("/approvals", dependencies=[needs(Role.VIEWER)], summary="List what waits for a person")
async def waiting(service: Serving, caller: Asking, which: Annotated[ApprovalFilter, Query()]) -> ApprovalPage:
    """Outlines of open approvals, oldest first, or of decided ones, newest first. A single one includes its message."""
    page = await service.flows.approvals(
        caller,
        tenant=which.tenant,
        status=None if which.status == "all" else which.status,
        after=None if which.cursor is None else cursors.after(APPROVALS, which.cursor),
        limit=which.limit,
    )
    items = [ApprovalOutlineShown.of(each) for each in page.items]
    return ApprovalPage(items=items, next=cursors.next_of(APPROVALS, page.after))


@approvals.get("/approvals/{job_id}", dependencies=[needs(Role.VIEWER)], summary="Look at an approval")
async def approval(job_id: Segment, service: Serving, caller: Asking) -> ApprovalShown:
    """One approval, open or decided."""
    return ApprovalShown.whole(await service.flows.approval(caller, job_id))


@approvals.post("/approvals/{job_id}/approve", dependencies=[needs(Role.APPROVER)], summary="Approve")
async def approve(job_id: Segment, service: Serving, caller: Asking, said: Decide | None = None) -> DecisionShown:
    """The job continues. Repeating the decision changes nothing: `taken` is false.

    409 gives the reason in `reason`; `approval_retryable_lock` is temporary, and `retry_after` is the time until a
    retry. 403 with the reason `self_approval_denied`: requesters cannot decide about their own requests.
    """
    return await _decide(service, caller, job_id, ApprovalVerdict.APPROVE, said)


@approvals.post("/approvals/{job_id}/reject", dependencies=[needs(Role.APPROVER)], summary="Reject")
async def reject(job_id: Segment, service: Serving, caller: Asking, said: Decide | None = None) -> DecisionShown:
    """The job is denied. The responses are those of approving."""
    return await _decide(service, caller, job_id, ApprovalVerdict.REJECT, said)


async def _decide(
    service: Serving, caller: Caller, job_id: str, verdict: ApprovalVerdict, decision: Decide | None
) -> DecisionShown:
    note, revision = ("", None) if decision is None else (decision.note, decision.revision)
    decided = await service.flows.decide(caller, job_id, verdict, note=note, revision=revision)
    return DecisionShown.after(decided)


def _key(header: str | None, body: str | None) -> str | None:
    if None not in (header, body) and header != body:
        raise BadInput("idempotency_key", "differs from the header", "give one of the two, or the same in both")
    return body or header


def _made(response: Response, made: StoredRun, new: bool) -> RunShown:
    response.status_code = 201 if new else 200
    response.headers["location"] = f"/api/v1/runs/{quote(made.run.id, safe='')}"
    return RunShown.of(made)
