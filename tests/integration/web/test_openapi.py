"""The HTTP API keeps its operations, schemas and fields: programs were written for them.

`openapi_5c10011.json` is the OpenAPI document of that commit without descriptions, which are for people and may change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.web.app import description

BEFORE = Path(__file__).with_name("openapi_5c10011.json")

SCHEDULE_SCHEMAS = (
    *("CatchUp", "Overlap", "PauseSchedule", "PutSchedule", "RunSchedule", "SchedulePageShown", "ScheduleShown"),
    "ScheduleState",
)

ADDED = frozenset(
    {
        *("/paths//api/v1/findings", "/components/schemas/FindingsShown", "/components/schemas/FindingShown"),
        *("/components/schemas/InspectionShown", "/components/schemas/NextStepShown"),
        *("/components/schemas/EventShown/properties/traceback", "/components/schemas/UpdateList"),
        *("/components/schemas/UpdateShown", "/paths//api/v1/jobs/{job_id}/updates"),
        "/paths//api/v1/jobs/{job_id}/events/get/responses/200/content/text/event-stream",
        "/paths//api/v1/jobs/{job_id}/events/get/responses/204",
        *("/components/schemas/ChildShown", "/components/schemas/JobShown/properties/children"),
        "/components/schemas/JobShown/properties/parent",
        "/components/schemas/JitterShown",
        "/components/schemas/JitterSwitched",
        "/components/schemas/JobLine/properties/fraction",
        "/components/schemas/JobLine/properties/note",
        "/components/schemas/JobShown/properties/progress",
        "/components/schemas/JobShown/properties/waiting",
        "/components/schemas/JobShown/required/waiting",
        "/components/schemas/PolicyShown/properties/busy_jitter",
        "/components/schemas/PolicyShown/required/busy_jitter",
        "/components/schemas/ProgressShown",
        *(f"/components/schemas/{name}" for name in SCHEDULE_SCHEMAS),
        *(
            f"/paths//api/v1/schedules{rest}"
            for rest in ("", "/{name}", "/{name}/pause", "/{name}/resume", "/{name}/run")
        ),
        "/components/schemas/StatusShown/properties/retried",
        "/components/schemas/SwitchJitter",
        "/components/schemas/WaitCode",
        "/components/schemas/WaitingShown",
        "/components/schemas/WatchItems",
        "/components/schemas/WatchedItem",
        "/components/schemas/WatchedList",
        "/components/schemas/WatchedShown",
        "/paths//api/v1/policy/busy_jitter",
        "/paths//api/v1/watch/jobs",
        "/paths//api/v1/watch/runs",
        "/paths//healthz/get/responses/422",
        "/paths//readyz/get/responses/422",
    }
)
"""What came later. An entry is added with a feature, and none is removed."""


def differences(before: Any, now: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """The kind and the place of each difference: `added`, `removed` or `changed`. Descriptions are left out."""
    if isinstance(before, dict) and isinstance(now, dict):
        own = {name: value for name, value in now.items() if not (name == "description" and isinstance(value, str))}
        yield from (("removed", f"{where}/{name}") for name in before.keys() - own.keys())
        yield from (("added", f"{where}/{name}") for name in own.keys() - before.keys())
        for name in before.keys() & own.keys():
            yield from differences(before[name], own[name], f"{where}/{name}")
    elif isinstance(before, list) and where.endswith("/required"):
        yield from (("removed", f"{where}/{name}") for name in set(before) - set(now))
        yield from (("added", f"{where}/{name}") for name in set(now) - set(before))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from differences(old, new, f"{where}/{number}")
    elif before != now:
        yield "changed", where


def test_the_openapi_document_changes_by_additions_and_descriptions_alone() -> None:
    found = set(differences(json.loads(BEFORE.read_text("utf-8")), description()))
    assert found == {("added", where) for where in ADDED}


def test_a_renamed_field_a_removed_one_and_another_type_are_found() -> None:
    before = {"properties": {"id": {"type": "string", "description": "old"}, "at": {"type": "string"}}}
    now = {"properties": {"name": {"type": "string"}, "at": {"type": "number", "description": "new"}}}
    assert set(differences(before, now)) == {
        ("removed", "/properties/id"),
        ("added", "/properties/name"),
        ("changed", "/properties/at/type"),
    }
    assert set(differences({"required": ["a"]}, {"required": ["b"]})) == {
        ("removed", "/required/a"),
        ("added", "/required/b"),
    }
