"""The row about causes: what `holdfast why` names, over time."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Panel, PanelKind, PanelSteps, Row, Unit
from holdfast.ops.dashboard.promql import PanelQuery, most, series

_SERVERS: Final = (
    Panel(
        "Servers",
        "Whether any process gets an answer from each server. down: none does. `holdfast why` names the reason.",
        (PanelQuery(most("dependency_up", "dependency"), "{{dependency}}"),),
        steps=PanelSteps.falling(0.5, 1),
        kind=PanelKind.TIMELINE,
        words={0: "down", 1: "up"},
    ),
    Panel(
        "Answer time of servers",
        "The smallest request, for the slowest process. Above 0.25 s a server is slow, and requests time out.",
        (PanelQuery(most("dependency_seconds", "dependency"), "{{dependency}}"),),
        Unit.SECONDS,
        PanelSteps.rising(0.1, 0.25),
    ),
    Panel(
        "Free disk space",
        "Beside the files of each process. Processes that have less than 16 MB are not ready.",
        (PanelQuery(f"min by (instance) ({series('disk_free_bytes')})", "{{instance}}"),),
        Unit.BYTES,
        PanelSteps.falling(16e6, 1e9),
    ),
)

_WORK: Final = (
    Panel(
        "Oldest waiting job",
        "By pool and topic. It rises while workers are idle: a topic without workers, or no scheduler. `holdfast why`.",
        (
            PanelQuery(most("plane_oldest_waiting_seconds", "pool"), "pool {{pool}}"),
            PanelQuery(most("topic_oldest_waiting_seconds", "topic"), "{{topic}}"),
        ),
        Unit.SECONDS,
    ),
    Panel(
        "Longest attempt",
        "By topic. It rises without end: a function hangs. `holdfast why` names the attempt and its worker.",
        (PanelQuery(most("plane_longest_attempt_seconds", "topic"), "{{topic}}"),),
        Unit.SECONDS,
    ),
    Panel(
        "Hung attempts, jobs that kill workers",
        "Attempts without progress for far longer than usual, and jobs during which several workers ended.",
        (
            PanelQuery(most("plane_hung_attempts", "topic"), "hung: {{topic}}"),
            PanelQuery(most("plane_deadly_jobs"), "kills workers"),
        ),
        steps=PanelSteps.none_allowed(),
    ),
    Panel(
        "Jobs without workers",
        "Waiting jobs of topics that no live worker serves, pools without a free slot, and workers that went silent.",
        (
            PanelQuery(most("plane_unserved_jobs", "topic"), "no worker: {{topic}}"),
            PanelQuery(most("plane_pool_full", "pool"), "full: {{pool}}"),
            PanelQuery(most("plane_silent_workers"), "silent workers"),
        ),
        steps=PanelSteps.none_allowed(),
    ),
    Panel(
        "Dead letters that wait",
        "Those that were not retried, and those of the last 15 minutes by code. `holdfast jobs dead-letters`.",
        (
            PanelQuery(most("plane_dead_letters"), "not retried"),
            PanelQuery(most("plane_recent_dead_letters", "code"), "recent: {{code}}"),
        ),
    ),
    Panel(
        "Clock offset",
        "The distance of each process from the database, and of the worker that is ahead most. Two seconds are wrong.",
        (
            PanelQuery(f"max by (instance) (abs({series('clock_ahead_seconds')}))", "{{instance}}"),
            PanelQuery(most("plane_worker_clock_ahead_seconds"), "a worker, ahead"),
        ),
        Unit.SECONDS,
        PanelSteps.rising(1, 2),
    ),
)

_PEOPLE: Final = (
    Panel(
        "Late schedules",
        "How late the latest schedule is, and paused schedules. Late for long: no process runs the schedules loop.",
        (
            PanelQuery(most("plane_late_schedule_seconds"), "latest, seconds"),
            PanelQuery(most("plane_paused_schedules"), "paused"),
        ),
    ),
    Panel(
        "Open approvals",
        "Approvals that wait for a person. `holdfast approvals list`.",
        (PanelQuery(most("plane_open_approvals"), "open"),),
    ),
    Panel(
        "Oldest approval",
        "How long the oldest of them waits. After an hour, an alert asks a person to decide.",
        (PanelQuery(most("plane_oldest_approval_seconds"), "oldest"),),
        Unit.SECONDS,
        PanelSteps.rising(3600),
    ),
)

CAUSES: Final = Row(
    "Causes",
    "What `holdfast why` names: servers, disks, clocks, work that waits or hangs, and people.",
    (*_SERVERS, *_WORK, *_PEOPLE),
)
