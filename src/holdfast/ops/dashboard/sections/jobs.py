"""The row about jobs and runs: throughput and backlog."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Panel, Row, Steps, Unit
from holdfast.ops.dashboard.promql import Query, most, quantiles, rate, total
from holdfast.ops.dashboard.sections.summary import STALE_NOW

_STATES: Final = (
    Panel(
        "Jobs by state",
        "Unfinished jobs of the whole plane. PENDING rises: too few workers, or no scheduler. DISPATCHED "
        "rises: workers do not accept them. `holdfast jobs stats`.",
        (Query(most("plane_jobs", "state"), "{{state}}"),),
        stacked=True,
    ),
    Panel(
        "Runs by status",
        "Unfinished workflow runs. waiting: for an approval or a time. `holdfast approvals list`.",
        (Query(most("plane_runs", "status"), "{{status}}"),),
        stacked=True,
    ),
    Panel(
        "Stale jobs by state",
        "Overdue jobs at the last check of the leading reconciler, and the jobs that it ended.",
        (
            Query(f"max by (state) ({STALE_NOW})", "{{state}}"),
            Query(rate("reconciler_timed_out_total", "state"), "timed out per second, {{state}}"),
            Query(rate("reconciler_expired_total", "state"), "past deadline per second, {{state}}"),
        ),
        steps=Steps.rising(1),
    ),
)


_LEFT: Final = (
    Panel(
        "Orphans replayed",
        "Orphaned jobs that resumed, per second. More than a few: messages are lost, or schedulers crash.",
        (
            Query(rate("orphan_replayed_total", "topic"), "{{topic}}"),
            Query(rate("replayer_redispatched_total"), "sent again"),
        ),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Skipped by the loops",
        "Items that the loops left for their next tick because a lock was busy, or skipped after an error.",
        (
            Query(rate("reconciler_left_total"), "reconciler, busy"),
            Query(rate("reconciler_errors_total"), "reconciler, errors"),
            Query(rate("replayer_left_total"), "replayer, busy"),
            Query(rate("replayer_errors_total"), "replayer, errors"),
            Query(rate("delays_left_total"), "delays, busy"),
            Query(rate("delays_errors_total"), "delays, errors"),
        ),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Dead letters and failed dead-letter writes",
        "Messages dead-lettered per second, and dead letters that could not be written at first.",
        (
            Query(rate("bus_dead_letters_total"), "dead-lettered"),
            Query(rate("bus_burials_failed_total"), "not written at first"),
        ),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Writes refused",
        "Writes that guards refused, per second. stale: the writer had lost its lease without noticing; no data was "
        "damaged. Many: check for pauses, and the losses by reason.",
        (Query(rate("guard_refused_total", "guard", "reason"), "{{guard}}: {{reason}}"),),
        Unit.PER_SECOND,
        width=6,
    ),
)


_WORKERS: Final = (
    Panel(
        "Workers in use",
        "Share of all attempt slots in use. At 100 % for long: add workers.",
        (Query(f"{total('worker_active')} / ({total('worker_capacity')} > 0)", "in use"),),
        Unit.SHARE,
        Steps.rising(0.8, 0.95),
        width=6,
        top=1,
    ),
    Panel(
        "Attempts",
        "Attempts started, and how they ended. lost: the worker lost its lease, and another one repeats the attempt.",
        (
            Query(rate("worker_taken_total"), "begun"),
            Query(rate("worker_attempts_total", "outcome"), "{{outcome}}"),
        ),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Rejected assignments",
        "Messages that started no attempt, by reason. full: no free slot. busy: another worker runs the job.",
        (Query(rate("worker_not_taken_total", "reason"), "{{reason}}"),),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Workers in trouble",
        "Time limits, stalled attempts, functions that did not stop in time or still run, lost heartbeats.",
        (
            Query(rate("worker_timed_out_total"), "time limits per second"),
            Query(rate("worker_stalled_total"), "stalled per second"),
            Query(rate("worker_overran_total"), "did not stop, per second"),
            Query(total("worker_stuck"), "still running"),
            Query(rate("worker_heartbeats_total", where='result="unheard"'), "unanswered heartbeats per second"),
        ),
        width=6,
    ),
)


_TAKEOVERS: Final = (
    Panel(
        "Job takeover time after a crash",
        "From the last heartbeat of a crashed worker or scheduler until another one had its job. Usual: about the "
        "lease TTL. More: too few are left, or they are busy. `holdfast runbook duplicate-dispatch`.",
        quantiles("job_takeover_seconds", "part"),
        Unit.SECONDS,
        width=24,
    ),
)


_PARTS: Final = (
    Panel(
        "Scheduler",
        "Messages of schedulers by outcome, polls of the pool queues, and the paths of new jobs.",
        (
            Query(rate("scheduler_messages_total", "subject", "outcome"), "{{subject}}: {{outcome}}"),
            Query(rate("dispatcher_looks_total", "outcome"), "poll: {{outcome}}"),
            Query(rate("submissions_total", "way"), "submitted: {{way}}"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Workflow engine",
        "Events of runs by outcome, and jobs of steps that existed already.",
        (
            Query(rate("engine_events_total", "event", "outcome"), "{{event}}: {{outcome}}"),
            Query(rate("engine_repeated_publishes_total"), "existed already"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Runs woken, approvals decided",
        "Runs that a loop had to wake because no message did, events that runs had missed, and decisions of people.",
        (
            Query(rate("delays_woken_total"), "woken by time"),
            Query(rate("run_reconciler_found_total", "what"), "runs: {{what}}"),
            Query(rate("approvals_decided_total", "verdict"), "{{verdict}}"),
            Query(rate("approvals_refused_total", "code"), "refused: {{code}}"),
        ),
        Unit.PER_SECOND,
    ),
)


JOBS: Final = Row(
    "Jobs and runs",
    "Throughput and backlog of jobs and runs.",
    (*_STATES, *_LEFT, *_WORKERS, *_TAKEOVERS, *_PARTS),
)
