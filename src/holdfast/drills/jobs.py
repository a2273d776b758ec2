"""The jobs of drill planes: each has one effect, takes a while, and records every attempt."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from holdfast.drills.verdict.effects import Effects
from holdfast.plane.app import App
from holdfast.plane.model.records import DEFAULT_POOL
from holdfast.plane.worker.context import BlockingContext

PLACE: Final = "HOLDFAST_DRILL_PLACE"  # the environment variable with the directory for records
GATE: Final = "closed"  # while this file exists there, started jobs do not finish
TOPIC: Final = "drill.effect"
POOL: Final = DEFAULT_POOL
CLASS: Final = "job"

app: Final = App("drill")


@app.job(TOPIC, pool=POOL)
def effect(payload: dict[str, Any], *, ctx: BlockingContext) -> dict[str, Any]:
    """Take a while, and have the effect with this number once."""
    place = Path(os.environ[PLACE])
    with closing(Effects(place / "effects.db", str(os.getpid()))) as effects:
        effects.attempt(CLASS, payload["number"], ctx.fence)
        while (place / GATE).exists():
            time.sleep(0.01)  # between two checks of the gate
        time.sleep(payload["takes"])
        effects.effect(CLASS, payload["number"])
    return {"number": payload["number"]}
