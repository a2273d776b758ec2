"""The row about loops: whether one process leads each, and whether it ticks in time."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Panel, PanelKind, PanelSteps, Row, Unit
from holdfast.ops.dashboard.promql import PanelQuery, most, rate, series, total
from holdfast.ops.dashboard.thresholds import PanelLimits

_INTERVAL: Final = most("loop_interval_seconds", "loop")
_LAST: Final = f"(time() - {most('loop_last_tick_timestamp_seconds', 'loop')}) / on (loop) {_INTERVAL}"
_LONGEST: Final = f"{most('loop_longest_tick_seconds', 'loop')} / on (loop) {_INTERVAL}"
_TOOK: Final = f"{most('loop_last_tick_seconds', 'loop')} / on (loop) {_INTERVAL}"

_LEADERS: Final = (
    Panel(
        "Leaders of each loop",
        "How many processes lead each loop. Usual: one, except during a takeover. "
        "The snapshot: `holdfast runbook snapshot-leader`.",
        (PanelQuery(total("loop_leader", "loop"), "{{loop}}"),),
        steps=PanelSteps.exactly_one(),
        kind=PanelKind.TIMELINE,
        words={0: "none", 1: "one", 2: "two"},
    ),
    Panel(
        "Who leads",
        "The process that leads each loop now: read its log, or restart it.",
        (PanelQuery(f"max by (loop, instance) ({series('loop_leader')} == 1)", "{{loop}}: {{instance}}"),),
        kind=PanelKind.STAT,
        named=True,
    ),
)


_TICKS: Final = (
    Panel(
        "Ticks",
        "Good ticks per second: one in each interval. None: check the leader and its failed ticks.",
        (PanelQuery(rate("loop_ticks_total", "loop"), "{{loop}}"),),
        Unit.PER_SECOND,
    ),
    Panel(
        "Length of a tick, in intervals",
        "Duration of the last tick, and of the longest, as a share of the interval. At 1, ticks are skipped.",
        (PanelQuery(_TOOK, "{{loop}}"), PanelQuery(_LONGEST, "longest: {{loop}}")),
        Unit.SHARE,
        PanelSteps.rising(0.5, 1),
    ),
    Panel(
        "Failed ticks",
        "Ticks that raised an error, were interrupted, or were skipped because the previous one took too long.",
        (
            PanelQuery(rate("loop_ticks_failed_total", "loop"), "raised: {{loop}}"),
            PanelQuery(rate("loop_ticks_interrupted_total", "loop"), "interrupted: {{loop}}"),
            PanelQuery(rate("loop_ticks_late_total", "loop"), "skipped: {{loop}}"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Deleted by the cleanup",
        "Records deleted after their retention period, per second, by kind. None for days: it does not run, and the "
        "disk fills.",
        (PanelQuery(rate("cleanup_forgotten_total", "kind"), "{{kind}}"),),
        Unit.PER_SECOND,
        width=12,
    ),
    Panel(
        "Leaderships",
        "How often a process began to lead, lost the lead, or could not reach the store. Often: leadership flaps.",
        (
            PanelQuery(rate("loop_leaderships_total", "loop"), "began: {{loop}}"),
            PanelQuery(rate("loop_leaderships_lost_total", "loop"), "lost: {{loop}}"),
            PanelQuery(rate("loop_skipped_total", "loop", where='reason="error"'), "no store: {{loop}}"),
        ),
        Unit.PER_SECOND,
        width=12,
    ),
)


def _overdue(limits: PanelLimits) -> tuple[Panel, ...]:
    """Whether a takeover is overdue."""
    return (
        Panel(
            "Time since the last tick, in intervals",
            f"Usual: at most 1. After {limits.takeover:g} another process should lead, and after {limits.overdue:.2g} "
            "have ticked: find the holder of the loop's lock with `holdfast locks holdfast:`.",
            (PanelQuery(_LAST, "{{loop}}"),),
            steps=PanelSteps.rising(limits.takeover, limits.overdue),
        ),
    )


def loops(limits: PanelLimits) -> Row:
    """The row."""
    question = "Whether one process leads each loop, and whether it ticks in time."
    return Row("Loops", question, (*_LEADERS, *_overdue(limits), *_TICKS))
