"""The responses of each operation for the OpenAPI document: statuses, headers and problems. Pure.

Promises: an operation lists exactly the responses that it sends. A test provokes every listed response, and every test
of the API checks its responses against this. Responses that follow from the kind of an operation (whether it takes a
token, a body, a role) are computed here; its own are in the table.

Two responses are described once, because they belong to no operation: another method than those of an address is 405,
and a request that is not valid HTTP is 400.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from holdfast.guards.http.headers import PROBLEM_MEDIA_TYPE
from holdfast.web.middleware.auth import Needs, Role

Document: TypeAlias = dict[str, Any]

ABOUT: Final = """\
Every response of an operation has an `X-Request-Id`; each error is a problem (RFC 9457) with a `code` for programs.
`HEAD` works wherever `GET` does. Another method than those of an address is 405, and `Allow` lists them. A request
that is not valid HTTP is 400. The required role of an operation follows `HTTPBearer` in `security`."""

OWN: Final[Mapping[str, Mapping[int, str]]] = {
    "submit": {409: "The id is taken, or the idempotency key was used for another job."},
    "job": {404: "There is no such job."},
    "events": {404: "There is no such job."},
    "updates": {404: "There is no such job."},
    "cancel": {404: "There is no such job."},
    "retry": {404: "There is no such job.", 409: "It has not finished, or has no dead letter."},
    "dead_letter": {404: "There is no such dead letter."},
    "retry_letter": {404: "There is no such dead letter, or it does not belong to a job."},
    "forget_letter": {404: "There is no such dead letter."},
    "snapshot": {404: "No snapshot was written yet."},
    "limits": {404: "There is no such tenant for you."},
    "switch_jitter": {409: "It was changed since the revision in `expect`."},
    "switch_policy": {409: "It was changed since the revision in `expect`."},
    "kept_workflow": {404: "There is no such workflow, or no such version."},
    "start_run": {
        404: "There is no such workflow, or no such version.",
        409: "The id is taken, or the idempotency key was used for another run.",
    },
    "run": {404: "There is no such run."},
    "timeline": {404: "There is no such run."},
    "cancel_run": {404: "There is no such run."},
    "rerun_run": {
        404: "There is no such run.",
        409: "It has not finished, or the idempotency key was used for another run.",
    },
    "approval": {404: "There is no approval with this id."},
    "approve": {
        403: "Requesters cannot decide about their own requests.",
        404: "There is no approval with this id.",
        409: "This decision is not possible: `reason` says why, and `retryable` whether a retry may help.",
    },
    "reject": {
        403: "Requesters cannot decide about their own requests.",
        404: "There is no approval with this id.",
        409: "This decision is not possible: `reason` says why, and `retryable` whether a retry may help.",
    },
    "acquire": {409: "It is held, or a writer waits for it: retry after `Retry-After`."},
    "renew": {409: "The token is not that of a current holder."},
    "release": {409: "The token is not that of a current holder."},
    "schedule": {404: "There is no such schedule."},
    "put_schedule": {409: "An app declares it, or it exists and `replace` is false."},
    "delete_schedule": {404: "There is no such schedule.", 409: "An app declares it."},
    "pause_schedule": {404: "There is no such schedule."},
    "resume_schedule": {404: "There is no such schedule."},
    "run_schedule": {404: "There is no such schedule.", 409: "The id was used for another job."},
    "healthz": {503: "The process does not work, and a restart would help: `reasons` says why."},
    "readyz": {503: "It cannot take work now: `parts` names the failing components."},
}

LOCATED: Final = frozenset({"submit", "retry", "retry_letter", "start_run", "rerun_run", "run_schedule"})
"""Operations whose success has a `Location` header."""

RETRIED: Final[Mapping[str, bool]] = {"acquire": True, "approve": False, "reject": False}
"""Operations whose 409 has a `Retry-After` header; True: always."""

_HEADERS: Final[Mapping[str, tuple[str, str]]] = {
    "X-Request-Id": ("string", "The id of this request: yours, if you sent a valid one. The server's log has it too."),
    "Retry-After": ("integer", "Seconds until a retry."),
    "Location": ("string", "The address of the object."),
    "WWW-Authenticate": ("string", "How to authenticate."),
    "Allow": ("string", "The methods of this address."),
    "Accept": ("string", "The accepted content type."),
}

_STRANGE: Final = (
    "The server has no tokens, and the request is not addressed to the loopback interface or comes from another page."
)
_NAMES: Final[Mapping[int, str]] = {
    400: "Unreadable",
    401: "Unauthorized",
    405: "MethodNotAllowed",
    413: "TooLarge",
    415: "NotJson",
    422: "Invalid",
    429: "TooManyRequests",
    500: "Internal",
    503: "Unavailable",
}


def complete(document: Document, needed: Mapping[str, Needs]) -> Document:
    """The framework's document with the responses added. `needed`: the required roles of operations, by name."""
    document["info"]["description"] = ABOUT
    document["components"]["responses"] = _shared()
    for operations in document["paths"].values():
        for method, operation in operations.items():
            need = needed.get(operation["operationId"])
            own = {status: response for status, response in operation["responses"].items() if status.startswith("2")}
            operation["responses"] = {
                **{status: _success(operation["operationId"], response) for status, response in own.items()},
                **_refusals(method, operation, _forbidden(document, operation, need), secured=need is not None),
            }
            if need is not None:
                (scheme,) = operation["security"]
                operation["security"] = [{name: [str(need.role)] for name in scheme}]
    return document


def _shared() -> Document:
    made = {
        400: problem("The body cannot be read."),
        401: problem("No token, or an unknown one.", {"WWW-Authenticate": True}),
        405: problem("This address does not support that method.", {"Allow": True}),
        413: problem("The body is too large."),
        415: problem("The body is not JSON.", {"Accept": True}),
        422: problem("The request is invalid: `errors` names each field and its fix."),
        429: problem("Too many requests from this caller.", {"Retry-After": True}),
        500: problem("Internal error."),
        503: problem("The plane, or a store of it, cannot serve now.", {"Retry-After": True}),
    }
    return {_NAMES[status]: response for status, response in made.items()}


def _success(name: str, response: Document) -> Document:
    return {**response, "headers": _headers({"Location": True} if name in LOCATED else {})}


def _refusals(method: str, operation: Document, forbidden: list[str], *, secured: bool) -> Document:
    name = operation["operationId"]
    own = dict(OWN.get(name, {}))
    sentences = [*forbidden, own.pop(403)] if 403 in own else forbidden
    made: dict[int, Document | None] = {403: problem(" ".join(sentences)), 422: None, 500: None}
    if secured:
        made |= {401: None, 429: None}
        made |= {} if name == "counted" else {503: None}  # metrics are served until the process ends
    if method != "get":
        made |= {413: None, 415: None}
    if "requestBody" in operation:
        made |= {400: None}
    for status, text in own.items():
        headers = {"Retry-After": RETRIED[name]} if status == 409 and name in RETRIED else {}
        made[status] = problem(text, {"Retry-After": True} if status == 503 else headers)
    return {str(status): made[status] or _reference(status) for status in sorted(made)}


def _forbidden(document: Document, operation: Document, need: Needs | None) -> list[str]:
    sentences = [_STRANGE]
    if need is not None and need.role is not Role.VIEWER:
        sentences.append(f"The token does not have the role {need.role}.")
    if need is not None and need.everywhere:
        sentences.append("The token is bound to a tenant.")
    if _names_a_tenant(document, operation):
        sentences.append("The token is bound to another tenant.")
    return sentences


def _names_a_tenant(document: Document, operation: Document) -> bool:
    named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    model = body.get("$ref", "").rpartition("/")[2]
    return "tenant" in named | set(document["components"]["schemas"].get(model, {}).get("properties", ()))


def problem(text: str, headers: Mapping[str, bool] | None = None) -> Document:
    """An error response. `headers`: those besides the usual ones, and whether it always has them."""
    content = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemShown"}}}
    return {"description": text, "headers": _headers(headers or {}), "content": content}


def _headers(own: Mapping[str, bool]) -> Document:
    named = {"X-Request-Id": True, **own}
    return {
        name: {"description": _HEADERS[name][1], "required": always, "schema": {"type": _HEADERS[name][0]}}
        for name, always in named.items()
    }


def _reference(status: int) -> Document:
    return {"$ref": f"#/components/responses/{_NAMES[status]}"}
