"""`kill`, on a plane: a scheduler and a worker are killed during their work; others continue (R130, R131)."""

from __future__ import annotations

from typing import Final

from holdfast.core.history.events import EventKind
from holdfast.drills.env.plane import DrillPlane, DrillPlaneProcess, shown
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.env.workspace import lease_times
from holdfast.drills.model import FaultKind, ReportFigure
from holdfast.drills.verdict.plane import taken_over, whole
from holdfast.plane.settings.consistency import takeovers
from holdfast.plane.settings.settings import Settings
from holdfast.types import NS

JOBS: Final = 12
TAKES_S: Final = 0.2
END_S: Final = 60.0
_RUNNING: Final = "a job that a worker was running"


def play(stage: DrillHarness) -> None:
    """Two schedulers and two workers; one of each is killed."""
    deployment = stage.plan.deployment
    times = lease_times(stage.plan.ttl_s) if deployment is None else {}
    ttl = times["worker.lease_ttl"] if deployment is None else deployment.settings.worker.lease_ttl
    words = (
        f"a plane with two schedulers and two workers runs {JOBS} jobs; one of each is killed, with leases of {ttl:g} s"
    )
    with stage.scene("plane processes killed", f"{words}.", None) as it:
        with DrillPlane(it, times) as plane:
            parts = [plane.scheduler(), plane.scheduler(), plane.worker(), plane.worker()]
            plane.wait_ready(*parts)
            it.report("the plane is ready")
            plane.close_gate()
            plane.submit(JOBS, TAKES_S)
            victim = _busiest(it, plane)
            died_ns = victim.kill()
            plane.schedulers[0].kill()
            running = plane.running_on(victim)
            plane.open_gate()
            it.report(f"killed a scheduler, and a worker with {len(running)} jobs in flight")
            it.until(plane.all_over, "every job to end", END_S + 2 * _longest(plane.settings))
            attempts, jobs, tally = plane.attempts(), plane.jobs(), plane.tally()
        promised = next(each.seconds for each in takeovers(plane.settings) if each.what == _RUNNING)
        slo_ns = round((promised + 1.0) * NS) if stage.plan.slo_s is None else stage.plan.slo_ns
        it.scene.takeovers += taken_over("a worker killed", running, attempts, died_ns, slo_ns)
        it.scene.claims += whole(plane.submitted, shown(jobs), [job.ends for job in jobs], tally)
        last_ns = max((each.to_ns for each in it.scene.takeovers), default=died_ns)
        it.span(FaultKind.DOWN, victim.name, died_ns, last_ns)
        it.report(
            f"all {len(jobs)} jobs ended; the last was taken over after {(last_ns - died_ns) / NS:.2f} s", good=True
        )
        it.scene.figures += [
            ReportFigure("jobs", str(len(jobs))),
            ReportFigure("attempts", str(tally.attempts), f"{tally.twice} after a death"),
            ReportFigure("effects", str(tally.effects), "one for each job"),
        ]
    duplicates = sum(record.kind is EventKind.DUPLICATE for record in it.scene.history)
    it.scene.figures.append(ReportFigure("duplicate ends refused", str(duplicates)))


def _busiest(it: SceneHarness, plane: DrillPlane) -> DrillPlaneProcess:
    """The worker with the most jobs in flight, when all workers are full."""
    wanted = min(JOBS, 2 * plane.settings.worker.concurrency, plane.settings.scheduler.tenant_slots or JOBS)
    it.until(lambda: len(plane.attempts()) >= wanted, f"{wanted} jobs to start")
    return max(plane.workers, key=lambda each: len(plane.running_on(each)))


def _longest(settings: Settings) -> float:
    return max(settings.scheduler.job_ttl, settings.worker.lease_ttl)
