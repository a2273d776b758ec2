"""`rolling-restart`: every process of a plane is replaced under load, one after the other, as in a deployment.

Leases have their default length, or that of a configured deployment, so that waiting for an expiry would be noticeable.

"""

from __future__ import annotations

import time
from typing import Final

from holdfast.drills.env.plane import DrillPlane, DrillPlaneProcess, shown
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import FaultKind, ReportFigure, curve
from holdfast.drills.verdict.plane import undelayed, whole
from holdfast.types import NS

TAKES_S: Final = 0.1
_BEFORE: Final = 5  # jobs that finish before the first process is replaced
_END_S: Final = 10.0  # in addition to the grace period of work
ROUND_S: Final = 25.0


def play(stage: DrillHarness, rounds: int) -> None:
    """Two schedulers and two workers, each replaced so many times."""
    words = "a plane with two schedulers and two workers, with leases of default length, gets jobs continuously;"
    with stage.scene("every process replaced", f"{words} each process is replaced by a new one in turn.", None) as it:
        with DrillPlane(it, {}) as plane:
            began_ns = time.time_ns()
            plane.wait_ready(plane.scheduler(), plane.scheduler(), plane.worker(), plane.worker())
            it.report("the plane is ready")
            with plane.load(TAKES_S):
                it.until(lambda: plane.tally().effects >= _BEFORE, "the first jobs to finish")
                for _ in range(rounds):
                    for old in [*plane.schedulers[-2:], *plane.workers[-2:]]:
                        _replace(it, plane, old)
                known = plane.tally().effects
                it.until(lambda: plane.tally().effects > known + _BEFORE, "the new processes to work")
            it.until(plane.all_over, "every job to end", 60.0)
            attempts, jobs, tally = plane.attempts(), plane.jobs(), plane.tally()
        it.scene.claims += whole(plane.submitted, shown(jobs), [job.ends for job in jobs], tally)
        longest_ns = max(job.updated_ns - job.created_ns for job in jobs)
        ttl_s = min(plane.settings.scheduler.job_ttl, plane.settings.worker.lease_ttl)
        it.scene.claims += undelayed(tally.attempts, len(jobs), longest_ns, ttl_s)
        it.scene.figures += [
            ReportFigure("jobs", str(len(jobs))),
            ReportFigure("attempts", str(tally.attempts)),
            ReportFigure("slowest job", f"{longest_ns / NS:.2f} s", f"leases last {ttl_s:g} s"),
        ]
        times = [each.at_ns for each in attempts]
        it.scene.curves.append(curve("jobs started", times, began_ns, time.time_ns(), NS // 2))


def _replace(it: SceneHarness, plane: DrillPlane, old: DrillPlaneProcess) -> None:
    kind = old.name.partition("-")[0]
    new = plane.scheduler() if kind == "scheduler" else plane.worker()
    plane.wait_ready(new)
    since_ns = time.time_ns()
    old.terminate()
    it.until(lambda: not old.alive, f"{old.name} to end", plane.settings.grace + _END_S)
    it.span(FaultKind.RESTART, old.name, since_ns, time.time_ns())
    it.claim(f"{old.name} ends normally", old.code == 0, f"exit code {old.code}")
    it.report(f"{old.name} is replaced by {new.name}", good=old.code == 0)
