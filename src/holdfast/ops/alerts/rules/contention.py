"""Alerts about waiting: how long callers wait for locks, how large the backlog is, and whether it accelerates.

A trend *accelerates* when it rises over one window, and by half as much again over the next: `FASTER`. A step does not
accelerate (nothing rises before it). A steady rise does not either (both windows add the same). The acceleration must
last one and a half windows, which the start of a steady rise does not. The rules compare means and counts over whole
windows, never quantiles: their steps between buckets look like jumps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from holdfast.ops.alerts.model import (
    COUNT,
    FAMILY,
    INSTANCE,
    NUMBER,
    PART,
    Alert,
    AlertSeverity,
    Recording,
    RuleGroup,
    RunbookName,
    lasting,
    number,
)
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.promql import PROCESS, any_of
from holdfast.ops.alerts.thresholds import ENVELOPE_SHARE, FASTER, FLOOR_SHARE, QUANTILE, VOLUME, WAVE, wave_fano
from holdfast.plane.locks.registry import APPROVAL, SCHEDULER_JOB, WORKFLOW_RUN
from holdfast.runtime.statistics import BUCKETS
from holdfast.types import NS

MEASURED: Final[Mapping[str, tuple[str, str]]] = {
    SCHEDULER_JOB.name: ("Job", "job_lock_wait"),
    WORKFLOW_RUN.name: ("Run", "run_lock_wait"),
}
"""The locks with a histogram of their own, under the name that operators know."""

RUNBOOKS: Final = {
    WORKFLOW_RUN.name: RunbookName.WORKFLOWS,
    APPROVAL.name: RunbookName.DEBT,
    SCHEDULER_JOB.name: RunbookName.DEBT,
}
STALE: Final = "holdfast_stale_jobs:leader"


def contention(plan: AlertPlan) -> RuleGroup:
    """The rule group."""
    return RuleGroup(
        "holdfast-contention",
        [*_waits(plan), *_debt(plan), *_overdue(plan), *_accelerating(plan), *_waves(plan)],
    )


def _waits(plan: AlertPlan) -> Iterator[Alert]:
    queries, windows = plan.queries, plan.windows
    for family, envelope in plan.envelopes.items():
        what, metric = MEASURED.get(family, ("", "lock_wait_seconds"))
        only = () if what else (f'family="{family}"',)
        by = "part" if what else "family"
        limit = ENVELOPE_SHARE * envelope
        p99 = queries.quantile(QUANTILE, metric, windows.window_s, *only, by=[by])
        volume = queries.increase(metric, windows.window_s, *only, by=[by], suffix="_count")
        who = f"locks of {what.lower()}s, in the {PART}," if what else f"{family} locks"
        yield Alert(
            f"Holdfast{what}LockWait",
            AlertSeverity.TICKET,
            f"{p99} > {number(limit)} and {volume} >= {VOLUME}",
            f"Callers wait long for {who.removesuffix(',')}",
            f"The 99th percentile of the wait for {who} is {NUMBER} s over "
            f"{lasting(windows.window_s)}; after {number(envelope)} s callers give up, and messages are redelivered.",
            f"half of the {number(envelope)} s for which callers of {family} wait; with at least {VOLUME} waits in the "
            "window, because a percentile of fewer waits says nothing.",
            RUNBOOKS.get(family, RunbookName.DEBT),
            windows.hold_s,
            {"family": family},
        )


def _debt(plan: AlertPlan) -> Iterator[Alert | Recording]:
    queries, windows = plan.queries, plan.windows
    families = f'family=~"{any_of(plan.envelopes)}"'
    name = f"family:holdfast_locks_waiting:avg{lasting(windows.window_s)}"
    waiting = f"avg_over_time({queries.series('locks_waiting', families)}[{lasting(windows.window_s)}])"
    yield Recording(name, f"sum by (family) ({waiting})")
    granted = queries.rate("lock_granted_total", windows.window_s, families, by=["family"])
    for family, envelope in plan.envelopes.items():
        mine = queries.recorded(name, f'family="{family}"')
        yield Alert(
            "HoldfastLockDebt",
            AlertSeverity.PAGE,
            f"{mine} / on (family) {granted} > {number(envelope)} and on (family) {mine} >= 1",
            f"More callers queue for {FAMILY} locks than will get one in time",
            f"A caller that asks for a lock of {FAMILY} now would wait {NUMBER} s, at the "
            f"current grant rate, and gives up after {number(envelope)} s: the queue feeds itself. Find the "
            "tenant, run or job that all the other callers wait for.",
            f"waiting callers / grants per second (Little's law) against the {number(envelope)} s for which they wait.",
            RUNBOOKS.get(family, RunbookName.DEBT),
            windows.hold_s,
            {"family": family},
        )


def _overdue(plan: AlertPlan) -> Iterator[Alert | Recording]:
    """Only the leader of the reconciler knows the current number: other processes report the one of their last lead."""
    if "reconciler" not in plan.parts:
        return
    queries, windows = plan.queries, plan.windows
    leads = queries.series("loop_leader", 'loop="reconciler"')
    on_leader = f"{queries.series('stale_jobs')} and on ({', '.join(PROCESS)}) {leads} == 1"
    yield Recording(STALE, f"sum(max by (state) ({on_leader}))")
    interval = plan.settings.reconciler.interval
    span_s, most = max(windows.hold_s, 5 * interval), plan.debt
    yield Alert(
        "HoldfastRecoveryDebt",
        AlertSeverity.TICKET,
        f"min_over_time({queries.recorded(STALE)}[{lasting(span_s)}]) > {most}",
        "Overdue jobs pile up faster than they are ended",
        f"At least {COUNT} jobs were past the time limit of their state at every check within {lasting(span_s)}.",
        f"more than a quarter of the {plan.settings.scheduler.concurrency} jobs that one scheduler handles "
        f"concurrently, at each of the last "
        f"{int(span_s // interval)} checks of the reconciler (every {number(interval)} s).",
        RunbookName.DEBT,
    )


class _Trend(NamedTuple):
    """A quantity whose acceleration is worth an alert."""

    part: str  # the component that reports it
    name: str
    recorded: str
    expression: str
    floor: float
    what: str
    because: str


def _accelerating(plan: AlertPlan) -> Iterator[Alert | Recording]:
    span_s = plan.windows.hold_s
    back = [f" offset {lasting(times * span_s)}" for times in (1, 2)]
    for each in _trends(plan, span_s):
        if each.part not in plan.parts:
            continue
        yield Recording(each.recorded, each.expression)
        now = plan.queries.recorded(each.recorded)
        added, before = f"({now} - {now}{back[0]})", f"({now}{back[0]} - {now}{back[1]})"
        yield Alert(
            each.name,
            AlertSeverity.TICKET,
            f"{now} > {number(each.floor)} and {added} > {FASTER:g} * {before} and {before} > 0",
            f"{each.what} rise faster and faster",
            f"{each.what}: {NUMBER} now; they rose over the last {lasting(span_s)}, and by "
            f"half as much again as over the {lasting(span_s)} before.",
            f"{number(FASTER)} times the rise of the window before, for one and a half windows, and above "
            f"{number(each.floor)}: {each.because}",
            RunbookName.DEBT,
            1.5 * span_s,
        )


def _trends(plan: AlertPlan, span_s: float) -> Iterator[_Trend]:
    queries, span = plan.queries, lasting(span_s)
    envelope, debt = plan.envelopes[SCHEDULER_JOB.name], float(plan.debt)
    waited = queries.rate("job_lock_wait", span_s, suffix="_sum")
    yield _Trend(
        "scheduler",
        "HoldfastJobLockWaitAccelerating",
        f"holdfast_job_lock_wait:mean{span}",
        f"{waited} / {queries.rate('job_lock_wait', span_s, suffix='_count')}",
        FLOOR_SHARE * envelope,
        "Waits for job locks (mean, in seconds)",
        f"a tenth of the acquire deadline of {number(envelope)} s.",
    )
    yield _Trend(
        "reconciler",
        "HoldfastStaleJobsAccelerating",
        f"{STALE}:avg{span}",
        f"avg_over_time({queries.recorded(STALE)}[{span}])",
        debt,
        "Overdue jobs",
        "a quarter of the jobs that one scheduler handles concurrently.",
    )
    yield _Trend(
        "replayer",
        "HoldfastOrphansAccelerating",
        f"holdfast_orphan_replayed:increase{span}",
        queries.increase("orphan_replayed_total", span_s),
        debt,
        f"Orphaned jobs that had to be replayed (in {span})",
        "a quarter of the jobs that one scheduler handles concurrently.",
    )


def _waves(plan: AlertPlan) -> Iterator[Alert]:
    queries, windows = plan.queries, plan.windows
    bucket, width_ns = min(BUCKETS.items(), key=lambda each: each[1])
    delay, jitter = plan.settings.scheduler.busy_delay, plan.settings.scheduler.busy_jitter
    fano = wave_fano(delay, width_ns / NS)
    if fano is None:
        return
    bunched = queries.series("lock_busy_fano", f'bucket="{bucket}"')
    rate, least = queries.rate("lock_busy_total", windows.window_s, by=PROCESS), WAVE / delay
    spread = f"with a jitter of {number(jitter)} s" if jitter else "without jitter"
    yield Alert(
        "HoldfastRetryWaves",
        AlertSeverity.TICKET,
        f"{bunched} > {number(fano)} and on ({', '.join(PROCESS)}) {rate} > {number(least)}",
        f"Retries of busy locks come in waves at {INSTANCE}",
        f"The Fano factor of busy retries in buckets of {bucket} is {NUMBER} (1: random). "
        f"Messages whose lock was busy are redelivered after {number(delay)} s, {spread}; busy_jitter spreads them.",
        f"{WAVE} retries that arrive together every {number(delay)} s: {number(fano)} in buckets of {bucket}, "
        f"and {number(least)} per second.",
        RunbookName.WAVES,
        windows.hold_s,
    )
    groups = queries.increase("lock_busy_groups_total", windows.window_s, by=("group",))
    yield Alert(
        "HoldfastRetryWavesOfFleet",
        AlertSeverity.TICKET,
        f"stdvar({groups}) / avg({groups}) > {number(fano)} and {queries.rate('lock_busy_total', windows.window_s)} > "
        f"{number(least)}",
        "Retries of busy locks come in waves over many processes",
        f"The Fano factor of the busy retries of all processes together is {NUMBER} (1: random). Each process may show "
        f"an even rhythm: they retry in phase. Messages whose lock was busy are redelivered after {number(delay)} s, "
        f"{spread}; busy_jitter spreads them.",
        f"{WAVE} processes that retry together every {number(delay)} s: {number(fano)} in intervals of {bucket}, "
        f"and {number(least)} per second.",
        RunbookName.WAVES,
        windows.hold_s,
    )
