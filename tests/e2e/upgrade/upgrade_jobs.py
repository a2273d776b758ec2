"""The jobs of the upgrade fixtures. They use nothing that changed since the fixtures were written."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from holdfast.plane import App, Fatal

app = App("upgrade")


@app.job("double")
async def double(payload: int) -> int:
    """Return twice the payload."""
    return payload * 2


@app.job("gated")
def gated(payload: int) -> int:
    """Run until the file `$GATE` exists."""
    return _opened(payload)


@app.job("limited", max_concurrency=1)
def limited(payload: int) -> int:
    """Do the same as `gated`, once at a time: the other jobs wait in the queue of the topic."""
    return _opened(payload)


@app.job("broken")
async def broken(payload: Any) -> None:
    """Fail for good: the job becomes a dead letter."""
    raise Fatal(f"cannot do {payload}")


@app.job("busy")
def busy(payload: Any) -> str:
    """Fail until the gate opens: the job waits for its next attempt."""
    if not Path(os.environ["GATE"]).exists():
        raise ConnectionError("the site is down")
    return "done"


@app.job("bank.pay")
async def pay(payload: Any) -> str:
    """Do what an operator approved."""
    return f"paid {payload}"


@app.job("bank.limited", max_concurrency=1)
def pay_limited(payload: Any) -> str:
    """Do the same in the only slot of the topic."""
    return f"paid {payload}"


def _opened(payload: int) -> int:
    while not Path(os.environ["GATE"]).exists():
        time.sleep(0.05)
    return payload
