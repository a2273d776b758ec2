"""`holdfast runbook snapshot-leader`: is the worker snapshot written, and by which process."""

from __future__ import annotations

from typing import Final

from holdfast.ops.runbooks.collectors.locks import lock_step, metrics_step
from holdfast.ops.runbooks.collectors.plane import SNAPSHOT_STEP
from holdfast.ops.runbooks.evidence.locks import LockFact, LocksFact, span
from holdfast.ops.runbooks.evidence.metrics import Aggregation, MetricQuery, MetricsFact
from holdfast.ops.runbooks.evidence.plane import SnapshotFact
from holdfast.ops.runbooks.model import Case, Conclusion, FindingRule, FindingSeverity, NextStep, Runbook, typed
from holdfast.plane.locks.registry import SNAPSHOT_WRITER

FRESH: Final = 2.0
"""Maximum age of a healthy snapshot in intervals: ticks have a jitter, and one may be late."""

_START: Final = NextStep("holdfast up --only snapshot", "on any host that reaches the same stores")


def _lock(case: Case) -> LockFact | None:
    found = case.fact("lock", LocksFact)
    return None if found is None else found.get(case.key(SNAPSHOT_WRITER))


def _bounds(case: Case) -> tuple[float, float]:
    """The maximum age of a snapshot while its writer is healthy, and after its crash."""
    interval = case.settings.snapshot.interval
    return FRESH * interval, SNAPSHOT_WRITER.ttl_for(interval) + FRESH * interval


def _never(case: Case) -> Conclusion | None:
    found = case.fact("snapshot", SnapshotFact)
    if found is None or found.age is not None:
        return None
    sentence = "No snapshot was ever written here: no process has run the snapshot loop on this database."
    return Conclusion(sentence, ("snapshot",), (_START,))


def _no_leader(case: Case) -> Conclusion | None:
    found, lock, (_, crashed) = case.fact("snapshot", SnapshotFact), _lock(case), _bounds(case)
    if found is None or found.age is None or lock is None or lock.held or found.age <= crashed:
        return None
    sentence = (
        f"No process leads: {lock.key} is free and the snapshot is {span(found.age)} old, more than a takeover takes "
        f"({span(crashed)}). {found.writer} wrote the last one."
    )
    return Conclusion(sentence, ("lock", "snapshot"), (_START,))


def _dead_leader(case: Case) -> Conclusion | None:
    found, lock, (well, crashed) = case.fact("snapshot", SnapshotFact), _lock(case), _bounds(case)
    if found is None or found.age is None or lock is None or not well < found.age <= crashed:
        return None
    if lock.held:
        sentence = (
            f"The leader {lock.owner} has not written for {span(found.age)}; its lease expires in "
            f"{span(lock.remaining)}, another process takes over within {span(crashed - found.age)} if it has crashed."
        )
    else:
        sentence = f"The key is free and the snapshot is {span(found.age)} old: a takeover is under way."
    again = NextStep("holdfast runbook snapshot-leader", f"run it again in {span(max(1.0, crashed - found.age))}")
    return Conclusion(sentence, ("lock", "snapshot"), (again,), "likely")


def _silent_leader(case: Case) -> Conclusion | None:
    found, lock, (_, crashed) = case.fact("snapshot", SnapshotFact), _lock(case), _bounds(case)
    if found is None or found.age is None or lock is None or not lock.held or found.age <= crashed:
        return None
    sentence = (
        f"{lock.owner} holds {lock.key} and renews it, and has not written for {span(found.age)}: it is stuck, or "
        f"cannot write to the database."
    )
    steps = (
        NextStep(
            typed("holdfast", "release", lock.key, "--reason", "leads and does not write"), "another process leads"
        ),
        NextStep("curl -s http://HOST:PORT/readyz", "of that process: whether it reaches the database"),
    )
    return Conclusion(sentence, ("lock", "snapshot"), steps)


def _other_writer(case: Case) -> Conclusion | None:
    found, lock = case.fact("snapshot", SnapshotFact), _lock(case)
    if found is None or lock is None or lock.fence is None or found.fence is None or lock.fence >= found.fence:
        return None
    sentence = (
        f"{lock.owner} leads with fence {lock.fence}, and the snapshot was written with fence {found.fence}: the store "
        f"has lost a newer grant, and this leader's writes are refused."
    )
    step = NextStep(
        typed("holdfast", "release", lock.key, "--reason", "older than the snapshot's fence"), "a fresh fence"
    )
    return Conclusion(
        sentence, ("lock", "snapshot"), (step, NextStep("holdfast runbook store-outage", "whether it was restarted"))
    )


def _two_leaders(case: Case) -> Conclusion | None:
    found = case.fact("rates", MetricsFact)
    if found is None or (leaders := found.total("leaders") or 0.0) <= 1:
        return None
    sentence = f"{leaders:g} processes report that they lead. One of them is stale, and the guard refuses its writes."
    return Conclusion(
        sentence, ("rates",), (NextStep("holdfast runbook not-owned", "why it has not noticed"),), "likely"
    )


def _flapping(case: Case) -> Conclusion | None:
    found = case.fact("rates", MetricsFact)
    if found is None or (lost := found.total("lost") or 0.0) <= 0:
        return None
    sentence = f"Leadership is lost {lost:.3g} times per second {found.over}: it moves between processes."
    return Conclusion(sentence, ("rates",), (NextStep("holdfast runbook not-owned", "why it is lost"),))


def _stale_content(case: Case) -> Conclusion | None:
    found, (well, _) = case.fact("snapshot", SnapshotFact), _bounds(case)
    if found is None or found.age is None or found.age > well or found.workers == found.alive:
        return None
    sentence = (
        f"The snapshot lists {found.workers} workers and {found.alive} are alive: some have started or stopped since "
        f"it was written, {span(found.age)} ago."
    )
    return Conclusion(sentence, ("snapshot",), (), "sure; the next snapshot will include them")


RUNBOOK: Final = Runbook(
    name="snapshot-leader",
    title="The worker snapshot is old, or two processes write it",
    when="`sys:workers:snapshot` is older than it should be; routing uses workers that are gone",
    needs="the lease store and the database; metrics for the reported leaders",
    over="the snapshot is younger than six intervals, and one process leads the loop: run it again, and it exits 0",
    steps=(
        lock_step("lock", "which process may write the snapshot", SNAPSHOT_WRITER),
        SNAPSHOT_STEP,
        metrics_step(
            "rates",
            "how many processes report that they lead, and how often leadership is lost",
            MetricQuery("leaders", "holdfast_loop_leader", Aggregation.NOW, where=(("loop", "snapshot"),)),
            MetricQuery("lost", "holdfast_loop_leaderships_lost_total", where=(("loop", "snapshot"),)),
            MetricQuery("failed ticks", "holdfast_loop_ticks_failed_total", where=(("loop", "snapshot"),)),
            MetricQuery("in vain", "holdfast_loop_skipped_total", by=("reason",), where=(("loop", "snapshot"),)),
        ),
    ),
    rules=(
        FindingRule("never written", FindingSeverity.ACT, "there is no snapshot", _never),
        FindingRule(
            "no leader",
            FindingSeverity.ACT,
            "the key is free, and the snapshot older than a takeover takes",
            _no_leader,
        ),
        FindingRule(
            "silent leader",
            FindingSeverity.ACT,
            "the key is held, and the snapshot older than a takeover takes",
            _silent_leader,
        ),
        FindingRule(
            "stale leader", FindingSeverity.ACT, "the leader's fence is older than the snapshot's", _other_writer
        ),
        FindingRule(
            "takeover",
            FindingSeverity.WATCH,
            f"the snapshot is older than {FRESH:g} intervals, but not yet older than a takeover takes (the TTL and "
            f"{FRESH:g} intervals)",
            _dead_leader,
        ),
        FindingRule("two leaders", FindingSeverity.WATCH, "more than one process reports that it leads", _two_leaders),
        FindingRule("leadership lost", FindingSeverity.WATCH, "leadership was lost", _flapping),
        FindingRule(
            "workers have changed",
            FindingSeverity.WATCH,
            "the snapshot is fresh and lists other workers",
            _stale_content,
        ),
    ),
    fine="One leader writes the snapshot, and it is fresh.",
    essential=("lock", "snapshot"),
)
