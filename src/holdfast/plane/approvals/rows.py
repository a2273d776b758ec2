"""Rows of the approval table: written when a job starts to wait for approval, read back, and as outlines for lists."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from holdfast.plane.approvals.rules import Approval, ApprovalStatus, digest
from holdfast.plane.db.ports import Row
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import requesters_label
from holdfast.plane.model.records import Job, StepOf, beginning
from holdfast.plane.workflows.core.run import Run


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


_TEXT_BEGUN: Final = re.compile(r'"(?:[^"\\]|\\u[0-9a-f]{4}|\\[^u])*')  # drops an escape that was cut in two

_WRITTEN_MAX: Final = 2_500


def request_of(job: Job, approval: Approval) -> str:
    """A digest of the request: job, requesters and the rules at that time. A decision applies to this digest alone.

    It covers the fields that never change while the job waits, so a difference means that the request was tampered
    with. Fields that a decision or the job's progress writes are left out.
    """
    asked = [job.id, job.tenant, job.topic, job.pool, job.priority, job.max_attempts, job.payload, dict(job.labels)]
    times = [job.created_ns, job.timeout_ns, job.deadline_ns, job.not_before_ns]
    who = [job.submitted_by, job.idempotency_key, job.trace]
    shown = [approval.job, approval.tenant, approval.gate, approval.risk, approval.rule, approval.message]
    rest = [approval.snapshot, approval.requested_by, approval.created_ns, approval.expires_ns]
    return digest([asked, times, who, shown, rest, approval.run, approval.step])


def new_values(
    job: Job, *, gate: bool, message: Any, rule: str = "", snapshot: str = "", step: StepOf | None = None
) -> dict[str, Any]:
    """Column values for a job that starts to wait for approval."""
    text = json.dumps(message)
    waits = Approval(
        job=job.id,
        tenant=job.tenant,
        gate=gate,
        status=ApprovalStatus.WAITING,
        risk="" if step is None else step.risk,
        rule=rule,
        message=json.loads(text),  # the value that a reader of the row gets
        request="",
        snapshot=snapshot,
        requested_by=job.submitted_by,
        revision=0,
        created_ns=job.created_ns,
        run=None if step is None else step.run,
        step=None if step is None else step.step,
        expires_ns=job.deadline_ns,
    )
    return {
        "job": waits.job,
        "tenant": waits.tenant,
        "gate": int(gate),
        "risk": waits.risk,
        "rule": rule,
        "message": text,
        "request": request_of(job, waits),
        "snapshot": snapshot,
        "requested_by": waits.requested_by,
        "now_ns": waits.created_ns,
        "run": waits.run,
        "step": waits.step,
        "expires_ns": waits.expires_ns,
    }


def status_of(row: Row, state: JobState | str | None) -> ApprovalStatus:
    """The status of an approval. An undecided approval waits for as long as its job does, then it has lapsed."""
    status = ApprovalStatus(row["status"])
    undecided = status is ApprovalStatus.WAITING and state != JobState.APPROVAL_REQUIRED
    return ApprovalStatus.LAPSED if undecided else status


def approval_of(row: Row, state: JobState | str | None) -> Approval:
    """An approval from its row and the state of its job. None: the job is no longer stored."""
    return Approval(
        job=row["job"],
        tenant=row["tenant"],
        gate=bool(row["gate"]),
        status=status_of(row, state),
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


def approval_outline_of(row: Row) -> ApprovalOutline:
    """The outline of an approval from a row with the state of its job."""
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
    """The outline of a complete approval."""
    same = {name: getattr(approval, name) for name in ApprovalOutline.__slots__ if name != "about"}
    return ApprovalOutline(**same, about=_text_of(approval.message))


def _text_of(message: Any) -> str:
    """The beginning of the message for the approver: of a text, or of any other value as JSON."""
    if message is None:
        return ""
    return beginning(message if isinstance(message, str) else json.dumps(message, ensure_ascii=False))


def _about(written: str) -> str:
    """The same from stored JSON, which may be cut off."""
    if len(written) < _WRITTEN_MAX:
        return _text_of(json.loads(written))
    begun = _TEXT_BEGUN.match(written)
    return beginning(written if begun is None else json.loads(f'{begun[0]}"'))


def own_labels(run: Run, step: str, risk: str) -> dict[str, str]:
    """The labels that the plane sets on the jobs of a run."""
    place = {subjects.RUN_LABEL: run.id, subjects.STEP_LABEL: step, subjects.RISK_LABEL: risk}
    return {**place, **requesters_label(run.requesters)}
