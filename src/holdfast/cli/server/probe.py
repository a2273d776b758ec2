"""The probe of a process without the API: health, readiness and metrics, during the whole life of the process.

Its port is bound before anything is opened, and closed after everything else: during a drain the probe still answers.
Nothing here is imported unless a probe is wanted: a worker works without an HTTP server.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.cli.server.bind import ListenAddress, address_of, check_http, listen
from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.settings.settings import Settings

if TYPE_CHECKING:
    from holdfast.web.middleware.auth import Access

GRACE_S: Final = 1.0
OTHERWISE: Final = "--no-probe disables it"


class Probe:
    """One probe with its port."""

    def __init__(self, ours: socket.socket, access: Access) -> None:
        self.address = address_of(ours)
        self._socket = ours
        self._access = access

    @asynccontextmanager
    async def serving(self, process_health: ProcessHealth) -> AsyncIterator[None]:
        """Answer requests while the block runs."""
        from holdfast.cli.server.http_server import HttpServer
        from holdfast.web.app import create_probe

        server = HttpServer(create_probe(process_health, self._access), self._socket)
        await server.start()
        try:
            yield
        finally:
            await server.stop(GRACE_S)


def wanted(settings: Settings, *, api: bool) -> bool:
    """Whether to open a probe. The API has the same routes, so beside it a probe needs an explicit port."""
    return settings.probe.enabled and (not api or settings.origin("probe.port").kind != "default")


@contextmanager
def opened(settings: Settings, *, api: bool = False) -> Iterator[Probe | None]:
    """Bind the port of the probe, if wanted, while the block runs."""
    if not wanted(settings, api=api):
        yield None
        return
    check_http("probe", OTHERWISE)
    from holdfast.cli.server.http_server import access_for

    chosen = settings.probe
    access = access_for(chosen.host, settings.api.tokens)
    with contextlib.closing(
        listen(ListenAddress(chosen.host, chosen.port, "probe-host", "probe-port", OTHERWISE))
    ) as ours:
        yield Probe(ours, access)
