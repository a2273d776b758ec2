"""What the examples share: a plane in one process, and how they wait for what happens in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast.plane import App
from holdfast.plane.approvals.rules import ApprovalVerdict
from holdfast.plane.model import Job
from holdfast.plane.process.components import Components
from holdfast.plane.process.plane import PARTS, Plane
from holdfast.plane.service import Caller
from holdfast.plane.settings import Settings
from holdfast.plane.workflows.core.run import StoredRun

LIMIT_S: Final = 60.0
LOOKER: Final = Caller("example")


@asynccontextmanager
async def plane_at(directory: Path, app: App) -> AsyncIterator[Components]:
    """A plane without its API, all in one file, for as long as the block runs."""
    settings = Settings(database=f"sqlite:///{directory / 'plane.db'}")
    async with Plane(settings, [part for part in PARTS if part != "api"], app=app) as plane:
        yield plane.components


async def over(components: Components, run: str) -> StoredRun:
    """A run, once it is over."""
    async with asyncio.timeout(LIMIT_S):
        while not (found := await components.flows.run(LOOKER, run)).run.status.terminal:  # noqa: ASYNC110 - in a database
            await asyncio.sleep(0.02)
    return found


async def ended(components: Components, job: str) -> Job:
    """A job, once it is over."""
    async with asyncio.timeout(LIMIT_S):
        while not (found := await components.service.job(LOOKER, job)).state.terminal:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    return found


async def decided(components: Components, boss: Caller, verdict: ApprovalVerdict) -> str:
    """Wait until something waits for a person, and decide about it. What was asked."""
    async with asyncio.timeout(LIMIT_S):
        while not (waiting := (await components.flows.approvals(LOOKER)).items):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    gate = waiting[0]
    await components.flows.decide(boss, gate.job, verdict)
    return gate.about
