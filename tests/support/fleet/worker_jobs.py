"""Jobs for worker processes under test. Their payload is a directory through which test and job talk by files."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

from holdfast.plane import App, BlockingContext, Context

app = App("jobs")


@app.job("hold")
def hold(ctx: BlockingContext, payload: str) -> dict[str, Any]:
    """Says that it has begun, and continues until it may end or must stop."""
    place = Path(payload)
    (place / f"{ctx.job}.{os.getpid()}.began").touch()
    while not (place / f"{ctx.job}.go").exists() and not ctx.cancelled.wait(0.005):
        ctx.progress("waiting")
    ctx.ensure_held()
    return {"pid": os.getpid(), "fence": ctx.fence}


@app.job("await")
async def wait(ctx: Context, payload: str) -> dict[str, Any]:
    """The same on the event loop."""
    place = Path(payload)
    (place / f"{ctx.job}.{os.getpid()}.began").touch()
    while not (place / f"{ctx.job}.go").exists():  # noqa: ASYNC110 - it is another process that makes it
        await asyncio.sleep(0.005)
    return {"pid": os.getpid(), "fence": ctx.fence}


@app.job("deaf")
def deaf(ctx: BlockingContext, payload: str) -> None:
    """Begins, and never ends."""
    (Path(payload) / f"{ctx.job}.{os.getpid()}.began").touch()
    ctx.log.info("deaf from now on")
    threading.Event().wait()


@app.job("fail")
def fail(ctx: BlockingContext, payload: str) -> None:
    """Fails."""
    raise ValueError("on purpose")


@app.job("kills")
def kills(ctx: BlockingContext, payload: str) -> None:
    """Ends its process immediately, as a lack of memory does."""
    (Path(payload) / f"{ctx.job}.{os.getpid()}.began").touch()
    os._exit(1)


not_an_app = 7
