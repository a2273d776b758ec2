"""Health, readiness and metrics. The same in every process of the plane.

`/healthz` tells whether a restart would help: it fails if a component has failed, or if held leases are not renewed,
and not because a store is down. `/readyz` checks every needed store concurrently and with time limits, also whether the
database accepts writes if this process has to write, and names the reasons. It fails from the moment when a shutdown
begins, and names files but no directories or addresses. Both need no token, because load balancers have none.
`/metrics` does.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Request, Response

from holdfast.errors import BackendError
from holdfast.plane.process.health import OK, UNCHECKED, ProcessHealth
from holdfast.web import problems
from holdfast.web.middleware.auth import Access, Role, needs
from holdfast.web.middleware.intake import Intake
from holdfast.web.middleware.rate_limit import Rates
from holdfast.web.problems import Problem, request_id_of
from holdfast.web.routes import metrics
from holdfast.web.routes.metrics import Answers
from holdfast.web.schemas.plane import Alive, Ready

router = APIRouter(tags=["health"])

_TEXT: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Prometheus text, or OpenMetrics if the client accepts it",
        "content": {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")},
    }
}
_SOON: Final = BackendError.retry_after
_LATER: Final = {"retry-after": f"{max(1, math.ceil(_SOON))}"}


def install(app: FastAPI, process_health: ProcessHealth, access: Access, *, rates: Rates | None, jobs: bool) -> None:
    """Add the routes that every process of the plane has. `access` authenticates requests.

    `jobs`: whether its metrics count the live jobs of the whole plane.
    """
    app.state.process_health = process_health
    app.state.answers = answers = Answers(rates=rates)
    app.state.counts_jobs = jobs
    process_health.serve(answers.reading, jobs=jobs)
    problems.install(app)
    entropy = process_health.service.parts.store.entropy
    app.add_middleware(Intake, access=access, entropy=entropy, answers=answers, process_health=process_health)


def _process_health(request: Request) -> ProcessHealth:
    process_health = request.app.state.process_health
    if not isinstance(process_health, ProcessHealth):
        raise TypeError("the application was not made by create_app or create_probe")
    return process_health


Asked = Annotated[ProcessHealth, Depends(_process_health)]


@router.get("/healthz", summary="Whether the process works", response_model=Alive)
async def healthz(request: Request, process_health: Asked) -> Alive | Response:
    """Fails if the process is alive but does not work: a restart would help."""
    troubles = process_health.troubles()
    if not troubles:
        return Alive(status="alive")
    members = {"reasons": troubles, "retry_after": _SOON}
    problem = Problem(503, "not-working", "; ".join(troubles), members, _LATER)
    return problem.response(request_id_of(request))


@router.get("/readyz", summary="Whether it can be given work", response_model=Ready)
async def readyz(request: Request, process_health: Asked) -> Ready | Response:
    """Checks every needed store, and names the failing components."""
    checks = await process_health.checks()
    wrong = [f"{name} ({answer})" for name, answer in checks.items() if answer not in {OK, UNCHECKED}]
    if not wrong:
        return Ready(status="ready", parts=checks)
    members = {"parts": checks, "retry_after": _SOON}
    problem = Problem(503, problems.NOT_READY, f"not ready: {', '.join(wrong)}", members, _LATER)
    return problem.response(request_id_of(request))


@router.get(
    "/metrics",
    response_class=Response,
    responses=_TEXT,
    dependencies=[needs(Role.VIEWER, everywhere=True)],
    summary="What it counts",
)
async def counted(request: Request, process_health: Asked) -> Response:
    """Prometheus text."""
    state = request.app.state
    accept = request.headers.get("accept", "")
    text, content_type = await metrics.text(process_health, state.answers, accept, jobs=state.counts_jobs)
    return Response(text, headers={"Content-Type": content_type})
