"""Every metric, declared once: its name, kind, help, labels, and which number of which source it is.

From this table come what `/metrics` answers, what is sent to OpenTelemetry, and the page in the documentation. Names
follow Prometheus: counters end in `_total`, times are seconds. Where an article that operators know has a name for a
thing, that name is kept under our prefix. The prefix is declared here as `holdfast` and can be chosen where metrics are
given out (`Metric.under`). Labels have few values: families, risk classes, outcomes, reasons, parts,
loops, states; topics are bounded (`readings.bounded`). No key, job, tenant or worker is ever a label.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from holdfast.core.name_prefixes import DEFAULT
from holdfast.types import NS


class MetricKind(StrEnum):
    """What a number does over time."""

    COUNTER = "counter"  # only rises, until the process ends
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric."""

    name: str
    kind: MetricKind
    help: str
    source: str  # see `plane.process.metrics`
    field: str
    labels: tuple[str, ...] = ()
    worst: bool = False  # of several sources in one process the largest is shown, because a sum would say nothing

    @property
    def bare(self) -> str:
        """Its name without the prefix."""
        return self.name.partition("_")[2]

    def under(self, prefix: str) -> str:
        """Its name with this prefix."""
        return f"{prefix}_{self.bare}"

    @property
    def scale(self) -> int:
        """What a number is divided by: sources count nanoseconds, metrics are in seconds."""
        return NS if self.field.endswith("_ns") else 1


def _counter(name: str, source: str, field: str, help: str, *labels: str) -> Metric:
    return Metric(f"{DEFAULT}_{name}_total", MetricKind.COUNTER, help, source, field, labels)


def _gauge(name: str, source: str, field: str, help: str, *labels: str) -> Metric:
    return Metric(f"{DEFAULT}_{name}", MetricKind.GAUGE, help, source, field, labels)


def _worst(name: str, source: str, field: str, help: str, *labels: str) -> Metric:
    return Metric(f"{DEFAULT}_{name}", MetricKind.GAUGE, help, source, field, labels, worst=True)


def _histogram(name: str, source: str, field: str, help: str, *labels: str) -> Metric:
    return Metric(f"{DEFAULT}_{name}", MetricKind.HISTOGRAM, help, source, field, labels)


TABLE: Final[tuple[Metric, ...]] = (
    # The process.
    _gauge("part_running", "process", "parts", "Whether each part of this process does what it is there for.", "part"),
    _gauge("draining", "process", "draining", "Whether this process has begun to end."),
    _gauge("plane_jobs", "jobs", "live", "Jobs that are not over, by state, in the whole plane.", "state"),
    _gauge("plane_runs", "runs", "live", "Runs that are not over, by status, in the whole plane.", "status"),
    _gauge("dependency_up", "dependency", "up", "Whether a server answers this process now.", "dependency"),
    _gauge(
        "dependency_seconds",
        "dependency",
        "took_ns",
        "How long the answer took; without an answer the time limit of 2 s.",
        "dependency",
    ),
    _gauge("clock_ahead_seconds", "clock", "ahead_ns", "The clock of this process against that of Postgres."),
    _gauge("disk_free_bytes", "disk", "free", "Free space beside the files of this process.", "what"),
    # The whole plane, as an API process reads it from the database.
    _gauge("plane_oldest_waiting_seconds", "overview", "oldest_waiting_ns", "The oldest job in a queue.", "pool"),
    _gauge("topic_oldest_waiting_seconds", "overview", "oldest_waiting_topic_ns", "Likewise, by topic.", "topic"),
    _gauge(
        "plane_longest_attempt_seconds", "overview", "longest_attempt_ns", "The attempt that runs longest.", "topic"
    ),
    _gauge("plane_hung_attempts", "overview", "hung", "Attempts without progress for far longer than usual.", "topic"),
    _gauge("plane_deadly_jobs", "overview", "deadly", "Running jobs during which two workers or more have ended."),
    _gauge("plane_unserved_jobs", "overview", "unserved", "Waiting jobs of topics without a live worker.", "topic"),
    _gauge("plane_pool_full", "overview", "full", "Whether jobs wait for a pool without a free slot.", "pool"),
    _gauge("plane_dead_letters", "overview", "dead_letters", "Dead letters that were not retried."),
    _gauge("plane_recent_dead_letters", "overview", "recent_letters", "Of these: of the last 15 minutes.", "code"),
    _gauge("plane_open_approvals", "overview", "approvals", "Approvals that wait for a decision, up to 1,000."),
    _gauge("plane_oldest_approval_seconds", "overview", "oldest_approval_ns", "The approval that waits longest."),
    _gauge("plane_late_schedule_seconds", "overview", "late_schedule_ns", "The schedule that is latest."),
    _gauge("plane_paused_schedules", "overview", "paused_schedules", "Paused schedules, up to 1,000."),
    _gauge("plane_worker_clock_ahead_seconds", "overview", "ahead_ns", "The heartbeat farthest in the future."),
    _gauge("plane_silent_workers", "overview", "silent", "Workers that went silent in the last 15 minutes."),
    _counter("http_requests", "http", "answers", "Requests answered.", "method", "status"),
    _counter("http_limited", "http", "limited", "Requests turned away because a caller had made too many."),
    _gauge("http_callers", "http", "callers", "Callers whose rate is being remembered."),
    _gauge("http_connections", "http", "connections", "Open HTTP connections."),
    _counter("http_closed_connections", "http", "closed", "Connections closed by the server, by reason.", "reason"),
    # Jobs: what storage has refused.
    _counter("guard_entered", "guard", "entered", "Jobs entered before they were read."),
    _counter("guard_steps", "guard", "steps", "Writes to jobs, by what the guard decided; refused: stale.", "outcome"),
    _counter("plane_duplicate_ends", "guard", "duplicate_ends", "Second ends of a job, refused. There should be none."),
    _counter("run_guard_steps", "run_guard", "steps", "Writes to runs, likewise; unfenced: no store.", "outcome"),
    _counter("guard_refused", "guards", "refused", "Steps that guards refused; stale: fenced out.", "guard", "reason"),
    # Job locks.
    _histogram("job_lock_wait", "job_lock", "wait_ns", "Waited for job locks, in seconds.", "part", "outcome"),
    _histogram("job_lock_hold", "job_lock", "hold_ns", "How long job locks were held, in seconds.", "part"),
    _counter("job_lock_busy", "job_lock", "busy", "Waits for a job lock that ended because it was busy.", "part"),
    _counter("job_lock_backend_errors", "job_lock", "backend_errors", "Work put off because a store failed.", "part"),
    _counter("job_lock_abandoned", "job_lock", "abandoned", "Job locks lost while the work ran.", "part"),
    _counter("job_lock_degraded", "job_lock", "degraded", "Job locks had without the store, by policy.", "part"),
    _histogram(
        "job_takeover_seconds",
        "takeover",
        "took_ns",
        "From the last sign of life of one that died with a job until another had it.",
        "part",
    ),
    # Run locks.
    _histogram("run_lock_wait", "run_lock", "wait_ns", "Waited for run locks, in seconds.", "part", "outcome"),
    _histogram("run_lock_hold", "run_lock", "hold_ns", "How long run locks were held, in seconds.", "part"),
    _counter("run_lock_busy", "run_lock", "busy", "Waits for a run lock that ended because it was busy.", "part"),
    _counter("run_lock_backend_errors", "run_lock", "backend_errors", "Work put off because a store failed.", "part"),
    _counter("run_lock_abandoned", "run_lock", "abandoned", "Run locks lost while the work ran.", "part"),
    _counter("run_lock_degraded", "run_lock", "degraded", "Run locks had without the store, by policy.", "part"),
    # The scheduler.
    _counter("submissions", "submissions", "jobs", "Jobs submitted in this process, by the way they went.", "way"),
    _counter("scheduler_messages", "scheduler", "messages", "Messages handled, by outcome.", "subject", "outcome"),
    _gauge("scheduler_handling", "scheduler", "handling", "Messages that are being handled."),
    _counter("dispatcher_rounds", "dispatcher", "rounds", "Rounds through the queues of pools."),
    _counter("dispatcher_looks", "dispatcher", "looks", "Jobs considered for dispatch, by outcome.", "outcome"),
    # The workflow engine, and approvals.
    _counter("engine_events", "engine", "events", "Events of runs, by what became of them.", "event", "outcome"),
    _gauge("engine_handling", "engine", "handling", "Messages about runs that are being handled."),
    _counter("engine_held_back", "engine", "held_back", "Starts of steps put off until the lease store is back."),
    _counter("engine_repeated_publishes", "engine", "repeated_publishes", "Jobs of steps that were there already."),
    _counter("engine_given_back", "engine", "stopping", "Messages nacked because this process stops."),
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
    _counter("replayer_waiting", "replayer", "waiting", "Jobs that were checked and rightly wait."),
    _counter("replayer_left", "replayer", "left", "Jobs left for the next tick: their lock was busy."),
    _counter("replayer_running", "replayer", "running", "Jobs sent long ago that were found at work."),
    _counter("replayer_errors", "replayer", "errors", "Jobs passed over because something went wrong."),
    _counter("schedules_fired", "schedules", "fired", "Jobs submitted at due times of schedules."),
    _counter("schedules_skipped", "schedules", "skipped", "Due times at which the last job had not finished."),
    _counter("schedules_missed", "schedules", "missed", "Due times that passed in an outage and are not caught up."),
    _counter("schedules_errors", "schedules", "errors", "Decisions about due times that failed and are repeated."),
    _counter("delays_woken", "delays", "woken", "Runs whose time had come and that no message had woken."),
    _counter("delays_left", "delays", "left", "Runs left for the next tick: their lock was busy."),
    _counter("delays_errors", "delays", "errors", "Runs passed over because something went wrong."),
    _counter("run_reconciler_found", "run_reconciler", "found", "Runs that were checked, by what they missed.", "what"),
    _counter("cleanup_forgotten", "cleanup", "forgotten", "What was kept for long enough, by kind.", "kind"),
    # Workers.
    _gauge("worker_capacity", "worker", "capacity", "Attempts that this process can run concurrently."),
    _gauge("worker_active", "worker", "active", "Attempts that are being made."),
    _gauge("worker_stuck", "worker", "stuck", "Functions that were asked to stop and still run."),
    _counter("worker_taken", "worker", "taken", "Attempts begun, each under a lease."),
    _counter("worker_attempts", "worker", "attempts", "Attempts that are over; lost: their lease was.", "outcome"),
    _counter("worker_not_taken", "worker", "not_taken", "Messages that began no attempt, by reason.", "reason"),
    _counter("worker_timed_out", "worker", "timed_out", "Attempts that ran into a time limit."),
    _counter("worker_stalled", "worker", "stalled", "Attempts stopped because they reported no progress."),
    _counter("worker_overran", "worker", "overran", "Functions that did not stop within the grace period."),
    _histogram("worker_hold_seconds", "worker", "held_ns", "How long attempts held their lease, by topic.", "topic"),
    _counter("worker_heartbeats", "worker", "beats", "Heartbeats, by whether the registry received them.", "result"),
    # The bus.
    _counter("bus_deliveries", "bus", "deliveries", "Deliveries to this process, by how they ended.", "outcome"),
    _counter("bus_dead_letters", "bus", "dead", "Messages given up."),
    _counter("bus_burials_failed", "bus", "burials_failed", "Dead letters that could not be written at first."),
    _gauge("bus_handling", "bus", "handling", "Messages in flight."),
    _counter("bus_relayed", "bus", "relayed", "Messages taken from the outbox to the bus."),
    # The database.
    _counter("database_works", "database", "works", "Transactions asked for.", "kind"),
    _counter("database_failed", "database", "failed", "Transactions that failed."),
    _counter("database_run_again", "database", "run_again", "Transactions run again, as the database asked."),
    _counter("database_unknown", "database", "unknown", "Transactions whose outcome is not known."),
    _counter("database_held", "database", "held", "Changes made again with their rows locked."),
    _counter("database_commits", "database", "commits", "Commits; several works may share one."),
    _counter("database_syncs", "database", "syncs", "Times that the log of the file was synced by the plane itself."),
    _gauge("database_largest_group", "database", "largest_group", "The most works that shared a commit."),
    _counter("database_busy", "database", "busy", "Attempts that found the file locked by another process."),
    _counter("database_busy_seconds", "database", "busy_ns", "Waited for other processes' locks on the file."),
    _gauge("database_line", "database", "line", "Works that wait for their turn.", "kind"),
    _gauge("database_active", "database", "active", "Transactions that are open."),
    _counter("database_pool_wait_seconds", "database", "pool_wait_ns", "Waited for a free connection."),
    _counter("database_listener_reconnects", "database", "hint_reconnects", "Times that the listener reconnected."),
    _gauge("database_bells", "database", "bells", "Channels that are listened to."),
    # Locks, by family.
    _histogram("lock_wait_seconds", "lock", "wait_ns", "Waited for locks, by how it ended.", "family", "outcome"),
    _histogram(
        "lock_hold_seconds", "lock", "hold_ns", "How long leases were held, by how it ended.", "family", "outcome"
    ),
    _histogram(
        "lock_renew_remaining_seconds", "lock", "left_ns", "Left of leases when a renewal was confirmed.", "family"
    ),
    _gauge("locks_held", "lock", "held", "Leases that this process holds.", "family"),
    _gauge("locks_degraded", "lock", "degraded", "Of these: without the store, by policy.", "family"),
    _gauge("locks_waiting", "lock", "waiting", "Callers of this process that wait for a lock.", "family"),
    _counter("lock_granted", "lock", "granted", "Leases that were had.", "family"),
    _counter("lock_busy", "lock", "busy", "Attempts that the store answered: it is held.", "family"),
    _counter("lock_timed_out", "lock", "timed_out", "Waits for a lock that ended in vain.", "family"),
    _counter("lock_store_errors", "lock", "store_errors", "Attempts that the store did not answer.", "family"),
    _counter("lock_renewed", "lock", "renewed", "Renewals that were confirmed.", "family"),
    _counter("lock_unconfirmed", "lock", "unconfirmed", "Renewals that the store did not confirm.", "family"),
    _counter("lock_lost", "lock", "lost", "Leases that were lost, by reason.", "family", "reason"),
    _counter("lock_abandoned", "lock", "abandoned", "Of these: given up because renewal failed.", "family"),
    _counter("lock_released", "lock", "released", "Leases that were released.", "family"),
    _counter("lock_not_owned", "lock", "not_owned", "Releases refused: another owner had the lease by then.", "family"),
    _counter("lock_release_failures", "lock", "release_failures", "Releases that the store did not answer.", "family"),
    _counter("lock_compensated", "lock", "compensated", "Grants released because no caller could use them.", "family"),
    _counter("lock_fallback", "lock", "fallbacks", "Leases given without the store: it had failed.", "family", "risk"),
    _counter("lock_exercised", "lock", "exercised", "Likewise, on purpose: no store had failed.", "family", "risk"),
    _counter("lock_promoted", "lock", "promoted", "Degraded leases that became full ones.", "family"),
    _counter("lock_denied", "lock", "denied", "Leases denied because a class fails closed.", "family", "risk"),
    _counter("lock_forced", "lock", "forced", "Leases broken by an operator through this process.", "family"),
    # Locks, of all families together.
    _histogram("lock_renew_seconds", "leases", "renewals", "Requests that renewed leases together.", "outcome"),
    _worst("lock_renew_tail_seconds", "leases", "renew_tail_ns", "The slowest renewals, about the 99.9th percentile."),
    _worst(
        "lock_busy_peak_to_mean", "burst", "peak_to_mean", "Of the last minute's busy retries, per bucket.", "bucket"
    ),
    _worst("lock_busy_fano", "burst", "fano", "Likewise: about 1 at random, far above it in waves.", "bucket"),
    _counter("lock_busy_groups", "leases", "busy_groups", "Busy retries by group of 50 ms intervals.", "group"),
    _worst(
        "keeper_heartbeat_age_seconds", "leases", "keeper_lag_ns", "How long what is due waits for the keeper. 0: none."
    ),
    _worst("event_loop_lag_seconds", "leases", "loop_lag_ns", "By how much the event loop was late, at worst lately."),
    _worst("gc_pause_seconds", "leases", "collection_ns", "The longest garbage collection lately (15 s)."),
    _worst("store_breaker_open", "leases", "breaker_open", "Whether the lease store is taken to be down."),
    # The audit ledger.
    _counter("audit_records", "audit", "written", "Records written to the audit ledger."),
    _counter("audit_dropped", "audit", "dropped", "Records that could not be written. There should be none."),
    _gauge("audit_queued", "audit", "queued", "Records that wait to be written."),
    _counter("audit_bytes", "audit", "bytes", "Bytes written to the audit ledger."),
    _counter("audit_files", "audit", "files", "Files begun; each after the first is a rotation."),
    _counter("audit_files_deleted", "audit", "deleted", "Old files deleted by this process to make room."),
    _counter("audit_failures", "audit", "failures", "Times that the disk did not take what was to be written."),
    # OpenTelemetry.
    _counter("otel_exports", "otel", "exports", "Exports; left out: the one before was still under way.", "outcome"),
    # The error policy.
    _counter("workflow_lock_fallback", "policy", "run_fallbacks", "Run locks given without the store: it had failed."),
    _counter("scheduler_input_fail_open", "policy", "input_fail_open", "Jobs of runs locked without the store."),
    _counter("policy_switches", "leases", "policy_switches", "Switches of a risk class that this process noticed."),
    _gauge("lock_exercise_share", "policy", "exercises", "Acquisitions that meet a pretended error.", "family"),
    _counter("duplicates", "policy", "duplicates", "Work that was done or sent a second time, and not used.", "kind"),
    _gauge("policy_mode", "policy", "modes", "What each risk class does when the store fails: 1.", "risk", "mode"),
    _gauge("policy_busy_jitter_seconds", "policy", "busy_jitter_ns", "How far the delay of busy retries varies here."),
    _gauge("policy_revision", "policy", "revision", "The policy that this process follows. Equal on all replicas."),
    _gauge("policy_escalation_armed", "policy", "armed", "Whether this process may make classes fail closed."),
    _counter("policy_escalations", "policy", "escalations", "Risk classes that this process made fail closed."),
    _counter("policy_failed", "policy", "failed", "Failed reads of the policy and failed writes of signals.", "what"),
)
