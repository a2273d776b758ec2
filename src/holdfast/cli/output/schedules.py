"""Schedules: dictionaries for JSON, tables and rows for terminals.

The dictionaries have the same names as the answers of the HTTP API: durations in seconds, moments in RFC 3339.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from rich.table import Table

from holdfast.cli.output.jobs import at
from holdfast.cli.output.screen import cell, moment, plain_table, seconds
from holdfast.plane.schedules.model import Schedule, ScheduleState
from holdfast.types import NS

_STYLES: Final = {
    ScheduleState.ACTIVE: "green",
    ScheduleState.PAUSED: "yellow",
    ScheduleState.UNDECLARED: "dim",
}


def schedule_dict(schedule: Schedule, upcoming: Sequence[int] = ()) -> dict[str, Any]:
    """One schedule as JSON types."""
    spec = schedule.spec
    options = spec.document()
    for name in ("every", "offset", "jitter", "timeout", "deadline"):
        length_ns = options.pop(f"{name}_ns")
        options[name] = None if length_ns is None else length_ns / NS
    return {
        "tenant": spec.tenant,
        "name": spec.name,
        "state": str(schedule.state),
        "expression": spec.expression,
        **options,
        "app": schedule.app,
        "author": schedule.author,
        "paused": schedule.paused,
        "paused_by": schedule.paused_by,
        "paused_reason": schedule.paused_reason,
        "paused_at": _text(schedule.paused_ns),
        "next_at": _text(schedule.next_ns) if schedule.state is ScheduleState.ACTIVE else None,
        "upcoming": [at(each).isoformat() for each in upcoming],
        "queued_at": _text(schedule.decided.queued_ns),
        "last_due_at": _text(schedule.last_due_ns),
        "last_fired_at": _text(schedule.last_fired_ns),
        "last_job": schedule.last_job,
        "problem": schedule.problem,
        "fired": schedule.fired,
        "skipped": schedule.skipped,
        "missed": schedule.missed,
        "created_at": _text(schedule.created_ns),
        "updated_at": _text(schedule.updated_ns),
        "updated_by": schedule.updated_by,
        "version": schedule.version,
    }


def schedule_table(schedules: Sequence[Schedule], now_ns: int) -> Table:
    """Schedules for a terminal."""
    table = plain_table(
        *(("NAME", "left"), ("TENANT", "left"), ("DUE", "left"), ("STATE", "left"), ("NEXT IN", "right")),
        *(("LAST JOB", "left"), ("TOPIC", "left")),
    )
    for each in schedules:
        active = each.state is ScheduleState.ACTIVE and each.next_ns is not None
        table.add_row(
            cell(each.spec.name, "bold"),
            cell(each.tenant),
            cell(each.spec.expression),
            cell(str(each.state), _STYLES[each.state]),
            cell(seconds(max(0, (each.next_ns or 0) - now_ns) / NS) if active else "-"),
            cell(each.last_job or "-"),
            cell(each.spec.topic),
        )
    return table


def schedule_rows(schedule: Schedule, upcoming: Sequence[int]) -> list[tuple[str, str]]:
    """One schedule for a terminal: labels and values."""
    spec, found = schedule.spec, schedule
    declared = f"declared by app {found.app}" if found.app is not None else f"created by {found.author}"
    rows = [
        ("name", f"{spec.name} of {spec.tenant}, {declared}"),
        ("due", spec.expression),
        ("submits", spec.topic),
        ("state", str(found.state)),
        ("policy", f"overlap {spec.overlap}, catch-up {spec.catch_up}"),
    ]
    if found.paused:
        reason = f": {found.paused_reason}" if found.paused_reason else ""
        rows.append(("paused", f"by {found.paused_by} {_at(found.paused_ns)}{reason}"))
    rows += [("next" if not number else "", _at(each)) for number, each in enumerate(upcoming)]
    if found.decided.queued_ns is not None:
        rows.append(("queued", f"{_at(found.decided.queued_ns)}, until the last job has finished"))
    if found.last_job is not None:
        rows.append(("last job", f"{found.last_job}, submitted {_at(found.last_fired_ns)}"))
    if found.problem is not None:
        rows.append(("problem", found.problem))
    rows.append(("counts", f"{found.fired} fired, {found.skipped} skipped, {found.missed} missed"))
    if spec.payload is not None:
        rows.append(("payload", json.dumps(spec.payload, ensure_ascii=False)))
    return rows


def _text(ns: int | None) -> str | None:
    return None if ns is None else at(ns).isoformat()


def _at(ns: int | None) -> str:
    return "-" if ns is None else moment(at(ns))
