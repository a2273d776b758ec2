"""Runs a drill: opens the store, plays the scenes, judges them, and leaves nothing behind.

Promises: nothing is begun on a store or a deployment that is not marked; bounded in time (`Drill.limit_s`); temporary
files, processes, servers, leases and quarters of the drill are gone when `run` returns or raises, also on Ctrl-C.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.drills.env.stage import Stage, Tell
from holdfast.drills.env.stores import opened
from holdfast.drills.model import OWN_ONLY, Need, Plan, Verdict
from holdfast.drills.verdict.leases import judge

if TYPE_CHECKING:
    from holdfast.drills.catalog import Drill


def run(drill: Drill, plan: Plan, tell: Tell, replay: str) -> Verdict:
    """Play a drill and say what is to be said of it. `replay` is the command that does it again."""
    began = time.monotonic()
    if plan.deployment is not None:
        plan.deployment.check_marked()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-drill-") as directory,
        opened(plan, Path(directory), network=drill.need is Need.NETWORK, cuts=drill.cuts) as way,
    ):
        stage = Stage(plan, way, Path(directory), tell, drill.limit_s(plan))
        try:
            drill.play(stage, drill.seconds if plan.duration_s is None else plan.duration_s)
        finally:
            stage.clean()
        judged = tuple(judge(scene) for scene in stage.scenes)
    shown = OWN_ONLY.get(drill.need, way.shown) if plan.deployment is None else plan.deployment.shown
    took_s = time.monotonic() - began
    return Verdict(drill.name, shown, plan.ttl_s, plan.slo_seconds, took_s, replay, judged, tuple(stage.cannot))
