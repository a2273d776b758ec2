"""Alerts about takeovers: jobs of crashed processes are repeatedly taken over later than promised.

The rules count measured takeovers (`holdfast_job_takeover_seconds`). There are few, and those of one process come
together. So the windows are long, and the condition must hold for longer than the shorter one: a single crash fires no
alert, however many jobs it leaves behind and however late they are taken over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.ops.alerts.model import PART, SHARE, Alert, AlertSeverity, RuleGroup, RunbookName, lasting, number
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.thresholds import BUDGET, Burn, bound_above
from holdfast.types import NS

METRIC: Final = "job_takeover_seconds"


def takeovers(plan: AlertPlan) -> RuleGroup:
    """The rule group."""
    return RuleGroup("holdfast-takeovers", list(_rules(plan)))


def burn_of(plan: AlertPlan) -> Burn:
    """How many may be late, and over which windows."""
    return Burn(plan.windows.fast.times, plan.windows.slow.long_s, plan.windows.slow.short_s)


def _rules(plan: AlertPlan) -> Iterator[Alert]:
    burn = burn_of(plan)
    limit = number(burn.limit())
    for each in plan.takeovers:
        bound_ns = bound_above(each.bound_s)
        if bound_ns is None:
            continue  # the histogram does not distinguish times above an hour
        only = f'part="{each.part}"'
        over = [
            f"1 - ({plan.queries.share_within(bound_ns, METRIC, window_s, only, by=['part'])}) > {limit}"
            for window_s in (burn.long_s, burn.short_s)
        ]
        yield Alert(
            "HoldfastJobTakeoverBurn",
            AlertSeverity.TICKET,
            " and ".join(over),
            f"Jobs of a crashed {PART} are taken over too late",
            f"{SHARE} of the jobs whose {PART} crashed were taken over later than promised, over "
            f"{lasting(burn.long_s)} and still. Too few processes are left, they are busy, or the stores are slow.",
            f"{number(each.bound_s)} s ({each.because}), counted at the next bound of the histogram, "
            f"{number(bound_ns / NS)} s; {number(100 * burn.limit())} % is {number(burn.times)} times the "
            f"{number(100 * BUDGET)} % that may be late, over {lasting(burn.long_s)} and over {lasting(burn.short_s)}.",
            RunbookName.DUPLICATES,
            burn.hold_s,
            {"part": each.part},
        )
