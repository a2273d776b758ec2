"""The counters of all parts of a process as readings, for metrics, a console or a report.

A reading contains the numbers of one source by field; a field that is counted by kind (outcome, state, topic) is a
mapping. A reading is cheap: it does no I/O and does not wait. The metrics of the fields are declared in
`observe.metrics.samples`; a test fails for a counter without a metric.

Does not promise one consistent moment for several sources, nor that counters survive the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Final

from holdfast.core.histogram import NOTHING, Histogram, MeasuredOutcome
from holdfast.core.metric_reading import Reading, Value
from holdfast.plane.approvals.rules import ApprovalVerdict, ConflictCode, SelfApproval
from holdfast.plane.approvals.service import Approvals
from holdfast.plane.bus.delivery_rules import Kind
from holdfast.plane.jobs.rules import JobCode
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.locks.item_lock import ItemLockStatistics
from holdfast.plane.locks.job_lock import JobLockStatistics
from holdfast.plane.loops.loop import LoopStatistics
from holdfast.plane.maintenance.reconciler import Reconciler
from holdfast.plane.maintenance.replayer import Replayer
from holdfast.plane.maintenance.retention import CleanupStatistics
from holdfast.plane.maintenance.run_reconciler import RunReconciler
from holdfast.plane.maintenance.schedule_loop import ScheduleLoop
from holdfast.plane.maintenance.timers import Delays
from holdfast.plane.scheduler.fast_path import FastPath
from holdfast.plane.scheduler.placement import Placement
from holdfast.plane.scheduler.scheduler import Scheduler
from holdfast.plane.service.overview import PlaneOverview
from holdfast.plane.worker.worker import WorkerStatistics
from holdfast.plane.workflows.engine import WorkflowEngine
from holdfast.plane.workflows.run_store import RunStore
from holdfast.types import NS

TOPICS_MAX: Final = 100
OTHER: Final = "other"

ENDS: Final = ("succeeded", "quarantined", "failed", "retried", "lost", "stopped", "given_back", "outdated")
REFUSALS: Final = (*map(str, ConflictCode), SelfApproval.code)
NOT_TAKEN: Final = ("refused", "full", "passed_on", "busy", "unreachable", "turned_away", "repeated")
WORKER_REST: Final = ("taken", "timed_out", "stalled", "overran", "active", "stuck")


def flat(statistics: object) -> dict[str, Value]:
    """The numbers of a dataclass by field, without other values."""
    if not is_dataclass(statistics):
        raise TypeError(f"{type(statistics).__name__} is not a dataclass")
    found: dict[str, Value] = {}
    for each in fields(statistics):
        value = getattr(statistics, each.name)
        if isinstance(value, int | float | Mapping):
            found[each.name] = value
    return found


def bounded(counts: Mapping[str, int], most: int = TOPICS_MAX) -> dict[str, int]:
    """Counters by names that users choose. The first few keep their name; the others are summed."""
    names = list(counts)
    kept = {name: counts[name] for name in names[:most]}
    rest = sum(counts[name] for name in names[most:])
    return {**kept, OTHER: kept.get(OTHER, 0) + rest} if rest else kept


def bounded_times(times: Mapping[str, Histogram], most: int = TOPICS_MAX) -> dict[str, Histogram]:
    """The same for histograms."""
    kept: dict[str, Histogram] = {}
    for number, (name, each) in enumerate(times.items()):
        shown = name if number < most else OTHER
        kept[shown] = kept.get(shown, NOTHING).plus(each)
    return kept


# The components.


def of_store(store: JobStore) -> Iterator[Reading]:
    """The guard in front of the jobs."""
    counts: dict[str, int] = asdict(store.statistics())
    entered = counts.pop("entered")
    yield Reading("guard", {"entered": entered, "steps": counts, "duplicate_ends": store.duplicate_ends})


def of_submissions(fast_path: FastPath) -> Iterator[Reading]:
    """Jobs that were submitted here."""
    yield Reading("submissions", {"jobs": dict(fast_path.tally)})


def of_runs(runs: RunStore) -> Iterator[Reading]:
    """The guard in front of the runs. A run is read and written in one step, so none is entered before."""
    counts: dict[str, int] = asdict(runs.statistics())
    del counts["entered"]
    yield Reading("run_guard", {"steps": counts})


def of_database(counts: Mapping[str, int]) -> Iterator[Reading]:
    """A database. Fields that only one engine counts are missing for the other."""
    works = {
        "write": counts.get("writes", 0) + counts.get("write_works", 0),
        "read": counts.get("reads", 0) + counts.get("read_works", 0),
    }
    failed = sum(counts.get(name, 0) for name in ("failed", "write_failed", "read_failed"))
    again = counts.get("run_again", 0) + counts.get("write_run_again", 0)
    rest: dict[str, Value] = {
        "busy": counts.get("write_busy"),
        "busy_ns": counts.get("write_busy_ns"),
        "commits": counts.get("commits"),
        "syncs": counts.get("syncs"),
        "largest_group": counts.get("write_largest_group"),
        "unknown": counts.get("unknown"),
        "held": counts.get("held"),
        "active": counts.get("active"),
        "pool_wait_ns": counts.get("pool_wait_ns"),
        "hint_reconnects": counts.get("hint_reconnects"),
        "bells": counts.get("bells"),
    }
    if "write_line" in counts:
        rest["line"] = {"write": counts["write_line"], "read": counts["read_line"]}
    yield Reading("database", {"works": works, "failed": failed, "run_again": again, **rest})


def of_bus(counts: Mapping[str, int]) -> Iterator[Reading]:
    """A bus: outcomes of deliveries, and messages in flight."""
    values: dict[str, Value] = {"deliveries": {str(kind): counts.get(kind, 0) for kind in Kind}}
    for name in ("dead", "burials_failed"):
        values[name] = counts.get(name, 0)
    yield Reading("bus", {**values, "handling": counts.get("handling"), "relayed": counts.get("relayed")})


def of_audit(statistics: object) -> Iterator[Reading]:
    """The audit ledger of this process."""
    yield Reading("audit", flat(statistics))


# The parts.


def of_scheduler(scheduler: Scheduler) -> Iterator[Reading]:
    """A scheduler, its dispatcher and its job locks."""
    messages: dict[tuple[str, str], int] = {}
    for name, count in scheduler.tally.items():
        subject, _, outcome = name.rpartition(".")
        messages[subject or "any", outcome] = count
    yield Reading("scheduler", {"messages": messages, "handling": scheduler.handling})
    looks = dict(scheduler.dispatcher.statistics())
    rounds = looks.pop("rounds", 0)
    yield Reading("dispatcher", {"rounds": rounds, "looks": looks})
    yield of_job_locks(scheduler.placement.lock_statistics, "scheduler")
    yield Reading("takeover", {"took_ns": scheduler.takeovers.read()}, {"part": "scheduler"})


def of_job_locks(statistics: JobLockStatistics, part: str) -> Reading:
    """The job locks that one part has wanted."""
    return Reading("job_lock", _item_locks(statistics), {"part": part})


def _item_locks(statistics: ItemLockStatistics) -> dict[str, Value]:
    waited = {str(MeasuredOutcome.GRANTED): statistics.waited.read(), "missed": statistics.waited_in_vain.read()}
    return {**flat(statistics), "wait_ns": waited, "hold_ns": statistics.held.read()}


def of_loop(statistics: LoopStatistics) -> Iterator[Reading]:
    """A loop, whatever it does."""
    hidden = ("fence", "skipped_busy", "skipped_error")
    values = {name: value for name, value in flat(statistics).items() if name not in hidden}
    skipped = {"busy": statistics.skipped_busy, "error": statistics.skipped_error}
    yield Reading("loop", {**values, "skipped": skipped}, {"loop": statistics.name})


def of_reconciler(reconciler: Reconciler) -> Iterator[Reading]:
    """What the reconciler has ended, and what was overdue when it last looked."""
    statistics = reconciler.statistics()
    yield Reading("reconciler", flat(statistics))
    yield of_job_locks(statistics.lock, "reconciler")


def of_replayer(replayer: Replayer, placement: Placement) -> Iterator[Reading]:
    """What the replayer has made continue."""
    statistics = replayer.statistics()
    yield Reading("replayer", {**flat(statistics), "orphan_replayed": bounded(statistics.orphan_replayed)})
    yield of_job_locks(placement.lock_statistics, "replayer")


def of_schedules(loop: ScheduleLoop) -> Iterator[Reading]:
    """Jobs that were submitted at due times, and due times without a job."""
    yield Reading("schedules", flat(loop.statistics()))


def of_cleanup(statistics: CleanupStatistics) -> Iterator[Reading]:
    """What was forgotten."""
    yield Reading("cleanup", {"forgotten": asdict(statistics)})


def of_engine(engine: WorkflowEngine) -> Iterator[Reading]:
    """An engine and its run locks."""
    events: dict[tuple[str, str], int] = {}
    plain: dict[str, int] = {"held_back": 0, "repeated_publishes": 0, "stopping": 0}
    for name, count in engine.tally.items():
        event, mark, heard = name.partition(".")
        if mark:
            events[event, heard] = count
        elif name in plain:
            plain[name] = count
    yield Reading("engine", {"events": events, "handling": engine.handling, **plain})
    yield of_run_locks(engine.lock_statistics, "engine")


def of_run_locks(statistics: ItemLockStatistics, part: str) -> Reading:
    """The run locks that one part has wanted."""
    return Reading("run_lock", _item_locks(statistics), {"part": part})


def of_delays(delays: Delays) -> Iterator[Reading]:
    """What the delay poller has woken."""
    yield Reading("delays", flat(delays.statistics()))
    yield of_run_locks(delays.engine.lock_statistics, "delays")


def of_run_reconciler(reconciler: RunReconciler) -> Iterator[Reading]:
    """What runs had missed."""
    yield Reading("run_reconciler", {"found": asdict(reconciler.statistics())})
    yield of_run_locks(reconciler.engine.lock_statistics, "runs")


def of_overview(found: PlaneOverview) -> Reading:
    """What the whole plane has to do and who does it: ages, and things that no counter of a process shows."""
    waits: dict[str, int] = dict.fromkeys(found.view.pools or {}, 0)
    topics: dict[str, int] = {}
    for each in found.waiting:
        waits[each.pool] = max(waits.get(each.pool, 0), round(each.age * NS))
        topics[each.topic] = max(topics.get(each.topic, 0), round(each.age * NS))
    longest: dict[str, int] = {}
    for attempt in found.attempts:
        longest[attempt.topic] = max(longest.get(attempt.topic, 0), round(attempt.age * NS))
    ahead = [each.at_ns - found.at_ns for each in found.workers if each.at_ns > found.at_ns]
    full = set(found.full)
    return Reading(
        "overview",
        {
            "oldest_waiting_ns": bounded_worst(waits),
            "oldest_waiting_topic_ns": bounded_worst(topics),
            "longest_attempt_ns": bounded_worst(longest),
            "hung": bounded(Counter(each.topic for each in found.hung)),
            "deadly": len(found.deadly),
            "unserved": bounded(found.unserved),
            "full": {name: int(name in full) for name in list(found.view.pools or {})[:TOPICS_MAX]},
            "dead_letters": found.letters_left,
            "recent_letters": {**dict.fromkeys(map(str, JobCode), 0), **Counter(each.code for each in found.letters)},
            "approvals": len(found.approvals),
            "oldest_approval_ns": round(found.approvals[0].age * NS) if found.approvals else 0,
            "late_schedule_ns": round(found.late_schedules[0].age * NS) if found.late_schedules else 0,
            "paused_schedules": len(found.paused_schedules),
            "ahead_ns": max(ahead, default=0),
            "silent": sum(each.worker in found.silent for each in found.workers),
        },
    )


def bounded_worst(values: Mapping[str, int], most: int = TOPICS_MAX) -> dict[str, int]:
    """Values by names that users choose: those of the largest keep their name; of the others the largest is shown."""
    names = sorted(values, key=lambda each: -values[each])
    kept = {name: values[name] for name in names[:most]}
    return {**kept, OTHER: values[names[most]]} if len(names) > most else kept


def of_approvals(approvals: Approvals) -> Iterator[Reading]:
    """What was decided here."""
    yield Reading(
        "approvals",
        {
            "decided": {str(verdict): approvals.decided[verdict] for verdict in ApprovalVerdict},
            "repeated": {str(verdict): approvals.repeated[verdict] for verdict in ApprovalVerdict},
            "refused": {code: approvals.refused[code] for code in REFUSALS},
        },
    )


def of_workers(workers: Sequence[WorkerStatistics], capacity: int) -> Iterator[Reading]:
    """The workers of this process together."""

    def total(name: str) -> int:
        return sum(getattr(each, name) for each in workers)

    held: dict[str, Histogram] = {}
    for worker in workers:
        for topic, times in list(worker.held.items()):
            held[topic] = held.get(topic, NOTHING).plus(times.read())
    yield Reading(
        "worker",
        {
            "held_ns": bounded_times(held),
            "attempts": {name: total(name) for name in ENDS},
            "not_taken": {name: total(name) for name in NOT_TAKEN},
            "beats": {"heard": total("beats"), "unheard": total("beats_failed")},
            **{name: total(name) for name in WORKER_REST},
            "capacity": capacity,
        },
    )
    taken_over = NOTHING
    for worker in workers:
        taken_over = taken_over.plus(worker.taken_over.read())
    yield Reading("takeover", {"took_ns": taken_over}, {"part": "worker"})
