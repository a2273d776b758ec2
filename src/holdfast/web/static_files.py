"""The page at `/` and the files that it is made of, as they lie in `static`: no build step, and nothing from elsewhere.

Promises: the page runs no script and loads nothing that is not in that folder, and may be framed by nobody (the headers
say so to the browser); what it shows is written as text alone (the browser refuses markup from scripts). Holds no data
and no secrets, so it needs no token: what it shows, it asks the API for. A browser keeps the files and asks each time
whether they are still right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final[Mapping[str, str]] = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}

_FOLDER: Final = files("holdfast.web") / "static"
_CONTENT: Final[Mapping[str, bytes]] = {
    "/" if each.name == "index.html" else f"/static/{each.name}": each.read_bytes()
    for each in _FOLDER.iterdir()
    if each.name.rpartition(".")[2] in TYPES
}
_TAGS: Final[Mapping[str, str]] = {
    path: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for path, content in _CONTENT.items()
}

PATHS: Final = frozenset(_CONTENT)
"""What is served to everybody."""


async def _asset(request: Request) -> Response:
    path = request.url.path
    headers = {**HEADERS, "etag": _TAGS[path]}
    if _TAGS[path] in [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    kind = "html" if path == "/" else path.rpartition(".")[2]
    return Response(_CONTENT[path], headers={**headers, "content-type": TYPES[kind]})


ROUTES: Final = [Route(path, _asset, methods=["GET", "HEAD"], include_in_schema=False) for path in sorted(PATHS)]
