"""Outlines of workflow definitions, for lists."""

from __future__ import annotations

import json
from dataclasses import dataclass

from holdfast.plane.db.ports import Row
from holdfast.plane.model.records import TEXT_CHARS_MAX, beginning


@dataclass(frozen=True, slots=True)
class WorkflowOutline:
    """A definition without its inputs, steps and templates. See `definitions.Definition`."""

    scope: str
    name: str
    version: int
    risk: str
    steps: int  # their number
    description: str  # its beginning
    digest: str
    created_ns: int
    created_by: str


def workflow_outline_of(row: Row) -> WorkflowOutline:
    """The outline of a definition from its row."""
    risk, steps, description = json.loads(row["outline"])
    return WorkflowOutline(
        scope=row["scope"],
        name=row["name"],
        version=row["version"],
        risk=risk,
        steps=steps,
        description=beginning(description),
        digest=row["digest"],
        created_ns=row["created_ns"],
        created_by=row["created_by"],
    )


def workflow_outline_text(risk: str, steps: int, description: str) -> str:
    """The part of an outline that comes from the definition, as it is stored next to it."""
    return json.dumps([risk, steps, description[: TEXT_CHARS_MAX + 1]])
