"""HTTP in a process of the plane: uvicorn on our own socket, access control, and the API as a component."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from holdfast.cli.server.bind import BACKLOG, address_of
from holdfast.cli.server.connection_limit import ConnectionLimit, accept_batch, connections_max
from holdfast.cli.server.request_timeout import TimedProtocol
from holdfast.core.metric_reading import Reading
from holdfast.core.strict_parsers import toml_of
from holdfast.errors import BadInput
from holdfast.flows.log import log_event
from holdfast.plane.process.plane import Plane
from holdfast.web.app import create_app
from holdfast.web.middleware.auth import Access, TokenEntry, check_role
from holdfast.web.middleware.rate_limit import Rates

_FIELDS: Final = {"name", "digest", "roles", "tenant", "expires"}
_FORM: Final = "write [[tokens]] with name, digest (SHA-256 of the token), roles and optionally tenant and expires"
_FILE_BYTES_MAX: Final = 1_000_000
_REREAD_S: Final = 1.0
_log = logging.getLogger("holdfast.web")


def tokens_in(path: str) -> list[TokenEntry]:
    """The tokens of a file, or `BadInput`. It contains digests and no tokens."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
        if len(content) > _FILE_BYTES_MAX:
            raise ValueError(f"it is longer than {_FILE_BYTES_MAX} bytes")
        document = toml_of(content.decode())
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
            expires=entry.get("expires"),
        )
        return made.check()
    except BadInput as error:
        raise BadInput("api.tokens", f"{where}: {error.field} {error.problem}", error.fix) from None


def access_for(host: str, tokens: str | None) -> Access:
    """Access at `host`: with tokens, callers with a token of the file; without tokens, callers on this host."""
    if tokens is None:
        return Access.bound_to(host)
    file = TokenFile(tokens)
    return Access.bound_to(host, file.first, file.changed)


class TokenFile:
    """The tokens of a file that may change while a process runs.

    Promises: a change applies within about a second, as a whole. An unreadable or invalid file is logged once, and the
    previous tokens stay valid: a typing error must not lock every caller out. Clock: monotonic.
    """

    def __init__(self, path: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic = monotonic
        self._seen = self._signature()  # before it is read: a change in between is noticed later
        self.first = tokens_in(path)
        self._next = monotonic() + _REREAD_S

    def changed(self) -> list[TokenEntry] | None:
        """The tokens, if the file has changed since the last call and is valid. Reads at most once per second."""
        now = self._monotonic()
        if now < self._next:
            return None
        self._next = now + _REREAD_S
        seen = self._signature()
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            found = tokens_in(self._path)
            Access(found)  # validates the entries against each other
        except BadInput as error:
            text = "the token file cannot be used; the previous tokens stay valid"
            log_event(_log, logging.WARNING, text, problem=str(error))
            return None
        log_event(_log, logging.INFO, "the token file was read again", count=len(found))
        return found

    def _signature(self) -> tuple[int, ...]:
        try:
            found = Path(self._path).stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino


class _Server(uvicorn.Server):
    """Leaves signals to the command, and reports when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.ready.set()


class HttpServer:
    """One application on our own socket."""

    def __init__(self, app: FastAPI, ours: socket.socket) -> None:
        self._socket = ours
        self.connections = ConnectionLimit(connections_max())
        app.state.answers.connections = self.connections
        hurried = type("Hurried", (TimedProtocol,), {"crowd": self.connections})
        config = uvicorn.Config(
            app,
            http=hurried,
            ws="none",
            backlog=accept_batch(),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,  # any client can send such a header, so it does not identify a caller
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def requests(self) -> int:
        """The number of answered requests."""
        return self._server.server_state.total_requests

    async def start(self) -> None:
        """Answer requests. Returns when it does, or raises the obstacle."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http")
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait((self._serving, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            self._serving.result()
        self._socket.listen(BACKLOG)  # uvicorn listened with the number of connections to accept in one go

    async def stop(self, grace: float) -> bool:
        """Finish started requests within `grace` seconds, and close; idle connections are closed immediately."""
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
        """Return when it has ended, or raise the reason."""
        if self._serving is not None:
            await asyncio.shield(self._serving)


class ApiPart:
    """See `plane.process.parts.Part`."""

    name = "api"

    def __init__(self, plane: Plane, ours: socket.socket, access: Access) -> None:
        self.address = address_of(ours)
        components, rate = plane.components, plane.settings.api.rate
        rates = Rates(rate, components.clock) if rate else None
        self._server = HttpServer(
            create_app(components.service, access, process_health=plane.process_health, rates=rates), ours
        )

    async def start(self) -> None:
        """See `Part`."""
        await self._server.start()

    async def stop(self, grace: float) -> bool:
        """See `Part`."""
        return await self._server.stop(grace)

    async def ended(self) -> None:
        """See `Part`."""
        await self._server.ended()

    def detail(self) -> Mapping[str, Any]:
        """See `Part`."""
        return {"address": self.address, "requests": self._server.requests}

    def readings(self) -> Sequence[Reading]:
        """See `Part`. The middleware in front of the routes counts the answers."""
        return ()
