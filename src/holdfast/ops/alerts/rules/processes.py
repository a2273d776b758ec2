"""Alerts about processes: a part that nobody runs, one that has failed, and a plane of which nothing is heard.

A rule over numbers is silent when there are no numbers. These are the ones that speak then.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.ops.alerts.model import COUNT, INSTANCE, PART, Alert, Group, Runbook, Severity, lasting, number
from holdfast.ops.alerts.plan import Plan
from holdfast.ops.alerts.promql import PROCESS, REMEMBERED_S
from holdfast.ops.alerts.rules.loops import runbook_of
from holdfast.plane.process.plane import ENGINE, LOOPS


def processes(plan: Plan) -> Group:
    """The group."""
    return Group("holdfast-processes", [_silent(plan), *_missing(plan), _failed(plan), _down(plan), _audit(plan)])


def _silent(plan: Plan) -> Alert:
    return Alert(
        "HoldfastSilent",
        Severity.PAGE,
        f"absent({plan.queries.series('draining')})",
        "Nothing is heard of the plane",
        "Prometheus reads no process of Holdfast: all are gone, or it looks in the wrong place. Every other alert is "
        "blind until this is mended.",
        "any process at all exposes it; two scrapes and what heals by itself.",
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
            f"No process runs the part {PART}",
            f"Processes of the plane are heard of, and in none of them {PART} runs. `holdfast up --only {PART}` starts "
            "one.",
            f"a restart takes {number(grace)} s of grace (`grace`), and what heals by itself comes on top.",
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
        f"{INSTANCE} is not ending, and its {PART} does not do its work. Its liveness probe fails "
        "when a part has failed; a restart cures it.",
        "what heals by itself has healed by then.",
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
        f"{INSTANCE} cannot be read",
        "A process that was read within the hour does not answer any more. The others have its work by now; the fleet "
        "is one smaller.",
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
        "too slow. What was lost cannot be told later.",
        "one is enough: a ledger that leaves things out proves nothing.",
        Runbook.NOT_OWNED,
    )
