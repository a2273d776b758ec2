"""The row about loops: whether each is led by one process, and ticks in time."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Kind, Panel, Row, Steps, Unit
from holdfast.ops.dashboard.promql import Query, most, rate, series, total
from holdfast.ops.dashboard.thresholds import Limits

_INTERVAL: Final = most("loop_interval_seconds", "loop")
_LAST: Final = f"(time() - {most('loop_last_tick_timestamp_seconds', 'loop')}) / on (loop) {_INTERVAL}"
_LONGEST: Final = f"{most('loop_longest_tick_seconds', 'loop')} / on (loop) {_INTERVAL}"
_TOOK: Final = f"{most('loop_last_tick_seconds', 'loop')} / on (loop) {_INTERVAL}"

_LEADERS: Final = (
    Panel(
        "Leaders of each loop",
        "How many processes lead each loop. Usual: one, but for the time that it takes to take over. "
        "The snapshot: `holdfast runbook snapshot-leader`.",
        (Query(total("loop_leader", "loop"), "{{loop}}"),),
        steps=Steps.exactly_one(),
        kind=Kind.TIMELINE,
        words={0: "nobody", 1: "one", 2: "two"},
    ),
    Panel(
        "Who leads",
        "The process that leads each loop now: whose log to read, and whom to restart.",
        (Query(f"max by (loop, instance) ({series('loop_leader')} == 1)", "{{loop}}: {{instance}}"),),
        kind=Kind.STAT,
        named=True,
    ),
)


_TICKS: Final = (
    Panel(
        "Ticks",
        "Ticks a second that ended well: one in each interval. None: see who leads, and what went wrong.",
        (Query(rate("loop_ticks_total", "loop"), "{{loop}}"),),
        Unit.PER_SECOND,
    ),
    Panel(
        "Length of a tick, in intervals",
        "How long the last tick took, and the longest, as a share of the interval. At 1, ticks are left out.",
        (Query(_TOOK, "{{loop}}"), Query(_LONGEST, "longest: {{loop}}")),
        Unit.SHARE,
        Steps.rising(0.5, 1),
    ),
    Panel(
        "Ticks that went wrong",
        "Ticks that raised, were cut short, or were left out because the one before took too long.",
        (
            Query(rate("loop_ticks_failed_total", "loop"), "raised: {{loop}}"),
            Query(rate("loop_ticks_interrupted_total", "loop"), "cut short: {{loop}}"),
            Query(rate("loop_ticks_late_total", "loop"), "left out: {{loop}}"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Forgotten by the cleanup",
        "What was kept for long enough, a second, by kind. Nothing for days: it does not run, and the disk fills.",
        (Query(rate("cleanup_forgotten_total", "kind"), "{{kind}}"),),
        Unit.PER_SECOND,
        width=12,
    ),
    Panel(
        "Leaderships",
        "Times that a process began to lead, lost the lead, or could not ask the store. Many: leaders flap.",
        (
            Query(rate("loop_leaderships_total", "loop"), "began: {{loop}}"),
            Query(rate("loop_leaderships_lost_total", "loop"), "lost: {{loop}}"),
            Query(rate("loop_skipped_total", "loop", where='reason="error"'), "no store: {{loop}}"),
        ),
        Unit.PER_SECOND,
        width=12,
    ),
)


def _overdue(limits: Limits) -> tuple[Panel, ...]:
    """Whether somebody should have taken over."""
    return (
        Panel(
            "Time since the last tick, in intervals",
            f"Usual: at most 1. After {limits.takeover:g} another process should lead, and after {limits.overdue:.2g} "
            "have ticked: look who holds the lock of the loop, with `holdfast locks holdfast:`.",
            (Query(_LAST, "{{loop}}"),),
            steps=Steps.rising(limits.takeover, limits.overdue),
        ),
    )


def loops(limits: Limits) -> Row:
    """The whole row."""
    question = "Whether each loop is led by one process, and ticks in time."
    return Row("Loops", question, (*_LEADERS, *_overdue(limits), *_TICKS))
