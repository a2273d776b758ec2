"""What the examples share: a plane in one process, and a person who decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast.plane import App, Client, Plane, Settings

LIMIT_S: Final = 60.0


@asynccontextmanager
async def plane_at(directory: Path, app: App) -> AsyncIterator[Plane]:
    """A plane without its API, all in one file, for as long as the block runs."""
    async with Plane(Settings(database=f"sqlite:///{directory / 'plane.db'}"), app=app) as plane:
        yield plane


async def approve_next(boss: Client) -> str:
    """Wait until something waits for a person, and approve it. Returns the question."""
    async with asyncio.timeout(LIMIT_S):
        while not (waiting := await boss.approvals()):  # noqa: ASYNC110 - it is in a database
            await asyncio.sleep(0.02)
    await boss.approve(waiting[0].job)
    return waiting[0].about
