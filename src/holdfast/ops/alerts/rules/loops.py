"""Alerts about loops: no process leads one, two processes lead it, its ticks are late, or takeovers are too frequent.

The rules use the wall-clock time of the last good tick, which outlives the process that made it. Tick counts restart
with every process, so the rules do not rely on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.ops.alerts.model import (
    AGO,
    COUNT,
    LOOP,
    SHARE,
    Alert,
    AlertSeverity,
    Recording,
    RuleGroup,
    RunbookName,
    lasting,
    number,
)
from holdfast.ops.alerts.plan import AlertPlan, WatchedLoop
from holdfast.ops.alerts.rules.store import DOWN
from holdfast.ops.alerts.thresholds import BUDGET, Burn, overdue_s

LATE: Final = "loop:holdfast_loop_late:bool"
LOOK_BACK_S: Final = 3600.0  # minimum: the tick of a crashed leader must be remembered until it is overdue

RUNBOOKS: Final = {
    "snapshot": RunbookName.SNAPSHOT,
    "runs": RunbookName.WORKFLOWS,
    "delays": RunbookName.WORKFLOWS,
}


def loops(plan: AlertPlan) -> RuleGroup:
    """The rule group."""
    rules: list[Alert | Recording] = []
    for each in plan.loops:
        rules.extend(_loop(plan, each))
    return RuleGroup("holdfast-loops", rules)


def runbook_of(loop: str) -> RunbookName:
    """The runbook that reads the lease of that loop."""
    return RUNBOOKS.get(loop, RunbookName.DUPLICATES)


def _loop(plan: AlertPlan, loop: WatchedLoop) -> Iterator[Alert | Recording]:
    queries, windows = plan.queries, plan.windows
    only, mine = f'loop="{loop.name}"', {"loop": loop.name}
    severity = AlertSeverity.TICKET if loop.minor else AlertSeverity.PAGE
    bound_s = overdue_s(loop.interval_s, loop.takeover_s, plan.scrape_s)
    leaders = f"sum by (loop) ({queries.series('loop_leader', only)})"
    ticked = queries.series("loop_last_tick_timestamp_seconds", only)
    newest = f"max by (loop) (max_over_time({ticked}[{lasting(max(LOOK_BACK_S, 2 * bound_s))}]))"
    sum_of = (
        f"{number(bound_s)} s: the longest time between two ticks ({number(loop.interval_s)} s and a tenth), "
        f"{number(loop.takeover_s)} s to take over ({loop.because}), an interval for the tick, and a scrape "
        f"({number(plan.scrape_s)} s)"
    )
    yield Recording(LATE, f"(time() - {newest}) > bool {number(bound_s)}", mine)
    yield Alert(
        "HoldfastLoopLate",
        severity,
        f"time() - {newest} > {number(bound_s)} and on (loop) {leaders} > 0",
        f"The {LOOP} loop has a leader, but no ticks",
        f"The last good tick of {LOOP} ended {AGO} ago. A process leads the loop: its ticks fail or hang.",
        f"{sum_of}.",
        runbook_of(loop.name),
        windows.settle_s,
        mine,
    )
    yield Alert(
        "HoldfastNoLeader",
        severity,
        f"{leaders} == 0 unless on () {queries.recorded(DOWN)} > 0",
        f"No process leads the {LOOP} loop",
        f"Processes run the {LOOP} loop, but none of them has held its lease for longer than a takeover takes.",
        f"another process leads within {number(loop.takeover_s)} s ({loop.because}), plus a short outage of the store "
        "and two scrapes. While the store is down, the alert about the store fires instead.",
        runbook_of(loop.name),
        loop.takeover_s + windows.settle_s,
        mine,
    )
    yield Alert(
        "HoldfastTwoLeaders",
        severity,
        f"{leaders} > 1",
        f"More than one process leads the {LOOP} loop",
        f"{COUNT} processes report that they lead {LOOP}. Their writes carry fences, so storage refuses the "
        "stale one; but ticks are made twice.",
        "scrapes are not simultaneous, so a takeover shows two leaders for one scrape, but not for a whole window.",
        runbook_of(loop.name),
        windows.window_s,
        mine,
    )
    if (burn := burn_of(plan, bound_s)) is not None:
        yield _burning(plan, loop, bound_s, burn)


def burn_of(plan: AlertPlan, bound_s: float) -> Burn | None:
    """How often a loop may be late. In a window shorter than this, a loop that is always late would look healthy.

    None: the loop is so slow that the alert about one long delay fires before it is late often.
    """
    cycle_s = bound_s + plan.windows.settle_s
    fast, short_s = plan.windows.fast, max(plan.windows.window_s, cycle_s)
    burn = Burn(fast.times, max(fast.long_s, 12 * short_s), short_s)
    seen = plan.windows.settle_s / cycle_s / 2  # of the time that it is late, half may fall between two evaluations
    return burn if seen > burn.limit() else None


def _burning(plan: AlertPlan, loop: WatchedLoop, bound_s: float, burn: Burn) -> Alert:
    late = plan.queries.recorded(LATE, f'loop="{loop.name}"')
    limit = number(burn.limit())
    over = " and ".join(f"avg_over_time({late}[{lasting(each)}]) > {limit}" for each in (burn.long_s, burn.short_s))
    return Alert(
        "HoldfastTakeoverBurn",
        AlertSeverity.TICKET,
        over,
        f"The {LOOP} loop is repeatedly late",
        f"The {LOOP} loop was later than a takeover explains for {SHARE} of the last {lasting(burn.long_s)}. Each gap "
        "may be too short for an alert of its own; leaders crash or lose their leases too often.",
        f"late for {number(100 * burn.limit())} % of the time is {number(burn.times)} times the "
        f"{number(100 * BUDGET)} % that takeovers may cost, over {lasting(burn.long_s)} and over "
        f"{lasting(burn.short_s)}, which contains every late period (after {number(bound_s)} s).",
        runbook_of(loop.name),
        burn.hold_s,
        {"loop": loop.name},
    )
