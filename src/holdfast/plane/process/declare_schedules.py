"""Stores the schedules that an app declares, and repeats that while a process with the app runs.

Promises: a process with an app stores its schedules before it fetches its first job. While two releases of an app run
side by side, the newer one decides (`plane.schedules.rules.version_in_effect`); the older one takes over again when no
process of the newer one has been seen for `DECLARED_NS`. A database that does not answer is tried again later.

Clock: the event loop's, for the pauses; the database's, for the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from holdfast.errors import BackendError, Closed
from holdfast.flows.log import OutageLog, log_event
from holdfast.plane.app import App
from holdfast.plane.schedules.rules import REPEAT_DECLARATION_NS
from holdfast.plane.schedules.store import Schedules
from holdfast.types import NS

_log: Final = logging.getLogger("holdfast.plane")


@asynccontextmanager
async def declaring(schedules: Schedules, app: App) -> AsyncIterator[None]:
    """Store the schedules of the app now, and again and again while the block runs."""
    if not app.schedules and not await schedules.has_declared(app.name):
        yield
        return
    await _declare(schedules, app)
    task = asyncio.create_task(_repeat(schedules, app), name="declare schedules")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _declare(schedules: Schedules, app: App) -> None:
    if changed := await schedules.declare(app.name, app.schedules):
        names = ", ".join(changed[:10]) + (", …" if len(changed) > 10 else "")
        log_event(_log, logging.INFO, "schedules of the app were changed", app=app.name, schedules=names)


async def _repeat(schedules: Schedules, app: App) -> None:
    away = OutageLog(_log, "schedules cannot be declared", "schedules are declared again", app=app.name)
    while True:  # ends by cancellation
        await asyncio.sleep(REPEAT_DECLARATION_NS / NS)
        try:
            await _declare(schedules, app)
        except Closed:
            return
        except BackendError as error:
            away.met(error)
        else:
            away.ended()
