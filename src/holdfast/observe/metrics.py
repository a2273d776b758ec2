"""Every metric of the plane, declared once: its name, kind, help, labels, and which number of which source it is.

From this table come what `/metrics` answers and the page in the documentation. Names follow Prometheus: counters end in
`_total`, times are seconds. Labels have few values: parts, loops, outcomes, states; topics are bounded
(`readings.bounded`). No key, job, tenant or worker is ever a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from holdfast.plane.readings import Number, Reading
from holdfast.types import NS


class MetricKind(StrEnum):
    """What a number does over time."""

    COUNTER = "counter"  # only rises, until the process ends
    GAUGE = "gauge"


class Metric(NamedTuple):
    """One metric."""

    name: str
    kind: MetricKind
    help: str
    source: str  # see `plane.readings`
    field: str
    labels: tuple[str, ...] = ()

    @property
    def scale(self) -> int:
        """What a number is divided by: sources count nanoseconds, metrics are in seconds."""
        return NS if self.field.endswith("_ns") else 1


class Sample(NamedTuple):
    """One number of a metric."""

    metric: Metric
    labels: Mapping[str, str]
    value: float


def _counter(name: str, source: str, field: str, help: str, *labels: str) -> Metric:
    return Metric(f"holdfast_{name}_total", MetricKind.COUNTER, help, source, field, labels)


def _gauge(name: str, source: str, field: str, help: str, *labels: str) -> Metric:
    return Metric(f"holdfast_{name}", MetricKind.GAUGE, help, source, field, labels)


TABLE: Final[tuple[Metric, ...]] = (
    # The process.
    _gauge("part_running", "process", "parts", "Whether each part of this process does what it is there for.", "part"),
    _gauge("draining", "process", "draining", "Whether this process has begun to end."),
    _gauge("plane_jobs", "jobs", "live", "Jobs that are not over, by state, in the whole plane.", "state"),
    _gauge("plane_runs", "runs", "live", "Runs that are not over, by status, in the whole plane.", "status"),
    _counter("http_requests", "http", "answers", "Requests answered.", "method", "status"),
    _counter("http_limited", "http", "limited", "Requests turned away because a caller had made too many."),
    _gauge("http_callers", "http", "callers", "Callers whose rate is being remembered."),
    # Jobs: what storage has refused.
    _counter("guard_entered", "guard", "entered", "Jobs entered before they were read."),
    _counter("guard_steps", "guard", "steps", "Writes to jobs, by what the guard decided; refused: stale.", "outcome"),
    _counter("plane_duplicate_ends", "guard", "duplicate_ends", "Second ends of a job, refused. There should be none."),
    _counter("run_guard_steps", "run_guard", "steps", "Writes to runs, likewise; unfenced: no store.", "outcome"),
    # Job locks.
    _counter("job_lock_acquired", "job_lock", "waited_count", "Job locks that were had.", "part"),
    _counter("job_lock_wait_seconds", "job_lock", "waited_total_ns", "Waited for job locks that were had.", "part"),
    _gauge("job_lock_wait_longest_seconds", "job_lock", "waited_longest_ns", "The longest of these waits.", "part"),
    _counter("job_lock_missed", "job_lock", "waited_in_vain_count", "Job locks that could not be had.", "part"),
    _counter("job_lock_missed_seconds", "job_lock", "waited_in_vain_total_ns", "Waited for those in vain.", "part"),
    _gauge("job_lock_missed_longest_seconds", "job_lock", "waited_in_vain_longest_ns", "The longest of these.", "part"),
    _counter("job_lock_ended", "job_lock", "held_count", "Job locks that were held and are not any more.", "part"),
    _counter("job_lock_hold_seconds", "job_lock", "held_total_ns", "How long job locks were held.", "part"),
    _gauge("job_lock_hold_longest_seconds", "job_lock", "held_longest_ns", "The longest of these holds.", "part"),
    _counter("job_lock_busy", "job_lock", "busy", "Waits for a job lock that ended because it was busy.", "part"),
    _counter("job_lock_backend_errors", "job_lock", "backend_errors", "Work put off because a store failed.", "part"),
    _counter("job_lock_abandoned", "job_lock", "abandoned", "Job locks lost while the work ran.", "part"),
    _counter("job_lock_degraded", "job_lock", "degraded", "Job locks had without the store, by policy.", "part"),
    # Run locks.
    _counter("run_lock_acquired", "run_lock", "waited_count", "Run locks that were had.", "part"),
    _counter("run_lock_wait_seconds", "run_lock", "waited_total_ns", "Waited for run locks that were had.", "part"),
    _gauge("run_lock_wait_longest_seconds", "run_lock", "waited_longest_ns", "The longest of these waits.", "part"),
    _counter("run_lock_missed", "run_lock", "waited_in_vain_count", "Run locks that could not be had.", "part"),
    _counter("run_lock_missed_seconds", "run_lock", "waited_in_vain_total_ns", "Waited for those in vain.", "part"),
    _gauge("run_lock_missed_longest_seconds", "run_lock", "waited_in_vain_longest_ns", "The longest of these.", "part"),
    _counter("run_lock_ended", "run_lock", "held_count", "Run locks that were held and are not any more.", "part"),
    _counter("run_lock_hold_seconds", "run_lock", "held_total_ns", "How long run locks were held.", "part"),
    _gauge("run_lock_hold_longest_seconds", "run_lock", "held_longest_ns", "The longest of these holds.", "part"),
    _counter("run_lock_busy", "run_lock", "busy", "Waits for a run lock that ended because it was busy.", "part"),
    _counter("run_lock_backend_errors", "run_lock", "backend_errors", "Work put off because a store failed.", "part"),
    _counter("run_lock_abandoned", "run_lock", "abandoned", "Run locks lost while the work ran.", "part"),
    _counter("run_lock_degraded", "run_lock", "degraded", "Run locks had without the store, by policy.", "part"),
    # The scheduler.
    _counter("scheduler_messages", "scheduler", "messages", "Messages handled, by outcome.", "subject", "outcome"),
    _gauge("scheduler_handling", "scheduler", "handling", "Messages that are being handled."),
    _counter("dispatcher_rounds", "dispatcher", "rounds", "Rounds through the lines of pools."),
    _counter("dispatcher_looks", "dispatcher", "looks", "Looks at jobs in line, by outcome.", "outcome"),
    # The workflow engine, and approvals.
    _counter("engine_events", "engine", "events", "Events of runs, by what became of them.", "event", "outcome"),
    _gauge("engine_handling", "engine", "handling", "Messages about runs that are being handled."),
    _counter("engine_held_back", "engine", "held_back", "Starts of steps put off until the lease store is back."),
    _counter("engine_repeated_publishes", "engine", "repeated_publishes", "Jobs of steps that were there already."),
    _counter("engine_given_back", "engine", "stopping", "Messages given back because this process ends."),
    _counter("approvals_decided", "approvals", "decided", "Decisions taken here.", "verdict"),
    _counter("approvals_repeated", "approvals", "repeated", "Decisions that had been taken before.", "verdict"),
    _counter("approvals_refused", "approvals", "refused", "Decisions not taken, by the code of the answer.", "code"),
    # Loops.
    _gauge("loop_leader", "loop", "leader", "Whether this process runs the loop.", "loop"),
    _gauge("loop_interval_seconds", "loop", "interval_ns", "Between two ticks, as configured.", "loop"),
    _counter("loop_ticks", "loop", "ticks", "Ticks that ended well.", "loop"),
    _counter("loop_ticks_failed", "loop", "failed", "Ticks that raised.", "loop"),
    _counter("loop_ticks_interrupted", "loop", "interrupted", "Ticks cut short by the end of the process.", "loop"),
    _counter("loop_ticks_late", "loop", "late", "Ticks left out because the one before took too long.", "loop"),
    _counter("loop_skipped", "loop", "skipped", "Attempts to lead in vain, by reason.", "loop", "reason"),
    _counter("loop_leaderships", "loop", "took_over", "Times that this process began to lead.", "loop"),
    _counter("loop_leaderships_lost", "loop", "lost", "Leaderships that ended before they were given up.", "loop"),
    _gauge("loop_last_tick_timestamp_seconds", "loop", "last_tick_ns", "When the last good tick ended.", "loop"),
    _gauge("loop_last_tick_seconds", "loop", "last_took_ns", "How long the last tick took.", "loop"),
    _gauge("loop_longest_tick_seconds", "loop", "longest_ns", "How long the longest tick took.", "loop"),
    # What the loops do.
    _gauge("stale_jobs", "reconciler", "stale", "Overdue jobs by state, when the last tick began.", "state"),
    _counter("reconciler_timed_out", "reconciler", "timed_out", "Jobs ended: too long in a state.", "state"),
    _counter("reconciler_expired", "reconciler", "expired", "Jobs ended: past their deadline.", "state"),
    _counter("reconciler_spared", "reconciler", "spared", "Jobs found, and not overdue any more once locked."),
    _counter("reconciler_left", "reconciler", "left", "Jobs left for the next tick: their lock was busy."),
    _counter("reconciler_errors", "reconciler", "errors", "Jobs passed over because something went wrong."),
    _counter("orphan_replayed", "replayer", "orphan_replayed", "Forgotten jobs that went on again, by topic.", "topic"),
    _counter("replayer_redispatched", "replayer", "redispatched", "Attempts that were sent again."),
    _counter("replayer_waiting", "replayer", "waiting", "Jobs looked at in vain: they rightly wait."),
    _counter("replayer_left", "replayer", "left", "Jobs left for the next tick: their lock was busy."),
    _counter("replayer_running", "replayer", "running", "Jobs sent long ago that were found at work."),
    _counter("replayer_errors", "replayer", "errors", "Jobs passed over because something went wrong."),
    _counter("delays_woken", "delays", "woken", "Runs whose time had come and that no message had woken."),
    _counter("delays_left", "delays", "left", "Runs left for the next tick: their lock was busy."),
    _counter("delays_errors", "delays", "errors", "Runs passed over because something went wrong."),
    _counter("run_reconciler_found", "run_reconciler", "found", "Runs looked at, and what they had missed.", "what"),
    _counter("cleanup_forgotten", "cleanup", "forgotten", "What was kept for long enough, by kind.", "kind"),
    # Workers.
    _gauge("worker_capacity", "worker", "capacity", "Attempts that this process can make at once."),
    _gauge("worker_active", "worker", "active", "Attempts that are being made."),
    _gauge("worker_stuck", "worker", "stuck", "Functions that were told to stop and still run."),
    _counter("worker_taken", "worker", "taken", "Attempts begun, each under a lease."),
    _counter("worker_attempts", "worker", "attempts", "Attempts that are over; lost: their lease was.", "outcome"),
    _counter("worker_not_taken", "worker", "not_taken", "Messages that began no attempt, by reason.", "reason"),
    _counter("worker_timed_out", "worker", "timed_out", "Attempts that ran into a time limit."),
    _counter("worker_overran", "worker", "overran", "Functions that did not stop within the grace period."),
    _counter("worker_heartbeats", "worker", "beats", "Heartbeats, by whether the registry heard them.", "result"),
    # The bus.
    _counter("bus_deliveries", "bus", "deliveries", "Deliveries to this process, by how they ended.", "outcome"),
    _counter("bus_dead_letters", "bus", "dead", "Messages given up."),
    _counter("bus_burials_failed", "bus", "burials_failed", "Dead letters that could not be written at first."),
    _gauge("bus_handling", "bus", "handling", "Messages in hand."),
    _counter("bus_relayed", "bus", "relayed", "Messages taken from the outbox to the bus."),
    # The database.
    _counter("database_works", "database", "works", "Transactions asked for.", "kind"),
    _counter("database_failed", "database", "failed", "Transactions that failed."),
    _counter("database_run_again", "database", "run_again", "Transactions run again, as the database asked."),
    _counter("database_unknown", "database", "unknown", "Transactions whose outcome is not known."),
    _counter("database_commits", "database", "commits", "Commits; several works may share one."),
    _gauge("database_largest_group", "database", "largest_group", "The most works that shared a commit."),
    _counter("database_busy", "database", "busy", "Attempts that found the file locked by another process."),
    _counter("database_busy_seconds", "database", "busy_ns", "Waited for other processes' locks on the file."),
    _gauge("database_line", "database", "line", "Works that wait for their turn.", "kind"),
    _gauge("database_active", "database", "active", "Transactions that are open."),
    _counter("database_pool_wait_seconds", "database", "pool_wait_ns", "Waited for a free connection."),
    _counter("database_listener_reconnects", "database", "hint_reconnects", "Times that listening began anew."),
    _gauge("database_bells", "database", "bells", "Channels that are listened to."),
    # Leases, of all families together.
    _gauge("leases_held", "leases", "held", "Leases that this process holds."),
    _gauge("leases_waiting", "leases", "waiting", "Callers in line for a lock that this process wants."),
    _gauge("leases_degraded", "leases", "degraded", "Leases held without the store, by policy."),
    _counter("leases_granted", "leases", "granted", "Leases that were had."),
    _counter("leases_busy", "leases", "busy", "Attempts that found the lock held."),
    _gauge("leases_busy_peak_to_mean", "leases", "busy_peak_to_mean", "Of the last minute's busy retries, per 50 ms."),
    _gauge("leases_busy_fano", "leases", "busy_fano", "Likewise: about 1 at random, far above it in waves."),
    _counter("leases_timed_out", "leases", "timed_out", "Waits for a lock that ended in vain."),
    _counter("leases_store_errors", "leases", "store_errors", "Acquisitions that the store did not answer."),
    _counter("leases_renewed", "leases", "renewed", "Renewals."),
    _counter("leases_renew_requests", "leases", "renew_requests", "Requests in which leases were renewed together."),
    _counter("leases_unconfirmed", "leases", "unconfirmed", "Renewals that the store did not confirm."),
    _counter("leases_lost", "leases", "lost", "Leases that were lost."),
    _counter("leases_released", "leases", "released", "Leases that were given back."),
    _counter("leases_not_owned", "leases", "not_owned", "Releases refused: somebody else's by then."),
    _counter("leases_release_failures", "leases", "release_failures", "Releases that the store did not answer."),
    _counter("leases_compensated", "leases", "compensated", "Grants given back that nobody could use."),
    _counter("leases_fallbacks", "leases", "fallbacks", "Leases given without the store, by policy."),
    _counter("leases_exercised", "leases", "exercised", "Likewise, because an exercise pretended a store error."),
    _counter("leases_promotions", "leases", "promotions", "Degraded leases that became full ones."),
    _counter("leases_denied", "leases", "denied", "Leases denied because of the policy."),
    _gauge("leases_keeper_lag_seconds", "leases", "keeper_lag", "How far renewal is behind. The keeper's heartbeat."),
    _gauge("leases_renew_tail_seconds", "leases", "renew_tail", "The slowest renewals, about the 99.9th percentile."),
    _gauge("leases_breaker_open", "leases", "breaker_open", "Whether the store is taken to be down."),
    # The error policy.
    _counter("workflow_lock_fallback", "policy", "run_fallbacks", "Run locks given without the store: it had failed."),
    _counter("lock_fallback", "policy", "fallbacks", "Locks given without the store: it had failed.", "family", "risk"),
    _counter("lock_exercised", "policy", "exercised", "Likewise, on purpose: no store had failed.", "family", "risk"),
    _gauge("lock_exercise_share", "policy", "exercises", "Acquisitions that meet a pretended error.", "family"),
    _counter("duplicates", "policy", "duplicates", "Work that was done or sent a second time, and not used.", "kind"),
    _gauge("policy_mode", "policy", "modes", "What each risk class does when the store fails: 1.", "risk", "mode"),
    _gauge("policy_revision", "policy", "revision", "The policy that this process follows. Equal on all replicas."),
    _gauge("policy_escalation_armed", "policy", "armed", "Whether this process may make classes fail closed."),
    _counter("policy_escalations", "policy", "escalations", "Risk classes that this process made fail closed."),
    _counter("policy_failed", "policy", "failed", "Looks at the policy, and writes of signals, in vain.", "what"),
)


def samples(readings: Iterable[Reading]) -> Iterator[Sample]:
    """The numbers of all metrics that the readings have. What a source does not know has no sample."""
    for reading in readings:
        for metric in _OF.get(reading.source, ()):
            value = reading.values.get(metric.field)
            if isinstance(value, Mapping):
                yield from _by_kind(metric, reading.labels, value)
            elif value is not None:
                yield Sample(metric, reading.labels, value / metric.scale)


def markdown() -> str:
    """The table for a page."""
    rows = [("metric", "kind", "labels", "what it says"), ("---",) * 4]
    for each in TABLE:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        rows.append((f"`{each.name}`", str(each.kind), labels, each.help))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _by_kind(metric: Metric, labels: Mapping[str, str], counts: Mapping[object, Number]) -> Iterator[Sample]:
    own = tuple(label for label in metric.labels if label not in labels)
    for kind, value in counts.items():
        names = kind if isinstance(kind, tuple) else (kind,)
        given = {label: str(name) for label, name in zip(own, names, strict=True)}
        yield Sample(metric, {**labels, **given}, value / metric.scale)


_OF: Final[dict[str, list[Metric]]] = {}
for _each in TABLE:
    _OF.setdefault(_each.source, []).append(_each)
