"""The row about jobs and runs: throughput and backlog."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Panel, PanelSteps, Row, Unit
from holdfast.ops.dashboard.promql import PanelQuery, most, quantiles, rate, total
from holdfast.ops.dashboard.sections.summary import STALE_NOW

_STATES: Final = (
    Panel(
        "Jobs by state",
        "Unfinished jobs of the whole plane. PENDING rises: too few workers, or no scheduler. DISPATCHED "
        "rises: workers do not accept them. `holdfast jobs stats`.",
        (PanelQuery(most("plane_jobs", "state"), "{{state}}"),),
        stacked=True,
    ),
    Panel(
        "Runs by status",
        "Unfinished workflow runs. waiting: for an approval or a time. `holdfast approvals list`.",
        (PanelQuery(most("plane_runs", "status"), "{{status}}"),),
        stacked=True,
    ),
    Panel(
        "Stale jobs by state",
        "Overdue jobs at the last check of the leading reconciler, and the jobs that it ended.",
        (
            PanelQuery(f"max by (state) ({STALE_NOW})", "{{state}}"),
            PanelQuery(rate("reconciler_timed_out_total", "state"), "timed out per second, {{state}}"),
            PanelQuery(rate("reconciler_expired_total", "state"), "past deadline per second, {{state}}"),
        ),
        steps=PanelSteps.rising(1),
    ),
)


_SCHEDULES: Final = (
    Panel(
        "Schedules: jobs and due times without one",
        "Submitted jobs per second. Skipped: the last job had not finished. Missed: an outage, and no catch-up.",
        (
            PanelQuery(rate("schedules_fired_total"), "fired"),
            PanelQuery(rate("schedules_skipped_total"), "skipped"),
            PanelQuery(rate("schedules_missed_total"), "missed"),
            PanelQuery(rate("schedules_errors_total"), "errors, repeated"),
        ),
        Unit.PER_SECOND,
    ),
)

_LEFT: Final = (
    Panel(
        "Orphans replayed",
        "Orphaned jobs that resumed, per second. More than a few: messages are lost, or schedulers crash.",
        (
            PanelQuery(rate("orphan_replayed_total", "topic"), "{{topic}}"),
            PanelQuery(rate("replayer_redispatched_total"), "sent again"),
        ),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Skipped by the loops",
        "Items that the loops left for their next tick because a lock was busy, or skipped after an error.",
        (
            PanelQuery(rate("reconciler_left_total"), "reconciler, busy"),
            PanelQuery(rate("reconciler_errors_total"), "reconciler, errors"),
            PanelQuery(rate("replayer_left_total"), "replayer, busy"),
            PanelQuery(rate("replayer_errors_total"), "replayer, errors"),
            PanelQuery(rate("delays_left_total"), "delays, busy"),
            PanelQuery(rate("delays_errors_total"), "delays, errors"),
        ),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Dead letters and failed dead-letter writes",
        "Messages dead-lettered per second, and dead letters that could not be written at first.",
        (
            PanelQuery(rate("bus_dead_letters_total"), "dead-lettered"),
            PanelQuery(rate("bus_burials_failed_total"), "not written at first"),
        ),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Writes refused",
        "Writes that guards refused, per second. stale: the writer had lost its lease without noticing; no data was "
        "damaged. Many: check for pauses, and the losses by reason.",
        (PanelQuery(rate("guard_refused_total", "guard", "reason"), "{{guard}}: {{reason}}"),),
        Unit.PER_SECOND,
        width=6,
    ),
)


_WORKERS: Final = (
    Panel(
        "Workers in use",
        "Share of all attempt slots in use. At 100 % for long: add workers.",
        (PanelQuery(f"{total('worker_active')} / ({total('worker_capacity')} > 0)", "in use"),),
        Unit.SHARE,
        PanelSteps.rising(0.8, 0.95),
        width=6,
        top=1,
    ),
    Panel(
        "Attempts",
        "Attempts started, and how they ended. lost: the worker lost its lease, and another one repeats the attempt.",
        (
            PanelQuery(rate("worker_taken_total"), "begun"),
            PanelQuery(rate("worker_attempts_total", "outcome"), "{{outcome}}"),
        ),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Rejected assignments",
        "Messages that started no attempt, by reason. full: no free slot. busy: another worker runs the job.",
        (PanelQuery(rate("worker_not_taken_total", "reason"), "{{reason}}"),),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Workers in trouble",
        "Time limits, stalled attempts, functions that did not stop in time or still run, lost heartbeats.",
        (
            PanelQuery(rate("worker_timed_out_total"), "time limits per second"),
            PanelQuery(rate("worker_stalled_total"), "stalled per second"),
            PanelQuery(rate("worker_overran_total"), "did not stop, per second"),
            PanelQuery(total("worker_stuck"), "still running"),
            PanelQuery(rate("worker_heartbeats_total", where='result="unheard"'), "unanswered heartbeats per second"),
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
            PanelQuery(rate("scheduler_messages_total", "subject", "outcome"), "{{subject}}: {{outcome}}"),
            PanelQuery(rate("dispatcher_looks_total", "outcome"), "poll: {{outcome}}"),
            PanelQuery(rate("submissions_total", "way"), "submitted: {{way}}"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Workflow engine",
        "Events of runs by outcome, and jobs of steps that existed already.",
        (
            PanelQuery(rate("engine_events_total", "event", "outcome"), "{{event}}: {{outcome}}"),
            PanelQuery(rate("engine_repeated_publishes_total"), "existed already"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Runs woken, approvals decided",
        "Runs that a loop had to wake because no message did, events that runs had missed, and decisions of people.",
        (
            PanelQuery(rate("delays_woken_total"), "woken by time"),
            PanelQuery(rate("run_reconciler_found_total", "what"), "runs: {{what}}"),
            PanelQuery(rate("approvals_decided_total", "verdict"), "{{verdict}}"),
            PanelQuery(rate("approvals_refused_total", "code"), "refused: {{code}}"),
        ),
        Unit.PER_SECOND,
    ),
)


JOBS: Final = Row(
    "Jobs and runs",
    "Throughput and backlog of jobs and runs.",
    (*_STATES, *_LEFT, *_SCHEDULES, *_WORKERS, *_TAKEOVERS, *_PARTS),
)
