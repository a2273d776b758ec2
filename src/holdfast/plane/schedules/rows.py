"""Schedules to rows and back."""

from __future__ import annotations

import json
from typing import Any

from holdfast.plane.db.ports import Row
from holdfast.plane.schedules.model import Schedule, ScheduleState, spec_of
from holdfast.plane.schedules.rules import Decided

_SAME = (
    *("next_ns", "version", "paused_by", "paused_reason", "paused_ns", "app", "author", "last_due_ns", "last_fired_ns"),
    *("last_job", "problem", "fired", "skipped", "missed", "created_ns", "updated_ns", "updated_by"),
)


def schedule_of(row: Row) -> Schedule:
    """From a row."""
    return Schedule(
        spec=spec_of(row["tenant"], row["name"], json.loads(row["spec"])),
        decided=Decided(row["done_ns"], row["queued_ns"]),
        paused=bool(row["paused"]),
        declared=bool(row["declared"]),
        **{name: row[name] for name in _SAME},
    )


def values_of(schedule: Schedule) -> dict[str, Any]:
    """The values of its row. One that does not fire has no time for the loop."""
    active = schedule.state is ScheduleState.ACTIVE
    submit_ns: int | None = None
    if active and schedule.decided.queued_ns is not None:
        submit_ns = 0
    elif active and schedule.next_ns is not None:
        submit_ns = schedule.spec.policy.submits_ns(schedule.next_ns)
    return {
        "tenant": schedule.tenant,
        "name": schedule.spec.name,
        "spec": schedule.spec.text(),
        "done_ns": schedule.decided.done_ns,
        "queued_ns": schedule.decided.queued_ns,
        "submit_ns": submit_ns,
        "paused": int(schedule.paused),
        "declared": int(schedule.declared),
        **{name: getattr(schedule, name) for name in _SAME},
    }
