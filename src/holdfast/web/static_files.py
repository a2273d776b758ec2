"""The status page at `/` and its files from the folder `static`: no build step, no other sources.

Promises: the page runs only scripts and loads only files from that folder, and no page may frame it (by its headers).
It writes values as text (the browser refuses markup from scripts). The files contain no data and no secrets, so they
need no token: the page reads its data from the API. Browsers cache the files and revalidate them each time.
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
"""Paths that need no token."""


async def _asset(request: Request) -> Response:
    path = request.url.path
    headers = {**HEADERS, "etag": _TAGS[path]}
    if _TAGS[path] in [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    kind = "html" if path == "/" else path.rpartition(".")[2]
    return Response(_CONTENT[path], headers={**headers, "content-type": TYPES[kind]})


ROUTES: Final = [Route(path, _asset, methods=["GET", "HEAD"], include_in_schema=False) for path in sorted(PATHS)]
