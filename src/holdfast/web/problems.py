"""Error responses: one table from exceptions to problem documents (RFC 9457, `application/problem+json`).

Promises: every error response has this form. The status tells what the caller may conclude, and `Retry-After` when to
retry. Invalid input is named by field and never repeated. Internals (stack traces, server addresses) are never sent. A
server error is logged with the request id of the response.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from holdfast import errors
from holdfast.flows.log import log_event
from holdfast.guards.http.headers import PROBLEM_MEDIA_TYPE, PROBLEM_TYPE
from holdfast.plane.approvals.rules import ApprovalConflict, SelfApproval
from holdfast.plane.approvals.service import ApprovalBusy
from holdfast.plane.model.job_states import InvalidTransition
from holdfast.plane.policy.model import PolicyConflict
from holdfast.plane.schedules.model import ScheduleConflict
from holdfast.plane.service.service import NotAllowed
from holdfast.plane.service.workflows import RunNotFinished
from holdfast.plane.workflows.core.problems import BadWorkflow, dotted
from holdfast.plane.workflows.run_quotas import TooManyRuns
from holdfast.web.schemas.hints import A_NAME, FieldHints

INVALID: Final = 422
"""The request is invalid. 400 is for requests that cannot be read at all."""

CLOSING: Final = "closing"
NOT_READY: Final = "not-ready"
FIELD_CHARS_MAX: Final = 200
_ERRORS_MAX: Final = 50
# As in RFC 9110. Python has these names from 3.13 on; responses are the same under each version.
_TITLES: Final = {
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}

_log = logging.getLogger("holdfast.web")


@dataclass(frozen=True, slots=True)
class Problem:
    """One error response."""

    status: int
    code: str  # for programs
    detail: str  # for people
    members: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self, request_id: str) -> dict[str, Any]:
        """The body."""
        return {
            "type": PROBLEM_TYPE + self.code,
            "title": _TITLES.get(self.status) or HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            "request_id": request_id,
            **self.members,
        }

    def response(self, request_id: str) -> Response:
        """The answer."""
        body = json.dumps(self.document(request_id)).encode()
        headers = {"cache-control": "no-store", **self.headers}
        return Response(body, self.status, headers, media_type=PROBLEM_MEDIA_TYPE)


@dataclass(frozen=True, slots=True)
class ProblemRule:
    """The response to one kind of error. Without `detail`: the text of the error."""

    status: int
    code: str
    detail: str | None = None


_UNREACHED: Final = "a store of the plane cannot be reached now; nothing was done"
_UNKNOWN: Final = "a store of the plane did not answer in time; the operation may have been done: check, or repeat it"

TABLE: Final[Mapping[type[errors.HoldfastError], ProblemRule]] = {
    errors.BadInput: ProblemRule(INVALID, "invalid"),
    errors.BadExpression: ProblemRule(INVALID, "bad-expression"),
    errors.ExpressionFailed: ProblemRule(INVALID, "expression-failed"),
    NotAllowed: ProblemRule(403, "not-allowed"),
    errors.RowMissing: ProblemRule(404, "not-found"),
    errors.RowExists: ProblemRule(409, "exists"),
    errors.LockBusy: ProblemRule(409, "lock-busy"),
    errors.NotOwner: ProblemRule(409, "lock-not-owned"),
    InvalidTransition: ProblemRule(409, "invalid-transition"),
    ApprovalConflict: ProblemRule(409, "approval-conflict"),
    SelfApproval: ProblemRule(403, "self-approval-denied"),
    ScheduleConflict: ProblemRule(409, "schedule-conflict"),
    RunNotFinished: ProblemRule(409, "not-over"),
    TooManyRuns: ProblemRule(429, "too-many-runs"),
    PolicyConflict: ProblemRule(409, "policy-moved"),
    errors.FencedOut: ProblemRule(412, "fenced-out"),
    errors.NotEntered: ProblemRule(412, "not-entered"),
    errors.LeaseLost: ProblemRule(503, "lease-lost", "the plane lost a lease while doing this; try again"),
    errors.PolicyDenied: ProblemRule(503, "policy-denied", _UNREACHED),
    errors.Timeout: ProblemRule(503, "outcome-unknown", _UNKNOWN),
    errors.Misconfigured: ProblemRule(500, "misconfigured", "the plane is not configured for this"),
    errors.BackendError: ProblemRule(503, "unavailable", _UNREACHED),
    errors.RetryLater: ProblemRule(503, "retry-later", "this cannot be done now; try again"),
    errors.Closed: ProblemRule(503, CLOSING, "the plane is shutting down"),
    errors.HoldfastError: ProblemRule(500, "internal", "internal error"),
}

# Errors of the framework.
_PLAIN: Final[Mapping[int, tuple[str, str | None]]] = {
    400: ("unreadable", None),
    403: ("not-allowed", None),
    404: ("not-found", "there is nothing at this address"),
    405: ("method-not-allowed", "this address does not support that method"),
    413: ("too-large", None),
}

UNEXPECTED: Final = Problem(500, "internal", "internal error")


def problem_of(error: errors.HoldfastError) -> Problem:
    """The response to an error: by its class, or its nearest base class in the table."""
    rule = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    members: dict[str, Any] = {}
    if isinstance(error, errors.BadInput):
        members["errors"] = [{"field": error.field, "problem": error.problem, "fix": error.fix}]
    if isinstance(error, errors.LockBusy):
        members["holder"] = error.holder
    if isinstance(error, ApprovalConflict | ApprovalBusy | SelfApproval):
        members |= {"reason": str(error.code), "retryable": isinstance(error, ApprovalBusy)}
    if isinstance(error, BadWorkflow):
        members["errors"] = [
            {"field": dotted(each.path) or "definition", "problem": each.problem, "fix": each.fix}
            for each in error.problems[:_ERRORS_MAX]
        ]
    if isinstance(error, errors.FencedOut):
        members |= {"fence": error.fence, "seen": error.seen}
    wait = _retry_after(error, rule)
    if wait is not None:
        members["retry_after"] = wait
    # The header has whole seconds; the body is exact.
    headers = {} if wait is None else {"retry-after": str(max(1, math.ceil(wait)))}
    return Problem(rule.status, rule.code, str(error) if rule.detail is None else rule.detail, members, headers)


def _retry_after(error: errors.HoldfastError, rule: ProblemRule) -> float | None:
    if isinstance(error, errors.RetryLater):
        return error.delay
    if isinstance(error, errors.LockBusy | TooManyRuns):
        return error.retry_after
    return errors.BackendError.retry_after if rule.status == 503 else None


def invalid(found: Sequence[Mapping[str, Any]], wanted: FieldHints) -> Problem:
    """The response to a request that does not fit its description. Names the fields, and repeats no value."""
    said = [
        {"field": _field(each["loc"]), "problem": str(each["msg"]), "fix": wanted.fix(each["type"], each["loc"])}
        for each in found[:_ERRORS_MAX]
    ]
    named = ", ".join(dict.fromkeys(each["field"] for each in said[:5]))
    return Problem(INVALID, "invalid", f"these are invalid: {named}", {"errors": said})


def _field(place: Sequence[str | int]) -> str:
    """`body.labels.team` is `labels.team`; an unknown name is cut to the length of known ones."""
    parts = [str(part) for part in place[1:] if part != A_NAME] or [str(place[0])]
    return ".".join(parts)[:FIELD_CHARS_MAX]


def request_id_of(request: Request) -> str:
    """The id of the request from the intake."""
    return str(request.scope.get("state", {}).get("request_id", ""))


def logged(problem: Problem, error: BaseException, request_id: str) -> Problem:
    """Return the problem; log the error unless it is the caller's fault or the process shuts down."""
    if problem.status >= 500 and problem.code != CLOSING:
        level = logging.ERROR if problem.status == 500 else logging.WARNING
        log_event(_log, level, "a request failed", error, status=problem.status, code=problem.code, request=request_id)
    return problem


def _known(request: Request) -> dict[str, Any]:
    """The operations of an address by their methods. The framework names only those of the first matching route."""
    known: dict[str, Any] = {}
    for template, operations in request.app.openapi()["paths"].items():
        if compile_path(template)[0].match(request.scope["path"]):
            known |= {method.upper(): operation for method, operation in operations.items()}
    return known


def _allowed(methods: Collection[str]) -> list[str]:
    """The methods, with HEAD wherever GET is supported."""
    return sorted({*methods, "HEAD"} if "GET" in methods else methods)


def install(app: FastAPI) -> None:
    """Make the application send problem documents."""

    async def ours(request: Request, error: Exception) -> Response:
        if not isinstance(error, errors.HoldfastError):
            raise error
        request_id = request_id_of(request)
        return logged(problem_of(error), error, request_id).response(request_id)

    async def validation(request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        return invalid(error.errors(), FieldHints(request.app.openapi(), _known(request)[request.method])).response(
            request_id_of(request)
        )

    async def http(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        code, detail = _PLAIN.get(error.status_code, ("http", None))
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        if error.status_code == 405:
            headers["allow"] = ", ".join(_allowed(_known(request)))
        problem = Problem(error.status_code, code, detail or str(error.detail), headers=headers)
        return problem.response(request_id_of(request))

    app.add_exception_handler(errors.HoldfastError, ours)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
