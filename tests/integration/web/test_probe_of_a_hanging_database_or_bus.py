"""Postgres or NATS that hangs instead of refusing: readiness says which in time, and liveness requests no restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import pytest_asyncio

from holdfast.plane.process.components import open_components
from holdfast.plane.process.health import CHECK_LIMIT_S, ProcessHealth
from holdfast.plane.settings.settings import Settings
from holdfast.testing.proxy import FaultProxy
from holdfast.web.app import create_probe
from holdfast.web.middleware.auth import Access
from support.servers.nats import NatsServer, own_stream

pytestmark = pytest.mark.asyncio


class Probed:
    """The probe of a process whose database and bus are behind proxies."""

    def __init__(self, client: httpx.AsyncClient, process_health: ProcessHealth, ways: dict[str, FaultProxy]) -> None:
        self._client = client
        self.process_health = process_health
        self.ways = ways

    async def ready(self) -> tuple[int, dict[str, str]]:
        answer = await self._client.get("/readyz")
        return answer.status_code, answer.json()["parts"]

    async def alive(self) -> int:
        return (await self._client.get("/healthz")).status_code


@pytest_asyncio.fixture
async def probed(postgres_url: str, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Probed]:
    there = urlsplit(postgres_url)
    (folder,) = parse_qs(there.query)["host"]
    with ExitStack() as stack:
        database = stack.enter_context(FaultProxy(f"{folder}/.s.PGSQL.5432"))
        bus = stack.enter_context(FaultProxy(nats_server.port))
        settings = Settings(
            database=f"postgresql://postgres@127.0.0.1:{database.port}{there.path}",
            bus=own_stream(nats_server).replace(f":{nats_server.port}", f":{bus.port}"),
            leases=f"sqlite:///{tmp_path}/leases.db",
        )
        async with open_components(settings) as components:
            process_health = ProcessHealth(components.service)
            app = create_probe(process_health, Access.bound_to("127.0.0.1"))
            transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
                yield Probed(client, process_health, {"database": database, "bus": bus})
            for way in (database, bus):
                way.resume()


@pytest.mark.parametrize("hanging", ["database", "bus"])
async def test_readiness_names_what_hangs_within_its_limit_and_liveness_does_not_care(
    probed: Probed, hanging: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await probed.ready() == (200, {"database": "ok", "bus": "ok", "leases": "ok"})
    probed.ways[hanging].stall("to_server")
    probed.ways[hanging].stall("to_client")
    async with asyncio.timeout(10 * CHECK_LIMIT_S):
        status, parts = await probed.ready()
        assert (status, parts[hanging], parts["leases"]) == (503, "no answer in time", "ok")
        assert parts["database"] == "ok" or hanging == "database", "what hangs does not hold up the others"
        assert hanging == "bus" or parts["bus"] in {"ok", "not checked: it needs the database"}, "it is innocent"
        assert await probed.alive() == 200, "a restart would not cure it"
        asked = {each.source: each.values for each in await probed.process_health.asked(jobs=True)}
        assert (asked["jobs"]["live"] is None) == (hanging == "database"), "metrics are told without the jobs and runs"
        assert asked["dependency"]["up"] == {**dict.fromkeys(("database", "bus", "leases"), 1), hanging: 0} or (
            hanging == "database"  # which the bus of this process needs
        )
        assert "query cancellation failed" not in caplog.text, "who asks does not wait until the driver has given up"
    probed.ways[hanging].resume()
    async with asyncio.timeout(60):
        status, _ = await probed.ready()
        while status != 200:
            status, _ = await probed.ready()
