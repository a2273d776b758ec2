"""The jobs that the planes of drills run: each has one effect, takes a while, and leaves a trace of every attempt."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from holdfast.drills.effects import Effects
from holdfast.plane.app import App
from holdfast.plane.context import BlockingContext

PLACE: Final = "HOLDFAST_DRILL_PLACE"  # the variable that says where traces go
TOPIC: Final = "drill.effect"
CLASS: Final = "job"

app: Final = App("drill")


@app.job(TOPIC)
def effect(payload: dict[str, Any], *, ctx: BlockingContext) -> dict[str, Any]:
    """Take a while, and have the effect of this number, once."""
    with closing(Effects(Path(os.environ[PLACE]) / "effects.db", str(os.getpid()))) as effects:
        effects.attempt(CLASS, payload["number"], ctx.fence)
        time.sleep(payload["takes"])
        effects.effect(CLASS, payload["number"])
    return {"number": payload["number"]}
