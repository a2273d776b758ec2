"""Bodies: reads the JSON of a request.

Promises: an unreadable body is 400 with the reason. Ambiguous JSON (a duplicate name, NaN) is 422 and names the field,
also inside of payloads, because it would be lost silently. Text is UTF-8 (RFC 8259). A body with more lists, objects
and members than can be read quickly is 413 before it is parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import HTTPException
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.strict_parsers import DEPTH_MAX, TOO_DEEP, NotJson, json_of, too_complex
from holdfast.errors import BadInput
from holdfast.web.problems import FIELD_CHARS_MAX

_SMALL_BYTES: Final = 64 * 1024  # parsed in a few milliseconds, whatever it contains


class JsonRoute(APIRoute):
    """A route that reads its body like this. Every router of the API has it; a test finds one without."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def read_first(request: Request) -> Response:
            reading = _Reading(request.scope, request.receive)
            if await reading.body():
                await reading.json()  # here, because the framework would wrap its errors
            return await handle(reading)

        return read_first


async def refuse_unknown_parameters(request: Request) -> None:
    """A dependency of every route: a query parameter that the route does not know is refused, and named."""
    fields = request.scope["route"].dependant.query_params
    kinds = [each.field_info.annotation for each in fields]
    if any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds):
        return  # one model has all of them and refuses others itself
    unknown = next((name for name in request.query_params if name not in {each.alias for each in fields}), None)
    if unknown is not None:
        known = ", ".join(sorted(each.alias for each in fields)) or "none"
        raise BadInput(
            unknown[:FIELD_CHARS_MAX] or "query",
            "is not a parameter of this address",
            f"leave it out; known are {known}",
        )


class _Reading(Request):
    """A request whose JSON is parsed here."""

    _read: Any

    async def json(self) -> Any:
        """The value of the body."""
        if not hasattr(self, "_read"):
            body = await self.body()
            # A large body is parsed in a thread, so that the event loop keeps answering others.
            self._read = _value(body) if len(body) <= _SMALL_BYTES else await asyncio.to_thread(_value, body)
        return self._read


def _value(body: bytes) -> Any:
    try:
        text = body.decode("utf-8-sig")
        problem = too_complex(text)
        if problem == TOO_DEEP:
            raise NotJson(problem, f"use at most {DEPTH_MAX} levels of lists and objects within each other")
        if problem is not None:
            raise HTTPException(413, f"the body {problem}; send less, or store it elsewhere and send a pointer")
        return json_of(text)
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not UTF-8") from None
    except NotJson as error:
        if error.field:
            raise BadInput(error.field[:FIELD_CHARS_MAX], error.problem, error.fix) from None
        raise HTTPException(400, f"the body {error.problem}; {error.fix}") from None
