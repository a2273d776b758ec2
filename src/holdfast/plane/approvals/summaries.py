"""Outlines of approvals, for lists."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from holdfast.plane.approvals.rows import status_of
from holdfast.plane.approvals.rules import Approval, ApprovalStatus
from holdfast.plane.db.ports import Row
from holdfast.plane.model.records import beginning


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
