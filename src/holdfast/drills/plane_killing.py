"""`kill`, on a plane: a scheduler and a worker are killed in the middle of their work; others go on (R130, R131)."""

from __future__ import annotations

from typing import Final

from holdfast.core.history import Kind
from holdfast.drills.model import Figure, SpanKind
from holdfast.drills.plane_judging import taken_over, whole
from holdfast.drills.planes import Plane, shown
from holdfast.drills.stage import Stage
from holdfast.plane.setting_rules import takeovers
from holdfast.types import NS

JOBS: Final = 12
TAKES_S: Final = 0.6
TTL_MIN_S: Final = 3.0  # a handler may wait 2 s for a lock, which its message has to outlast
_RUNNING: Final = "a job that a worker was running"


def play(stage: Stage) -> None:
    """Two schedulers and two workers; one of each is killed."""
    ttl = max(TTL_MIN_S, stage.plan.ttl_s)
    words = (
        f"a plane with two schedulers and two workers runs {JOBS} jobs; one of each is killed, with leases of {ttl:g} s"
    )
    with stage.scene("plane processes killed", f"{words}.", None) as it:
        times = {"scheduler.job_ttl": ttl, "worker.lease_ttl": ttl, "worker.heartbeat": ttl / 4}
        with Plane(it, times | {"scheduler.ack_wait": max(TTL_MIN_S, ttl / 2)}) as plane:
            parts = [plane.scheduler(), plane.scheduler(), plane.worker(), plane.worker()]
            plane.wait_ready(*parts)
            it.tell("the plane is up")
            plane.submit(JOBS, TAKES_S)
            victim = plane.workers[0]
            it.until(lambda: len(plane.running_on(victim)) > 0, "the first worker to run something")
            plane.schedulers[0].kill()
            died_ns = victim.kill()
            running = plane.running_on(victim)
            it.tell(f"killed a scheduler, and a worker with {len(running)} jobs in hand")
            it.until(plane.all_over, "every job to end", 60.0)
            attempts, jobs, tally = plane.attempts(), plane.jobs(), plane.tally()
        promised = next(each.seconds for each in takeovers(plane.settings) if each.what == _RUNNING)
        slo_ns = round((promised + 1.0) * NS) if stage.plan.slo_s is None else stage.plan.slo_ns
        it.scene.takeovers += taken_over("a worker killed", running, attempts, died_ns, slo_ns)
        it.scene.claims += whole(plane.submitted, shown(jobs), [job.ends for job in jobs], tally)
        last_ns = max((each.to_ns for each in it.scene.takeovers), default=died_ns)
        it.span(SpanKind.DOWN, victim.name, died_ns, last_ns)
        it.tell(
            f"all {len(jobs)} jobs ended; the last was taken over after {(last_ns - died_ns) / NS:.2f} s", good=True
        )
        it.scene.figures += [
            Figure("jobs", str(len(jobs))),
            Figure("attempts", str(tally.attempts), f"{tally.twice} after a death"),
            Figure("effects", str(tally.effects), "one for each job"),
        ]
    duplicates = sum(record.kind is Kind.DUPLICATE for record in it.scene.history)
    it.scene.figures.append(Figure("duplicate ends refused", str(duplicates)))
