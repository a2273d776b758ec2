"""The HTTP API as a part of a plane: a socket that is ours before anything else begins, and uvicorn behind it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import uvicorn

from holdfast.errors import BadInput
from holdfast.plane.assembly import Plane
from holdfast.plane.settings import ApiSettings
from holdfast.web.api import create_app
from holdfast.web.auth import Access, TokenEntry, check_role

BACKLOG: Final = 512
_FIELDS: Final = {"name", "digest", "roles", "tenant"}
_FORM: Final = "write [[tokens]] with name, digest (SHA-256 of the token), roles and, for one tenant, tenant"


def listen(settings: ApiSettings) -> socket.socket:
    """Take the port, or `BadInput` that says who may have it and what to do."""
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput("host", f"{host!r:.80} is not an address ({reason})", "use 127.0.0.1 or a name") from None
    ours = socket.socket(family, kind, protocol)
    try:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours.bind(address)
        ours.listen(BACKLOG)
    except OSError as error:
        ours.close()
        raise _taken(host, port, error) from None
    return ours


def _taken(host: str, port: int, error: OSError) -> BadInput:
    if error.errno == errno.EADDRINUSE:
        fix = f"use --port {port + 1}, or --port 0 for any; holdfast up --only … leaves the API out"
        return BadInput("port", f"{port} is in use, perhaps by another holdfast up", fix)
    if error.errno == errno.EACCES:
        return BadInput("port", f"{port} needs rights that this user does not have", "use one from 1024 on")
    return BadInput("host", f"{host!r:.80} cannot be listened at ({error.strerror})", "use an address of this host")


def address_of(ours: socket.socket) -> str:
    """What to type into a browser."""
    host, port = ours.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    everywhere = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - what it is called, not where we bind
    return f"http://{everywhere.get(shown, shown)}:{port}"


def tokens_in(path: str) -> list[TokenEntry]:
    """The tokens of a file, or `BadInput`. It holds digests and no tokens."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput("api.tokens", f"{path[:200]} cannot be read: {reason}", _FORM) from None
    entries = document.get("tokens")
    if set(document) != {"tokens"} or not isinstance(entries, list) or not entries:
        raise BadInput("api.tokens", f"{path[:200]} has no list of tokens", _FORM)
    return [_entry(path, number, entry) for number, entry in enumerate(entries, 1)]


def _entry(path: str, number: int, entry: object) -> TokenEntry:
    where = f"{Path(path).name}: token {number}"
    if not isinstance(entry, Mapping) or not {"name", "digest"} <= set(entry) or not set(entry) <= _FIELDS:
        raise BadInput("api.tokens", f"{where} does not have the right fields", _FORM)
    roles = entry.get("roles", ["viewer"])
    if not isinstance(roles, list):
        raise BadInput("api.tokens", f"{where}: roles are not a list", _FORM)
    try:
        made = TokenEntry(
            name=entry["name"],
            digest=entry["digest"],
            roles=tuple(check_role(role) for role in roles),
            tenant=entry.get("tenant", "*"),
        )
        return made.check()
    except BadInput as error:
        raise BadInput("api.tokens", f"{where}: {error.field} {error.problem}", error.fix) from None


def access_for(settings: ApiSettings) -> Access:
    """Who gets in: whoever has a token; without tokens, whoever is on this host."""
    return Access.bound_to(settings.host, () if settings.tokens is None else tokens_in(settings.tokens))


class _Server(uvicorn.Server):
    """Leaves signals to the command, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.ready.set()


class ApiPart:
    """See `plane.parts.Part`."""

    name = "api"

    def __init__(self, plane: Plane, ours: socket.socket, access: Access) -> None:
        self.address = address_of(ours)
        self._socket = ours
        config = uvicorn.Config(
            create_app(plane.ground.service, access),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """See `Part`."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http")
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait((self._serving, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            self._serving.result()

    async def stop(self, grace: float) -> bool:
        """See `Part`. Requests that have begun are answered; connections that only wait are closed."""
        if self._serving is None:
            self._socket.close()
            return True
        self._server.should_exit = True
        _, late = await asyncio.wait((self._serving,), timeout=grace)
        if late:
            self._server.force_exit = True
            await asyncio.wait((self._serving,))
        self._serving.result()
        return not late

    async def ended(self) -> None:
        """See `Part`."""
        if self._serving is not None:
            await asyncio.shield(self._serving)

    def detail(self) -> Mapping[str, Any]:
        """See `Part`."""
        return {"address": self.address, "requests": self._server.server_state.total_requests}
