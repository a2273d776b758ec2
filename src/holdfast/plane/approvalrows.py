"""Approvals as rows: what is written when something begins to wait, and what is read of it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from holdfast.core.approving import Approval, ApprovalStatus, digest
from holdfast.core.jobs import JobState
from holdfast.plane import subjects
from holdfast.plane.model import Job
from holdfast.plane.ports import Row


class StepOf(NamedTuple):
    """Which step of which run something is."""

    run: str
    step: str
    risk: str


def request_of(job: Job) -> str:
    """A digest of what was asked for: a decision is about this and nothing else."""
    own = {name: text for name, text in job.labels.items() if not name.startswith(subjects.OWN_LABELS)}
    return digest([job.topic, job.payload, job.tenant, job.priority, job.max_attempts, job.timeout_ns, own])


def new_values(
    job: Job, *, gate: bool, message: Any, rule: str = "", snapshot: str = "", step: StepOf | None = None
) -> dict[str, Any]:
    """A job that waits from now on."""
    return {
        "job": job.id,
        "tenant": job.tenant,
        "gate": int(gate),
        "risk": "" if step is None else step.risk,
        "rule": rule,
        "message": json.dumps(message),
        "request": request_of(job),
        "snapshot": snapshot,
        "requested_by": job.submitted_by,
        "now_ns": job.created_ns,
        "run": None if step is None else step.run,
        "step": None if step is None else step.step,
        "expires_ns": job.deadline_ns,
    }


def approval_of(row: Row, state: JobState | str | None) -> Approval:
    """From a row, and the state of its job (None: it is not stored any more), to an approval."""
    status = ApprovalStatus(row["status"])
    if status is ApprovalStatus.WAITING and state != JobState.APPROVAL_REQUIRED:
        status = ApprovalStatus.LAPSED
    return Approval(
        job=row["job"],
        tenant=row["tenant"],
        gate=bool(row["gate"]),
        status=status,
        risk=row["risk"],
        rule=row["rule"],
        message=json.loads(row["message"]),
        request=row["request"],
        snapshot=row["snapshot"],
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
