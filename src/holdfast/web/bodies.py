"""Bodies: how a route reads the JSON that was sent.

Promises: what cannot be read is 400 and says why; what could mean two things (a name that stands twice, NaN) is 422 and
named, also inside of payloads, because what is not refused here would be lost silently. Text is UTF-8 (RFC 8259).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import BadInput
from holdfast.runtime.json_text import NotJson, json_of
from holdfast.web.problems import FIELD_CHARS_MAX


class JsonRoute(APIRoute):
    """A route whose body is read as said above. Every router of the API has it; a test finds one that has not."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def read_first(request: Request) -> Response:
            reading = _Reading(request.scope, request.receive)
            if await reading.body():
                await reading.json()  # here, for the framework would wrap what it raises
            return await handle(reading)

        return read_first


class _Reading(Request):
    """A request whose JSON is read by us."""

    _read: Any

    async def json(self) -> Any:
        """What the body is."""
        if not hasattr(self, "_read"):
            self._read = _value(await self.body())
        return self._read


def _value(body: bytes) -> Any:
    try:
        return json_of(body.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not UTF-8") from None
    except NotJson as error:
        if error.field:
            raise BadInput(error.field[:FIELD_CHARS_MAX], error.problem, error.fix) from None
        raise HTTPException(400, f"the body {error.problem}; {error.fix}") from None
