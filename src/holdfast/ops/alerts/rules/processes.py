"""Alerts about processes: a component that no process runs, a failed component, and a plane without any metrics.

Rules over numbers are silent when there are no numbers. These rules fire then.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.ops.alerts.model import (
    COUNT,
    INSTANCE,
    PART,
    Alert,
    AlertSeverity,
    RuleGroup,
    RunbookName,
    lasting,
    number,
)
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.promql import PROCESS, REMEMBERED_S
from holdfast.ops.alerts.rules.loops import runbook_of
from holdfast.plane.process.plane import ENGINE, LOOPS


def processes(plan: AlertPlan) -> RuleGroup:
    """The rule group."""
    return RuleGroup("holdfast-processes", [_silent(plan), *_missing(plan), _failed(plan), _down(plan), _audit(plan)])


def _silent(plan: AlertPlan) -> Alert:
    return Alert(
        "HoldfastSilent",
        AlertSeverity.PAGE,
        f"absent({plan.queries.series('draining')})",
        "The plane exposes no metrics",
        "Prometheus scrapes no process of Holdfast: all of them are down, or the scrape configuration is wrong. All "
        "other alerts are blind until this is fixed.",
        "any process exposes this metric; two scrapes and the time of short outages that recover without help.",
        RunbookName.WHY,
        plan.windows.settle_s,
    )


def _missing(plan: AlertPlan) -> Iterator[Alert]:
    queries, windows, grace = plan.queries, plan.windows, plan.settings.grace
    for part in sorted(plan.parts):
        only = f'part="{part}"'
        running = f"{queries.series('part_running', only)} == 1"
        yield Alert(
            "HoldfastPartMissing",
            AlertSeverity.TICKET if part == "cleanup" else AlertSeverity.PAGE,
            f"absent({running}) unless on () absent({queries.series('draining')})",
            f"No process runs the component {PART}",
            f"Processes of the plane answer, but none of them runs {PART}. `holdfast up --only {PART}` starts one.",
            f"a restart takes {number(grace)} s of grace (`grace`), plus the time of short outages that recover "
            "without help.",
            _runbook(part),
            grace + windows.settle_s,
            {"part": part},
        )


def _runbook(part: str) -> RunbookName:
    if part in LOOPS:
        return runbook_of(part)
    return RunbookName.WORKFLOWS if part == ENGINE else RunbookName.WHY


def _failed(plan: AlertPlan) -> Alert:
    queries, same = plan.queries, f"on ({', '.join(PROCESS)})"
    return Alert(
        "HoldfastPartFailed",
        AlertSeverity.TICKET,
        f"{queries.series('part_running')} == 0 and {same} {queries.series('draining')} == 0",
        f"The {PART} of {INSTANCE} does not run",
        f"{INSTANCE} is not shutting down, and its {PART} does not work. Its liveness probe fails "
        "when a component has failed; a restart helps.",
        "short outages that recover without help are over by then.",
        RunbookName.WHY,
        plan.windows.settle_s,
    )


def _down(plan: AlertPlan) -> Alert:
    queries, same = plan.queries, ", ".join(PROCESS)
    known = f"group by ({same}) (last_over_time({queries.series('draining')}[{lasting(REMEMBERED_S)}]))"
    return Alert(
        "HoldfastProcessDown",
        AlertSeverity.TICKET,
        f"up{queries.braces()} == 0 and on ({same}) {known}",
        f"{INSTANCE} cannot be scraped",
        "A process that was scraped within the last hour no longer answers. Other processes have taken over its work; "
        "the fleet is one process smaller.",
        f"a restart takes {number(plan.settings.grace)} s of grace, and a window of scrapes has failed.",
        RunbookName.WHY,
        plan.settings.grace + plan.windows.window_s,
    )


def _audit(plan: AlertPlan) -> Alert:
    hard_s = plan.windows.hard_s
    return Alert(
        "HoldfastAuditIncomplete",
        AlertSeverity.TICKET,
        plan.queries.happened("audit_dropped_total", hard_s, by=PROCESS),
        f"The audit ledger of {INSTANCE} has gaps",
        f"{COUNT} records could not be written within {lasting(hard_s)}: the disk is full or "
        "too slow. The lost records cannot be recovered.",
        "one is enough: an incomplete ledger proves nothing.",
        RunbookName.NOT_OWNED,
    )
