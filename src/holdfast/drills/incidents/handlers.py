"""The job functions of incidents: quick ones, and those that hang, fail, or kill their worker."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

from holdfast.plane.app import App
from holdfast.plane.model.outcome import Fatal
from holdfast.plane.worker.context import Context

app: Final = App("works")
other: Final = App("other")
_PAUSE_S: Final = 0.1


@app.job("quick")
async def quick(payload: Any) -> Any:
    """Ends immediately."""
    return payload


@app.job("hang", max_concurrency=64)
def hang(payload: Any) -> str:
    """Hangs if it has a payload, and does not react to a cancellation."""
    while payload:
        time.sleep(_PAUSE_S)  # the fault: a call without a time limit
    return "done"


@app.job("nap")
def nap(payload: float, *, ctx: Context) -> None:
    """Waits for so many seconds, or until it is cancelled."""
    ctx.cancelled.wait(payload)


@app.job("die")
def die(payload: Any) -> None:  # noqa: ARG001 - a job function has one
    """Kills its process, as the kernel does when memory is exhausted."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.job("fail")
def fail(payload: Any) -> None:  # noqa: ARG001 - likewise
    """Fails, and a retry would fail again."""
    raise Fatal("the invoice has no address")


@other.job("elsewhere")
async def elsewhere(payload: Any) -> Any:
    """A topic that only some workers serve."""
    return payload
