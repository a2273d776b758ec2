"""What each operation answers, for the OpenAPI document: statuses, headers and problems. Pure.

Promises: an operation lists what it answers and nothing else; a test provokes every answer that is listed, and every
test of the API checks its answers against this. What depends on the kind of an operation (whether it takes a token, a
body, a role) is worked out here; what is its own is in the table.

Two things are said once for all, because they belong to no operation: another method than those of an address is 405,
and what cannot be read as HTTP at all is 400.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from holdfast.guards.http.headers import PROBLEM_MEDIA_TYPE
from holdfast.web.middleware.auth import Role
from holdfast.web.middleware.authorization import Needs

Document: TypeAlias = dict[str, Any]

ABOUT: Final = """\
Every answer of an operation has an `X-Request-Id`; each that is not a success is a problem (RFC 9457) with a `code` for
programs. `HEAD` works wherever `GET` does. Another method than those of an address is 405, and `Allow` names those.
What cannot be read as HTTP at all is 400. The role that an operation takes stands after `HTTPBearer` in `security`."""

OWN: Final[Mapping[str, Mapping[int, str]]] = {
    "submit": {409: "The id is taken, or the idempotency key was used for another job."},
    "job": {404: "There is no such job."},
    "events": {404: "There is no such job."},
    "cancel": {404: "There is no such job."},
    "retry": {404: "There is no such job.", 409: "It is not over, or has no dead letter."},
    "dead_letter": {404: "There is no such dead letter."},
    "retry_letter": {404: "There is no such dead letter, or it is not of a job."},
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
        409: "It is not over, or the idempotency key was used for another run.",
    },
    "approval": {404: "Nothing of this id waits, or waited, for a person."},
    "approve": {
        403: "Whoever asked for something cannot decide about it.",
        404: "Nothing of this id waits, or waited, for a person.",
        409: "It cannot be decided like this: `reason` says why, and `retryable` whether asking again may help.",
    },
    "reject": {
        403: "Whoever asked for something cannot decide about it.",
        404: "Nothing of this id waits, or waited, for a person.",
        409: "It cannot be decided like this: `reason` says why, and `retryable` whether asking again may help.",
    },
    "acquire": {409: "Somebody has it, or a writer waits for it: ask again after `Retry-After`."},
    "renew": {409: "The token is not that of a present holder."},
    "release": {409: "The token is not that of a present holder."},
    "healthz": {503: "The process does not do its work, and a restart would help: `reasons` says why."},
    "readyz": {503: "It cannot be given work now: `parts` says what is in the way."},
}

LOCATED: Final = frozenset({"submit", "retry", "retry_letter", "start_run", "rerun_run"})
"""Whose success says where the thing is that was made, or was there."""

RETRIED: Final[Mapping[str, bool]] = {"acquire": True, "approve": False, "reject": False}
"""Whose 409 says when to ask again; whether each of them does."""

_HEADERS: Final[Mapping[str, tuple[str, str]]] = {
    "X-Request-Id": ("string", "The id of this request: yours if you sent a usable one. The server's log has it too."),
    "Retry-After": ("integer", "After how many seconds to ask again."),
    "Location": ("string", "Where it is."),
    "WWW-Authenticate": ("string", "How to prove who asks."),
    "Allow": ("string", "The methods that this address knows."),
    "Accept": ("string", "What can be read."),
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
    """A document of the framework's, with what is answered. `needed`: what operations need, by their names."""
    document["info"]["description"] = ABOUT
    document["components"]["responses"] = _shared()
    for operations in document["paths"].values():
        for method, operation in operations.items():
            need = needed.get(operation["operationId"])
            own = {status: said for status, said in operation["responses"].items() if status.startswith("2")}
            operation["responses"] = {
                **{status: _success(operation["operationId"], said) for status, said in own.items()},
                **_refusals(method, operation, _forbidden(document, operation, need), secured=need is not None),
            }
            if need is not None:
                (scheme,) = operation["security"]
                operation["security"] = [{name: [str(need.role)] for name in scheme}]
    return document


def _shared() -> Document:
    made = {
        400: problem("The body cannot be read."),
        401: problem("No token, or one that is not known.", {"WWW-Authenticate": True}),
        405: problem("This address does not know that method.", {"Allow": True}),
        413: problem("The body is too long."),
        415: problem("The body is not JSON.", {"Accept": True}),
        422: problem("Something cannot be right: `errors` names each, and says what would be."),
        429: problem("Too many requests of this caller.", {"Retry-After": True}),
        500: problem("Something went wrong here."),
        503: problem("The plane, or a store of it, cannot serve now.", {"Retry-After": True}),
    }
    return {_NAMES[status]: said for status, said in made.items()}


def _success(name: str, said: Document) -> Document:
    return {**said, "headers": _headers({"Location": True} if name in LOCATED else {})}


def _refusals(method: str, operation: Document, forbidden: list[str], *, secured: bool) -> Document:
    name = operation["operationId"]
    own = dict(OWN.get(name, {}))
    said = [*forbidden, own.pop(403)] if 403 in own else forbidden
    made: dict[int, Document | None] = {403: problem(" ".join(said)), 422: None, 500: None}
    if secured:
        made |= {401: None, 429: None}
        made |= {} if name == "counted" else {503: None}  # what is counted here is told to the end
    if method != "get":
        made |= {413: None, 415: None}
    if "requestBody" in operation:
        made |= {400: None}
    for status, text in own.items():
        headers = {"Retry-After": RETRIED[name]} if status == 409 and name in RETRIED else {}
        made[status] = problem(text, {"Retry-After": True} if status == 503 else headers)
    return {str(status): made[status] or _reference(status) for status in sorted(made)}


def _forbidden(document: Document, operation: Document, need: Needs | None) -> list[str]:
    said = [_STRANGE]
    if need is not None and need.role is not Role.VIEWER:
        said.append(f"The token does not have the role {need.role}.")
    if need is not None and need.everywhere:
        said.append("The token is bound to a tenant.")
    if _names_a_tenant(document, operation):
        said.append("The token is bound to another tenant.")
    return said


def _names_a_tenant(document: Document, operation: Document) -> bool:
    named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    model = body.get("$ref", "").rpartition("/")[2]
    return "tenant" in named | set(document["components"]["schemas"].get(model, {}).get("properties", ()))


def problem(text: str, headers: Mapping[str, bool] | None = None) -> Document:
    """A refusal. `headers`: which it has besides those of every answer, and whether each time."""
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
