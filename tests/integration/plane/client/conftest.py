"""Planes as a user starts them, and clients of each transport in both colors."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast.plane import BlockingResourceLease, Client
from holdfast.plane.client.blocking import BlockingClient, BlockingJobHandle, BlockingRunHandle
from support.cli.planes import Up
from support.cli.sessions import Shell
from support.fixtures.fleet import ON_SERVERS, skip_without_servers
from support.servers.nats import NatsExecutable, NatsServer, nats_executables, own_stream
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables
from support.source_tree import ROOT

SETTINGS = """
{places}

[api]
port = 0

[worker]
app = "support.client_app:app"
count = 1
heartbeat = 0.2
cancel_grace = 1

[replayer]
interval = 1
"""


@dataclass(frozen=True)
class ClientPlane:
    """How clients reach a running plane."""

    config: Path  # its settings
    database: str
    address: str  # of its API

    def where(self, transport: str) -> dict[str, Any]:
        """The arguments of a client."""
        return {"plane": self.address} if transport == "http" else {"config": self.config}


@contextmanager
def started(directory: Path, database: str, places: str) -> Iterator[ClientPlane]:
    shell = Shell(directory)
    (directory / "holdfast.toml").write_text(SETTINGS.format(places=places))
    shell.environment = lambda **extra: {  # type: ignore[method-assign]
        **Shell.environment(shell, **extra),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
    }
    up = Up(shell)
    try:
        yield ClientPlane(directory / "holdfast.toml", database, up.address)
        assert up.end(signal.SIGTERM).code == 0
    finally:
        shell.close()


@pytest.fixture(scope="session")
def plane_on_a_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientPlane]:
    directory = tmp_path_factory.mktemp("plane")
    url = f"sqlite:///{directory}/plane.db?synchronous=normal"
    with started(directory, url, f'database = "{url}"') as plane:
        yield plane


@pytest.fixture(scope="session")
def plane_on_servers(
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
    nats_servers: Callable[[NatsExecutable], NatsServer],
) -> Iterator[ClientPlane]:
    skip_without_servers(str(ON_SERVERS.values[0]))
    leases: str = request.getfixturevalue("_fleet_leases")
    with _postgres_servers(postgres_executables()[-1]).database() as database:
        bus = own_stream(nats_servers(nats_executables()[-1]))
        places = f'database = "{database}"\nbus = "{bus}"\nleases = "{leases}"'
        with started(tmp_path_factory.mktemp("plane"), database, places) as plane:
            yield plane


@pytest.fixture(scope="session")
def plane_on_postgres(
    tmp_path_factory: pytest.TempPathFactory,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
) -> Iterator[ClientPlane]:
    """A plane that has its state, its messages and its leases in one Postgres."""
    with (
        _postgres_servers(postgres_executables()[-1]).database() as database,
        started(tmp_path_factory.mktemp("plane"), database, f'database = "{database}"') as plane,
    ):
        yield plane


POSTGRES = [str(each) for each in postgres_executables()[-1:]]
STACKS = {"sqlite": "plane_on_a_file", "http": "plane_on_a_file", **dict.fromkeys(POSTGRES, "plane_on_postgres")}

TRANSPORTS = [
    pytest.param("sqlite", id="sqlite"),
    *(pytest.param(each, id=each, marks=pytest.mark.server) for each in POSTGRES),
    ON_SERVERS,
    pytest.param("http", id="http"),
]


@pytest.fixture(params=TRANSPORTS)
def where(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of a client, for each transport."""
    plane: ClientPlane = request.getfixturevalue(STACKS.get(request.param, "plane_on_servers"))
    return plane.where(request.param)


@pytest_asyncio.fixture(params=["asyncio", "blocking"])
async def client(request: pytest.FixtureRequest, where: dict[str, Any]) -> AsyncIterator[Any]:
    """A client of each transport in both colors, with the methods of `Client`."""
    if request.param == "asyncio":
        async with Client(**where) as made:
            yield made
        return
    blocking = Client.blocking(**where)
    await asyncio.to_thread(blocking.open)
    try:
        yield InThreads(blocking)
    finally:
        await asyncio.to_thread(blocking.close)


class InThreads:
    """A blocking object, each call of which is awaited in a thread: one test serves both colors."""

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._blocking, name)
        if name == "lost":
            return InThreads(found)
        if not callable(found) or name in ("ensure_held", "remaining", "is_set"):  # local in both colors
            return found
        if name in ("job", "run", "resource"):  # without I/O in both colors
            return lambda *given, **named: InThreads(found(*given, **named))
        if name == "events":
            return lambda: _in_threads(found())

        async def call(*given: Any, **named: Any) -> Any:
            answer = await asyncio.to_thread(found, *given, **named)
            if isinstance(answer, list):
                return [InThreads(each) if _is_handle(each) else each for each in answer]
            return InThreads(answer) if _is_handle(answer) else answer

        return call


async def _in_threads(items: Iterator[Any]) -> AsyncIterator[Any]:
    while (item := await asyncio.to_thread(next, items, None)) is not None:
        yield item


def _is_handle(answer: object) -> bool:
    return isinstance(answer, BlockingClient | BlockingJobHandle | BlockingRunHandle | BlockingResourceLease)
