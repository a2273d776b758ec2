"""Runs and their timelines as rows, and back. No decisions.

The outline of a run is stored next to its document, so a list does not read documents, which may have megabytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.plane.db.ports import Row
from holdfast.plane.model.records import encoded
from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.run import (
    Advance,
    Run,
    RunRequest,
    RunStatus,
    StepStatus,
    StoredRun,
    TimelineEntry,
    root_of,
)
from holdfast.plane.workflows.core.run_codec import RunText, from_document


@dataclass(frozen=True, slots=True)
class RunOutline:
    """A run in a list: the status of the run and its steps, without inputs and outputs."""

    id: str
    tenant: str
    workflow: str
    workflow_version: int
    status: RunStatus
    risk: str
    error: str | None
    steps: Mapping[str, StepStatus]  # all steps, in order
    created_ns: int
    updated_ns: int
    ended_ns: int | None
    deadline_ns: int | None
    wake_ns: int | None
    version: int
    fence: int | None
    parent: str | None  # the run that started it
    about: RunRequest


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One entry of a run's timeline."""

    run: str
    version: int
    line: int
    at_ns: int
    step: str | None
    kind: str
    detail: str
    attempt: int
    fence: int | None
    actor: str


def run_of(row: Row, workflow: Workflow) -> StoredRun:
    """A run from its row and its definition."""
    return stored_run(row, from_document(json.loads(row["document"]), workflow))


def stored_run(row: Row, run: Run) -> StoredRun:
    """A stored run from a row, with or without its document, and the run from that document."""
    return StoredRun(
        run,
        row["scope"],
        row["version"],
        row["holdfast_fence"],
        row["updated_ns"],
        row["wake_ns"],
        _about(row),
    )


def outline_of_run(stored: StoredRun) -> RunOutline:
    """The outline of a complete run."""
    run, about = stored.run, stored.about
    return RunOutline(
        id=run.id,
        tenant=run.tenant,
        workflow=run.workflow.name,
        workflow_version=run.workflow.version,
        status=run.status,
        risk=stored.risk,
        error=run.error,
        steps={name: state.status for name, state in run.steps.items()},
        created_ns=run.created_ns,
        updated_ns=stored.updated_ns,
        ended_ns=run.ended_ns,
        deadline_ns=run.deadline_ns,
        wake_ns=stored.wake_ns,
        version=stored.version,
        fence=stored.fence,
        parent=None if run.parent is None else run.parent.run,
        about=about,
    )


def run_outline_of(row: Row, gist: Row | None = None) -> RunOutline:
    """The outline of a run from a row without its document. `gist`: from the document, for a row without outline."""
    if gist is None:
        error, ended_ns, deadline_ns, parent, steps = json.loads(row["outline"])
    else:
        (error, ended_ns, deadline_ns, parent), steps = json.loads(gist["told"]), json.loads(gist["steps"])
    return RunOutline(
        id=row["id"],
        tenant=row["tenant"],
        workflow=row["workflow"],
        workflow_version=row["workflow_version"],
        status=RunStatus(row["status"]),
        risk=row["risk"],
        error=error,
        steps={name: StepStatus(status) for name, status in steps.items()},
        created_ns=row["created_ns"],
        updated_ns=row["updated_ns"],
        ended_ns=ended_ns,
        deadline_ns=deadline_ns,
        wake_ns=row["wake_ns"],
        version=row["version"],
        fence=row["holdfast_fence"],
        parent=parent,
        about=_about(row),
    )


def new_values(run: Run, scope: str, about: RunRequest) -> dict[str, Any]:
    """The columns of a new run."""
    return {
        "id": run.id,
        "tenant": run.tenant,
        "scope": scope,
        "workflow": run.workflow.name,
        "workflow_version": run.workflow.version,
        "status": str(run.status),
        "risk": run.workflow.risk,
        "document": RunText().of(run),
        "outline": outline_text(run),
        "now_ns": run.created_ns,
        "wake_ns": run.created_ns,  # until its first advance
        "idempotency_key": about.idempotency_key,
        "submitted_by": about.submitted_by,
        "trace": about.trace,
        "labels": encoded("labels", dict(about.labels)),
        "rerun_of": about.rerun_of,
        "root": None if run.parent is None else root_of(run.id),
    }


def changed_values(
    before: StoredRun, advance: Advance, document: str, wake_ns: int | None, fence: int | None, now_ns: int
) -> dict[str, Any]:
    """The columns after an advance."""
    return {
        "id": before.run.id,
        "version": before.version,
        "fence": fence,
        "status": str(advance.run.status),
        "document": document,
        "outline": outline_text(advance.run),
        "wake_ns": wake_ns,
        "now_ns": now_ns,
    }


def line_values(
    run: str, version: int, line: int, note: TimelineEntry, fence: int | None, at_ns: int, actor: str
) -> Row:
    """The columns of one entry of the timeline."""
    return {
        "run": run,
        "version": version,
        "line": line,
        "at_ns": at_ns,
        "step": note.step,
        "kind": note.kind,
        "detail": note.detail,
        "attempt": note.attempt,
        "fence": fence,
        "actor": actor,
    }


def event_of(row: Row) -> RunEvent:
    """An entry of the timeline from its row."""
    names = ("run", "version", "line", "at_ns", "step", "kind", "detail", "attempt", "fence", "actor")
    return RunEvent(*(row[name] for name in names))


def outline_text(run: Run) -> str:
    """The part of an outline that has no columns, as text: about a hundred bytes, and some for each step."""
    parent = None if run.parent is None else run.parent.run
    steps = {name: str(state.status) for name, state in run.steps.items()}
    return json.dumps([run.error, run.ended_ns, run.deadline_ns, parent, steps], separators=(",", ":"))


def _about(row: Row) -> RunRequest:
    labels = json.loads(row["labels"])
    return RunRequest(row["idempotency_key"], row["submitted_by"], row["trace"], labels, row["rerun_of"])
