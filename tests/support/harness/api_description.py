"""Answers against the API's description: whatever a test of the API is answered is looked up there."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import httpx
from starlette.routing import compile_path

from holdfast.web.app import description
from holdfast.web.problem_codes import CODES

TOLD: Final = ("x-request-id", "retry-after", "location", "www-authenticate", "allow")
"""Headers that a caller acts upon: each is described where it is sent, and sent where it is described."""


@cache
def _document() -> dict[str, Any]:
    return description()


def operation_of(method: str, path: str) -> dict[str, Any] | None:
    """The operation that a request asks for; None: it is not described."""
    for template, operations in _document()["paths"].items():
        if compile_path(template)[0].match(path):
            found: dict[str, Any] | None = operations.get("get" if method == "HEAD" else method.lower())
            return found
    return None


def whole(part: dict[str, Any]) -> dict[str, Any]:
    """Something described, without references."""
    if "$ref" not in part:
        return part
    kind, name = part["$ref"].split("/")[2:]
    found: dict[str, Any] = _document()["components"][kind][name]
    return found


def check_answer(answer: httpx.Response) -> None:
    """Fail if an answer is not as described."""
    request = answer.request
    operation = operation_of(request.method, request.url.path)
    if operation is None:
        return
    where = f"{request.method} {request.url.path}: {answer.status_code}"
    assert str(answer.status_code) in operation["responses"], f"{where} is not described"
    said = whole(operation["responses"][str(answer.status_code)])
    kind = answer.headers.get("content-type", "").partition(";")[0]
    assert kind in (said.get("content") or {"": None}), f"{where} has {kind}"
    described = {name.lower(): header["required"] for name, header in said["headers"].items()}
    sent = set(TOLD) & set(answer.headers)
    assert sent <= set(described), f"{where} has {sent} and says {set(described)}"
    assert {name for name, always in described.items() if always} <= set(answer.headers), f"{where} lacks {described}"


async def check(answer: httpx.Response) -> None:
    """The same for an `httpx.AsyncClient`, as a hook; and that of a problem every member is described."""
    check_answer(answer)
    if answer.headers.get("content-type") == "application/problem+json" and answer.request.method != "HEAD":
        await answer.aread()
        known = _document()["components"]["schemas"]["ProblemShown"]["properties"]
        told = answer.json()
        assert set(told) <= set(known), answer.text
        assert CODES[told["code"]][0] == answer.status_code, answer.text
