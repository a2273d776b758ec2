"""Binds a port before anything else is opened, so that an accidental second process fails immediately."""

from __future__ import annotations

import errno
import importlib.util
import socket
from typing import Final, NamedTuple

from holdfast.errors import BadInput

BACKLOG: Final = 512
_NEEDED: Final = ("fastapi", "uvicorn")


class ListenAddress(NamedTuple):
    """Where to listen, and the names of the flags for it."""

    host: str
    port: int
    host_flag: str
    port_flag: str
    otherwise: str  # the alternative


def http_missing() -> tuple[str, ...]:
    """The missing packages of an HTTP server. Imports nothing."""
    return tuple(name for name in _NEEDED if importlib.util.find_spec(name) is None)


def check_http(what: str, otherwise: str) -> None:
    """Return if an HTTP server is possible, else raise `BadInput` with the packages to install."""
    missing = http_missing()
    if missing:
        fix = f'pip install "holdfast[plane]", or {otherwise}'
        raise BadInput(what, f"needs {' and '.join(missing)}, which is not installed", fix)


def listen(wish: ListenAddress) -> socket.socket:
    """Bind the port, or raise `BadInput` with the likely cause and the fix."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            wish.host, wish.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        problem = f"{wish.host!r:.80} is not an address ({reason})"
        raise BadInput(wish.host_flag, problem, "use 127.0.0.1 or a name") from None
    ours = socket.socket(family, kind, protocol)
    try:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours.bind(address)
        ours.listen(BACKLOG)
    except OSError as error:
        ours.close()
        raise _taken(wish, error) from None
    return ours


def address_of(ours: socket.socket) -> str:
    """The URL for a browser."""
    host, port = ours.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    everywhere = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - what it is called, not where we bind
    return f"http://{everywhere.get(shown, shown)}:{port}"


def _taken(wish: ListenAddress, error: OSError) -> BadInput:
    port = wish.port
    if error.errno == errno.EADDRINUSE:
        fix = f"use --{wish.port_flag} {port + 1}, or --{wish.port_flag} 0 for any; {wish.otherwise}"
        return BadInput(wish.port_flag, f"{port} is in use, perhaps by another holdfast up", fix)
    if error.errno == errno.EACCES:
        return BadInput(
            wish.port_flag, f"{port} needs permissions that this user does not have", "use one from 1024 on"
        )
    problem = f"{wish.host!r:.80} is not usable as a listening address ({error.strerror})"
    return BadInput(wish.host_flag, problem, "use an address of this host")
