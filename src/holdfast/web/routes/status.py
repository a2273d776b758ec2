"""The route for those who watch: what the plane looks like, and what has changed since."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from holdfast.web.middleware.auth import Role
from holdfast.web.middleware.authorization import Asking, needs
from holdfast.web.middleware.json_body import JsonRoute
from holdfast.web.schemas.status import StatusFilter, StatusShown
from holdfast.web.status_cache import Board

router = APIRouter(tags=["status"], route_class=JsonRoute)

_HEADERS = {"cache-control": "no-store"}


@router.get(
    "/status",
    dependencies=[needs(Role.VIEWER)],
    response_model=StatusShown,
    summary="What the plane looks like now",
)
async def status(request: Request, caller: Asking, which: Annotated[StatusFilter, Query()]) -> Response:
    """Jobs, workers, locks, dead letters and health, for whoever watches.

    Without `after`, at once. With the mark of the status before, the next one is waited for, about a second, and says
    what has changed. Reading it is shared: many who watch cost as much as one. Callers who are bound to a tenant see
    its jobs alone, and no locks.
    """
    board = request.app.state.board
    if not isinstance(board, Board):
        raise TypeError("the application was not made by create_app")
    return Response(await board.status(caller, which.after), headers=_HEADERS, media_type="application/json")
