"""Alerts about processes: a component that no process runs, a failed component, and a plane without any metrics.

Rules over numbers are silent when there are no numbers. These rules fire then.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.ops.alerts.model import COUNT, INSTANCE, PART, Alert, Group, Runbook, Severity, lasting, number
from holdfast.ops.alerts.plan import Plan
from holdfast.ops.alerts.promql import PROCESS, REMEMBERED_S
from holdfast.ops.alerts.rules.loops import runbook_of
from holdfast.plane.process.plane import ENGINE, LOOPS


def processes(plan: Plan) -> Group:
    """The rule group."""
    return Group("holdfast-processes", [_silent(plan), *_missing(plan), _failed(plan), _down(plan), _audit(plan)])


def _silent(plan: Plan) -> Alert:
    return Alert(
        "HoldfastSilent",
        Severity.PAGE,
        f"absent({plan.queries.series('draining')})",
        "The plane exposes no metrics",
        "Prometheus scrapes no process of Holdfast: all of them are down, or the scrape configuration is wrong. All "
        "other alerts are blind until this is fixed.",
        "any process exposes this metric; two scrapes and the time of short outages that recover without help.",
        Runbook.DEBT,
        plan.pace.settle_s,
    )


def _missing(plan: Plan) -> Iterator[Alert]:
    queries, pace, grace = plan.queries, plan.pace, plan.settings.grace
    for part in sorted(plan.parts):
        only = f'part="{part}"'
        running = f"{queries.series('part_running', only)} == 1"
        yield Alert(
            "HoldfastPartMissing",
            Severity.TICKET if part == "cleanup" else Severity.PAGE,
            f"absent({running}) unless on () absent({queries.series('draining')})",
            f"No process runs the component {PART}",
            f"Processes of the plane answer, but none of them runs {PART}. `holdfast up --only {PART}` starts one.",
            f"a restart takes {number(grace)} s of grace (`grace`), plus the time of short outages that recover "
            "without help.",
            _runbook(part),
            grace + pace.settle_s,
            {"part": part},
        )


def _runbook(part: str) -> Runbook:
    if part in LOOPS:
        return runbook_of(part)
    return Runbook.WORKFLOWS if part == ENGINE else Runbook.DEBT


def _failed(plan: Plan) -> Alert:
    queries, same = plan.queries, f"on ({', '.join(PROCESS)})"
    return Alert(
        "HoldfastPartFailed",
        Severity.TICKET,
        f"{queries.series('part_running')} == 0 and {same} {queries.series('draining')} == 0",
        f"The {PART} of {INSTANCE} does not run",
        f"{INSTANCE} is not shutting down, and its {PART} does not work. Its liveness probe fails "
        "when a component has failed; a restart helps.",
        "short outages that recover without help are over by then.",
        Runbook.DEBT,
        plan.pace.settle_s,
    )


def _down(plan: Plan) -> Alert:
    queries, same = plan.queries, ", ".join(PROCESS)
    known = f"group by ({same}) (last_over_time({queries.series('draining')}[{lasting(REMEMBERED_S)}]))"
    return Alert(
        "HoldfastProcessDown",
        Severity.TICKET,
        f"up{queries.braces()} == 0 and on ({same}) {known}",
        f"{INSTANCE} cannot be scraped",
        "A process that was scraped within the last hour no longer answers. Other processes have taken over its work; "
        "the fleet is one process smaller.",
        f"a restart takes {number(plan.settings.grace)} s of grace, and a window of scrapes has failed.",
        Runbook.DEBT,
        plan.settings.grace + plan.pace.window_s,
    )


def _audit(plan: Plan) -> Alert:
    hard_s = plan.pace.hard_s
    return Alert(
        "HoldfastAuditIncomplete",
        Severity.TICKET,
        plan.queries.happened("audit_dropped_total", hard_s, by=PROCESS),
        f"The audit ledger of {INSTANCE} has gaps",
        f"{COUNT} records could not be written within {lasting(hard_s)}: the disk is full or "
        "too slow. The lost records cannot be recovered.",
        "one is enough: an incomplete ledger proves nothing.",
        Runbook.NOT_OWNED,
    )
