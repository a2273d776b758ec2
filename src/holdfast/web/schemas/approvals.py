"""Bodies of requests and responses about approvals. See `jobs` for common rules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, StringConstraints

from holdfast.plane.approvals.rows import ApprovalOutline, outline_of_approval
from holdfast.plane.approvals.rules import Approval, ApprovalStatus
from holdfast.plane.approvals.service import NOTE_CHARS_MAX, REVISION_MAX, DecisionResult
from holdfast.web.schemas.jobs import (
    AS_WHOLE,
    Cursor,
    Given,
    Label,
    Limit,
    QueryFilter,
    RequestBody,
    ResponseBody,
    StateName,
    moment,
)

Line: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[ -~]*$", max_length=NOTE_CHARS_MAX)]
ApprovalStatusName: TypeAlias = Annotated[ApprovalStatus, Field(description="The status of an approval.")]


class ApprovalFilter(QueryFilter):
    """Which approvals, and which page of them."""

    status: Literal["waiting", "approved", "rejected", "lapsed", "all"] = "waiting"
    tenant: Given[Label] = Field(None, description="Only for callers who are not bound to a tenant.")
    cursor: Given[Cursor] = Field(None, description="The `next` of the page before.")
    limit: Limit = 100


class Decide(RequestBody):
    """A decision."""

    note: Line = ""
    revision: Annotated[int, Field(ge=0, le=REVISION_MAX), AS_WHOLE] | None = Field(
        None, description="The revision that was read; refused if it has changed since."
    )


class ApprovalOutlineShown(ResponseBody):
    """An approval in a list: with the beginning of its message."""

    job: str
    tenant: str
    status: ApprovalStatusName
    gate: bool = Field(description="A step of a run that does nothing but wait for a decision.")
    run: str | None
    step: str | None
    rule: str
    risk: str
    about: str = Field(description="The beginning of its message as text, of 200 characters at most.")
    requested_by: str
    revision: int
    created_at: datetime
    expires_at: datetime | None
    decided_by: str | None
    decided_at: datetime | None
    note: str | None
    fence: int | None

    @classmethod
    def of(cls, approval: ApprovalOutline) -> ApprovalOutlineShown:
        """From the outline."""
        return cls(**_outline(approval))


class ApprovalShown(ApprovalOutlineShown):
    """An approval, open or decided."""

    message: Any

    @classmethod
    def whole(cls, approval: Approval) -> ApprovalShown:
        """From the approval."""
        return cls(**_outline(outline_of_approval(approval)), message=approval.message)


class ApprovalPage(ResponseBody):
    """A page of approvals: open ones, oldest first; others, newest first."""

    items: list[ApprovalOutlineShown]
    next: str | None = Field(description="The `cursor` of the next page; null: there is none.")


class DecisionShown(ApprovalShown):
    """The result of a decision."""

    taken: bool = Field(description="False: the same decision was made before.")
    state: StateName

    @classmethod
    def after(cls, decision: DecisionResult) -> DecisionShown:
        """From the result."""
        shown = ApprovalShown.whole(decision.approval)
        return cls(**dict(shown), taken=decision.taken, state=decision.job.state)


def _outline(approval: ApprovalOutline) -> dict[str, Any]:
    return {
        "job": approval.job,
        "tenant": approval.tenant,
        "status": approval.status,
        "gate": approval.gate,
        "run": approval.run,
        "step": approval.step,
        "rule": approval.rule,
        "risk": approval.risk,
        "about": approval.about,
        "requested_by": approval.requested_by,
        "revision": approval.revision,
        "created_at": moment(approval.created_ns),
        "expires_at": _moment(approval.expires_ns),
        "decided_by": approval.decided_by,
        "decided_at": _moment(approval.decided_ns),
        "note": approval.note,
        "fence": approval.fence,
    }


def _moment(ns: int | None) -> datetime | None:
    return None if ns is None else moment(ns)
