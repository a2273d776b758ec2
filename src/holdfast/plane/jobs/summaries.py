"""Jobs, dead letters, workflows and approvals in outline, as lists have them: all but what their users put into them.

Promises: an outline is small whatever its job was given and has made, so that a page of them is: labels, the largest
thing in it, have 20,000 bytes at most, and most have none. What is left out is not even read from the database. Of the
description of a workflow, and of the message of an approval, an outline has the beginning, by which people know it.
What a list has of the body of a workflow is kept beside it, so that nobody looks into that either. Outlines of runs are
in `runrows`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.plane.approvals.rows import status_of
from holdfast.plane.approvals.rules import Approval, ApprovalStatus
from holdfast.plane.db.ports import Row
from holdfast.plane.jobs.rows import value_of
from holdfast.plane.model.job_states import JobState

TEXT_CHARS_MAX: Final = 200
"""What an outline has of a longer text. Statements read one character more of a description, to know that it goes on,
and `_WRITTEN_MAX` of a message, which is JSON: as many characters as fit there however they are written."""

_WRITTEN_MAX: Final = 2_500
_TEXT_BEGUN: Final = re.compile(r'"(?:[^"\\]|\\u[0-9a-f]{4}|\\[^u])*')  # without an escape that was cut in two


@dataclass(frozen=True, slots=True)
class JobOutline:
    """A job without its payload and result. See `model.Job`."""

    id: str
    tenant: str
    topic: str
    pool: str
    state: JobState
    priority: int
    attempt: int
    max_attempts: int
    created_ns: int
    updated_ns: int
    version: int
    fence: int | None
    run_fence: int | None
    worker: str | None
    reason: str | None
    code: str | None
    idempotency_key: str | None
    timeout_ns: int | None
    deadline_ns: int | None
    not_before_ns: int
    submitted_by: str
    trace: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LetterOutline:
    """A dead letter without its body. See `model.DeadLetter`."""

    id: str
    job: str
    tenant: str
    topic: str
    reason: str
    code: str
    last_state: JobState | None
    attempts: int
    at_ns: int
    retried_as: str | None


@dataclass(frozen=True, slots=True)
class WorkflowOutline:
    """A definition without its inputs, steps and templates. See `definitions.Definition`."""

    scope: str
    name: str
    version: int
    risk: str
    steps: int  # how many it has
    description: str  # its beginning
    digest: str
    created_ns: int
    created_by: str


@dataclass(frozen=True, slots=True)
class ApprovalOutline:
    """An approval with the beginning of its message. See `plane.approvals.rules.Approval`."""

    job: str
    tenant: str
    gate: bool
    status: ApprovalStatus
    risk: str
    rule: str
    about: str
    requested_by: str
    revision: int
    created_ns: int
    run: str | None
    step: str | None
    expires_ns: int | None
    decided_by: str | None
    decided_ns: int | None
    note: str | None
    fence: int | None


def outline_of(row: Row) -> JobOutline:
    """From a row to the outline of a job."""
    return JobOutline(
        id=row["id"],
        tenant=row["tenant"],
        topic=row["topic"],
        pool=row["pool"],
        state=JobState(row["state"]),
        priority=row["priority"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        created_ns=row["created_ns"],
        updated_ns=row["updated_ns"],
        version=row["version"],
        fence=row["holdfast_fence"],
        run_fence=row["run_fence"],
        worker=row["worker"],
        reason=row["reason"],
        code=row["code"],
        idempotency_key=row["idempotency_key"],
        timeout_ns=row["timeout_ns"],
        deadline_ns=row["deadline_ns"],
        not_before_ns=row["not_before_ns"],
        submitted_by=row["submitted_by"],
        trace=row["trace"],
        labels=value_of(row["labels"]),
    )


def letter_outline_of(row: Row) -> LetterOutline:
    """From a row to the outline of a dead letter."""
    return LetterOutline(
        id=row["id"],
        job=row["job"],
        tenant=row["tenant"],
        topic=row["topic"],
        reason=row["reason"],
        code=row["code"],
        last_state=None if row["last_state"] is None else JobState(row["last_state"]),
        attempts=row["attempts"],
        at_ns=row["at_ns"],
        retried_as=row["retried_as"],
    )


def workflow_outline_of(row: Row) -> WorkflowOutline:
    """From a row to the outline of a definition."""
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
    """What a list has of the body of a definition, as it is kept beside it."""
    return json.dumps([risk, steps, description[: TEXT_CHARS_MAX + 1]])


def approval_outline_of(row: Row) -> ApprovalOutline:
    """From a row, with the state of its job, to the outline of an approval."""
    return ApprovalOutline(
        job=row["job"],
        tenant=row["tenant"],
        gate=bool(row["gate"]),
        status=status_of(row, row["job_state"]),
        risk=row["risk"],
        rule=row["rule"],
        about=_about(row["message"]),
        requested_by=row["requested_by"],
        revision=row["revision"],
        created_ns=row["created_ns"],
        run=row["run"],
        step=row["step"],
        expires_ns=row["expires_ns"],
        decided_by=row["decided_by"],
        decided_ns=row["decided_ns"],
        note=row["note"],
        fence=row["holdfast_fence"],
    )


def outline_of_approval(approval: Approval) -> ApprovalOutline:
    """An approval that was read whole, as lists have it."""
    same = {name: getattr(approval, name) for name in ApprovalOutline.__slots__ if name != "about"}
    return ApprovalOutline(**same, about=_text_of(approval.message))


def beginning(text: str) -> str:
    """A text, or as much of it as an outline has."""
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 1]}…"


def _text_of(message: Any) -> str:
    """The beginning of what whoever decides is told: of a text itself, or of anything else as JSON."""
    if message is None:
        return ""
    return beginning(message if isinstance(message, str) else json.dumps(message, ensure_ascii=False))


def _about(written: str) -> str:
    """The same of a message as it is written, which may be cut."""
    if len(written) < _WRITTEN_MAX:
        return _text_of(json.loads(written))
    begun = _TEXT_BEGUN.match(written)
    return beginning(written if begun is None else json.loads(f'{begun[0]}"'))
