"""Codes of problems for programs: the HTTP status of each, and its meaning.

A test finds a code that is used and not listed; the documentation of the HTTP API contains this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CODES: Final[Mapping[str, tuple[int, str]]] = {
    "unreadable": (400, "the body, or the whole request, cannot be read"),
    "unauthorized": (401, "no token, or an unknown one"),
    "not-allowed": (403, "the role or the tenant of the token does not allow it"),
    "self-approval-denied": (403, "requesters cannot decide about their own requests"),
    "not-found": (404, "there is no such object, or it belongs to another tenant"),
    "method-not-allowed": (405, "this address does not support that method; `Allow` lists those that it does"),
    "exists": (409, "the id or the idempotency key was used for something else"),
    "invalid-transition": (409, "the job cannot change from its current state to the requested one"),
    "lock-busy": (409, "another client holds it; retry after `Retry-After`"),
    "lock-not-owned": (409, "the token is not that of a current holder: the lock was lost or released"),
    "approval-conflict": (409, "this decision is not possible; `reason` says why"),
    "not-over": (409, "the run has not finished"),
    "schedule-conflict": (409, "an app declares the schedule, or it exists and `replace` is false"),
    "policy-moved": (409, "the policy was changed in the meantime; read it again"),
    "too-large": (413, "the body is too large, or has too many values"),
    "unsupported-media-type": (415, "the body is not JSON"),
    "invalid": (422, "the request is invalid; `errors` names each field and its fix"),
    "bad-expression": (422, "an expression of a workflow is invalid"),
    "expression-failed": (422, "an expression of a workflow has no value for this input"),
    "too-many-requests": (429, "too many requests from this caller"),
    "too-many-runs": (429, "the tenant has reached its limit of unfinished runs (`runs.live_per_tenant`)"),
    "internal": (500, "internal error; the log has it under the `request_id`"),
    "misconfigured": (500, "the plane is not configured for this"),
    "too-many-connections": (503, "every connection of the server is in use; try again later"),
    "closing": (503, "this process is shutting down; ask another one"),
    "lease-lost": (503, "the plane lost a lease during this operation; nothing was done"),
    "not-ready": (
        503,
        "`/readyz`: `parts` says why; elsewhere: the process waits for its database, or is too old for it",
    ),
    "not-working": (503, "`/healthz`: `reasons` says why a restart would help"),
    "outcome-unknown": (503, "a store did not answer in time: the operation may have been done; check, or repeat it"),
    "policy-denied": (503, "the lease store failed, and the error policy forbids to continue; nothing was done"),
    "retry-later": (503, "not possible now; retry later"),
    "unavailable": (503, "a store of the plane cannot be reached; nothing was done"),
}


def table() -> str:
    """The table as Markdown."""
    rows = [f"| {status} | `{code}` | {says} |" for code, (status, says) in CODES.items()]
    return "\n".join(["| status | code | meaning |", "|---|---|---|", *rows]) + "\n"
