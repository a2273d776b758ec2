"""Runs a drill: opens the store, runs the scenes, judges them, and cleans up.

Promises: no drill starts on an unmarked store or deployment. It is bounded in time (`Drill.limit_s`). Temporary files,
processes, servers, leases and sandboxes of the drill are gone when `run` returns or raises, even on Ctrl-C.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.drills.env.stage import DrillHarness, ProgressCallback
from holdfast.drills.env.stores import opened
from holdfast.drills.model import OWN_ONLY, OWN_SERVERS, DrillPlan, DrillVerdict, Need
from holdfast.drills.verdict.leases import judge

if TYPE_CHECKING:
    from holdfast.drills.catalog import Drill


def run(drill: Drill, plan: DrillPlan, tell: ProgressCallback, replay: str) -> DrillVerdict:
    """Run a drill and return its verdict. `replay` is the command that repeats it."""
    began = time.monotonic()
    if plan.deployment is not None:
        plan.deployment.check_marked()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-drill-") as directory,
        opened(plan, Path(directory), network=drill.need is Need.NETWORK, cuts=drill.cuts) as way,
    ):
        stage = DrillHarness(plan, way, Path(directory), tell, drill.limit_s(plan))
        try:
            drill.play(stage, drill.seconds if plan.duration_s is None else plan.duration_s)
        finally:
            stage.clean()
        judged = tuple(judge(scene) for scene in stage.scenes)
    shown = OWN_ONLY.get(drill.need, way.shown) if plan.deployment is None else plan.deployment.shown
    if plan.own in OWN_SERVERS:
        shown = OWN_SERVERS[plan.own].shown
    took_s = time.monotonic() - began
    return DrillVerdict(drill.name, shown, plan.ttl_s, plan.slo_seconds, took_s, replay, judged, tuple(stage.cannot))
