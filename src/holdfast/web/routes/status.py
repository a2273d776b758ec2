"""The route for observers: the status of the plane, and its changes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from holdfast.web.middleware.auth import Asking, Role, needs
from holdfast.web.middleware.json_body import JsonRoute
from holdfast.web.schemas.status import StatusFilter, StatusShown
from holdfast.web.status_cache import StatusCache

router = APIRouter(tags=["status"], route_class=JsonRoute)

_HEADERS = {"cache-control": "no-store"}


@router.get(
    "/status",
    dependencies=[needs(Role.VIEWER)],
    response_model=StatusShown,
    summary="What the plane looks like now",
)
async def status(request: Request, caller: Asking, which: Annotated[StatusFilter, Query()]) -> Response:
    """Jobs, workers, locks, dead letters and health.

    Without `after`, the response is immediate. With the mark of the status before, it waits for the next one, about a
    second, and contains the changes. Reads are shared: many observers cost as much as one. Callers who are bound to a
    tenant see only its jobs, and no locks.
    """
    board = request.app.state.board
    if not isinstance(board, StatusCache):
        raise TypeError("the application was not made by create_app")
    return Response(await board.status(caller, which.after), headers=_HEADERS, media_type="application/json")
