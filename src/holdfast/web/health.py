"""Whether this process lives, whether it can work, and what it counts. The same in every process of the plane.

`/healthz` answers as long as the process does. `/readyz` asks every part that is needed, at once and each with a time
limit, and says which one does not answer; it names no addresses. Both need no token: load balancers have none.
`/metrics` does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from holdfast.errors import BackendError, HoldfastError
from holdfast.plane.service import CHECKED, Service
from holdfast.web import metrics
from holdfast.web.auth import Role
from holdfast.web.problems import Problem, request_id_of
from holdfast.web.rights import Serving, needs
from holdfast.web.schemas_plane import Alive, Ready

CHECK_LIMIT_S: Final = 2.0
OK: Final = "ok"

_log = logging.getLogger("holdfast.web")

router = APIRouter(tags=["health"])

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@router.get("/healthz", summary="Whether the process lives")
async def healthz() -> Alive:
    """Answers as long as the process does."""
    return Alive(status="alive")


@router.get("/readyz", summary="Whether it can work", response_model=Ready)
async def readyz(request: Request, service: Serving) -> Ready | Response:
    """Asks every part that is needed, and says which one does not answer."""
    answers = await asyncio.gather(*(_answer(service, part) for part in CHECKED))
    parts = dict(zip(CHECKED, answers, strict=True))
    if all(answer == OK for answer in answers):
        return Ready(status="ready", parts=parts)
    silent = ", ".join(part for part, answer in parts.items() if answer != OK)
    retry = BackendError.retry_after
    members = {"parts": parts, "retry_after": retry}
    problem = Problem(503, "not-ready", f"does not answer: {silent}", members, {"retry-after": f"{retry:.0f}"})
    return problem.response(request_id_of(request))


@router.get(
    "/metrics",
    response_class=Response,
    responses=_TEXT,
    dependencies=[needs(Role.VIEWER, everywhere=True)],
    summary="What it counts",
)
async def counted(request: Request, service: Serving) -> Response:
    """Prometheus text."""
    text = metrics.rendered(await metrics.samples(service, request.app.state.answers))
    return Response(text, media_type=metrics.CONTENT_TYPE)


async def _answer(service: Service, part: str) -> str:
    """`ok`, or the name of what went wrong."""
    try:
        async with asyncio.timeout(CHECK_LIMIT_S):
            await service.check(part)
    except TimeoutError:
        return "no answer in time"
    except (HoldfastError, OSError) as error:
        _log.warning("not ready: %s: %s: %s", part, type(error).__name__, error)
        return type(error).__name__.lower()
    return OK
