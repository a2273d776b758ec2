"""The codes by which programs tell problems apart: the status of each, and what a caller may conclude. For people too.

A test finds a code that is answered and not listed; the page about HTTP has this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CODES: Final[Mapping[str, tuple[int, str]]] = {
    "unreadable": (400, "the body, or the whole request, cannot be read"),
    "unauthorized": (401, "no token, or one that is not known"),
    "not-allowed": (403, "the role or the tenant of the token does not allow it"),
    "self-approval-denied": (403, "whoever asked for something cannot decide about it"),
    "not-found": (404, "there is no such thing, or it is another tenant's"),
    "method-not-allowed": (405, "this address does not know that method; `Allow` names those that it knows"),
    "exists": (409, "the id or the idempotency key was used for something else"),
    "invalid-transition": (409, "the job cannot go from the state in which it is to that"),
    "lock-busy": (409, "somebody else has it; `Retry-After` says when to ask again"),
    "lock-not-owned": (409, "the token is not that of a present holder: it was lost, or given back"),
    "approval-conflict": (409, "it cannot be decided like this; `reason` says why"),
    "not-over": (409, "the run is still going on"),
    "policy-moved": (409, "somebody changed the policy since; look again"),
    "too-large": (413, "the body is too long, or has too many values"),
    "unsupported-media-type": (415, "the body is not JSON"),
    "invalid": (422, "what was sent cannot be right; `errors` says what would be"),
    "bad-expression": (422, "an expression of a workflow makes no sense"),
    "expression-failed": (422, "an expression of a workflow does not fit what it was given"),
    "too-many-requests": (429, "you ask too often"),
    "too-many-runs": (429, "the tenant has as many unfinished runs as it may have (`runs.live_per_tenant`)"),
    "internal": (500, "something went wrong here; the log has it under the `request_id`"),
    "misconfigured": (500, "the plane is not set up to do this"),
    "too-many-connections": (503, "every connection of the server is in use; try again later"),
    "closing": (503, "this process is about to end; ask another"),
    "lease-lost": (503, "the plane lost a lease while it did this; nothing was done"),
    "not-ready": (
        503,
        "`/readyz`: `parts` says why; elsewhere: the process waits for its database, or is too old for it",
    ),
    "not-working": (503, "`/healthz`: `reasons` says why a restart would help"),
    "outcome-unknown": (503, "a store did not answer in time: it may have been done; look, or repeat it"),
    "policy-denied": (503, "the lease store failed, and the error policy says not to go on; nothing was done"),
    "retry-later": (503, "not now; ask again"),
    "unavailable": (503, "a store of the plane cannot be reached; nothing was done"),
}


def table() -> str:
    """The same as Markdown."""
    rows = [f"| {status} | `{code}` | {says} |" for code, (status, says) in CODES.items()]
    return "\n".join(["| status | code | what it says |", "|---|---|---|", *rows]) + "\n"
