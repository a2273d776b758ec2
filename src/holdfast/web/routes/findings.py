"""The route for the causes of what is wrong: the same findings as `holdfast why`, as this process sees the plane.

Promises: any number of callers cost one inspection every `FRESH_S`, and a caller waits as long as one inspection.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter, Request

from holdfast.ops.runbooks import RUNBOOKS
from holdfast.ops.runbooks.model import RunbookReport
from holdfast.ops.runbooks.runner import run
from holdfast.ops.runbooks.sources import RunbookOptions, scene
from holdfast.plane.settings.settings import Settings
from holdfast.web.middleware.auth import Role, Serving, needs
from holdfast.web.middleware.json_body import JsonRoute
from holdfast.web.schemas.findings import FindingsShown

FRESH_S: Final = 5.0
PATIENCE_S: Final = 3.0
WHY: Final = "why"

router = APIRouter(tags=["status"], route_class=JsonRoute)


class Inspector:
    """Inspects the plane of one process, for all callers together."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()
        self._report: RunbookReport | None = None
        self._until = float("-inf")

    async def report(self) -> RunbookReport:
        """A report that is at most `FRESH_S` old."""
        async with self._turn:
            now = asyncio.get_running_loop().time()
            if self._report is None or now >= self._until:
                given = RunbookOptions(config=self._settings.file, patience=PATIENCE_S)
                async with scene(self._settings, given, {}) as place:
                    self._report = await run(RUNBOOKS[WHY], place)
                self._until = asyncio.get_running_loop().time() + FRESH_S
            return self._report


@router.get("/findings", dependencies=[needs(Role.VIEWER, everywhere=True)], summary="What is wrong, and what to do")
async def findings(request: Request, service: Serving) -> FindingsShown:
    """The causes of incidents with their evidence and the next commands: the same as `holdfast why`.

    They name jobs, tenants and servers, so the caller must not be bound to a tenant. A hanging server delays the
    response by a few seconds and is a finding. The response is shared for five seconds.
    """
    state = request.app.state
    if not hasattr(state, "inspector"):
        state.inspector = Inspector(service.parts.settings)
    return FindingsShown.of(await state.inspector.report())
