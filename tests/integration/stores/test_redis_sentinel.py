"""Redis Sentinel: the primary is found, followed through failovers, and a lease that a failover lost is noticed."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import holdfast
from holdfast.errors import BadInput, Misconfigured, Unavailable
from holdfast.stores.redis.engine import open_engine
from holdfast.types import NS, Grant
from support.fixtures.redis import Play, StartRedis
from support.harness.redis_requests import SOON, ask
from support.load.processes import until
from support.servers.redis import RedisExecutable, RedisServer, free_port, redis_executables, start_redis
from support.servers.sentinel import SERVICE, SentinelDeployment, in_sync, role, start_sentinels

pytestmark = [pytest.mark.server, pytest.mark.slow]

EXECUTABLES = [each for each in redis_executables() if each.product == "valkey"][-1:] + [
    each for each in redis_executables() if each.product == "redis"
][-1:]
MOVE_S = 60.0
NAMESPACE = "holdfast"
LONG_S = 600  # a renewal is due after 200 s, so whatever is noticed sooner was not noticed by a usual renewal


@pytest.fixture(scope="session", params=EXECUTABLES, ids=str)
def sentinel_executable(request: pytest.FixtureRequest) -> RedisExecutable:
    executable: RedisExecutable = request.param
    return executable


@pytest.fixture
def deployment(sentinel_executable: RedisExecutable) -> Iterator[SentinelDeployment]:
    with start_sentinels(sentinel_executable) as started:
        yield started


def name() -> str:
    return f"job:{secrets.token_hex(4)}"


@pytest.mark.parametrize("end", [RedisServer.kill, RedisServer.pause], ids=["killed", "stopped"])
def test_a_replicated_lease_survives_the_loss_of_the_primary(deployment: SentinelDeployment, end: Any) -> None:
    first, key = deployment.primary(), name()
    with (
        holdfast.connect(f"{deployment.url}?wait_replicas=2&wait_timeout=5s") as locks,
        holdfast.connect(deployment.url) as others,
    ):
        lease = locks.lock(key, ttl=LONG_S).acquire(timeout=30)
        renewed = locks.statistics().renewed
        end(first)
        second = deployment.wait_for_primary_after(first)
        until(lambda: locks.statistics().renewed > renewed, "the new primary confirms the lease", MOVE_S)
        assert lease.held
        assert second.cli("GET", key).startswith(lease.owner)
        until(lambda: others.lock(key).try_acquire() is None, "the lock is seen to be taken", MOVE_S)
        if first.process is not None:
            first.resume()
            until(lambda: role(first) == "slave", "the former primary follows", MOVE_S)
            assert others.lock(key).try_acquire() is None
        lease.release()
        again = others.lock(key, ttl=LONG_S).acquire(timeout=30)
        assert again.fence > lease.fence
        again.release()


def test_a_lease_that_no_replica_has_is_lost_at_the_failover_and_not_at_the_next_renewal(
    deployment: SentinelDeployment,
) -> None:
    first, key = deployment.primary(), name()
    with holdfast.connect(deployment.url) as locks, holdfast.connect(deployment.url) as others:
        before = locks.lock(name(), ttl=LONG_S).acquire(timeout=30)
        until(lambda: in_sync(first) == 2, "the replicas have the lease")
        replicas = deployment.replicas()
        for replica in replicas:
            replica.pause()
        first.cli("CLIENT", "KILL", "TYPE", "replica")  # else the kernel keeps the next writes for them
        lease = locks.lock(key, ttl=LONG_S).acquire(timeout=30)
        first.kill()
        for replica in replicas:
            replica.resume()
        deployment.wait_for_primary_after(first)
        assert lease.lost.wait(MOVE_S)
        assert lease.lost.reason == holdfast.LossReason.STOLEN
        assert before.held  # the replicas had this one
        again = others.lock(key, ttl=LONG_S).acquire(timeout=30)
        assert again.fence > lease.fence
        again.release()
        before.release()


def test_a_task_follows_a_failover_too(deployment: SentinelDeployment) -> None:
    first, key = deployment.primary(), name()

    async def main() -> None:
        async with holdfast.aio.connect(f"{deployment.url}?wait_replicas=2&wait_timeout=5s") as locks:
            lease = await locks.lock(key, ttl=LONG_S).acquire(timeout=30)
            first.kill()
            await asyncio.to_thread(deployment.wait_for_primary_after, first)
            await asyncio.to_thread(until, lambda: locks.statistics().renewed > 0, "the new primary confirms", MOVE_S)
            assert lease.held
            await lease.release()
        async with holdfast.aio.connect(deployment.url) as others:
            again = await others.lock(key, ttl=LONG_S).acquire(timeout=30)
            assert again.fence > lease.fence
            await again.release()

    asyncio.run(main())


def test_a_demoted_primary_is_left_and_the_request_repeated(deployment: SentinelDeployment, play: Play) -> None:
    first = deployment.primary()

    async def scenario(store: Any) -> None:
        assert isinstance(await store.acquire(ask(name()), SOON), Grant)
        deployment.sentinels[0].cli("SENTINEL", "FAILOVER", SERVICE)
        deployment.wait_for_primary_after(first)
        until(lambda: role(first) == "slave", "the former primary follows", MOVE_S)
        assert isinstance(await store.acquire(ask(name()), SOON), Grant)

    play(deployment.url, scenario)


@pytest.mark.parametrize("kind", ["redis", "redis.asyncio"])
def test_a_client_made_by_a_sentinel_brings_its_sentinels(deployment: SentinelDeployment, kind: str) -> None:
    module: Any = redis if kind == "redis" else redis.asyncio
    hosts = [("127.0.0.1", each.port) for each in deployment.sentinels]
    manager = module.sentinel.Sentinel(hosts, socket_timeout=5)
    first, key = deployment.primary(), name()
    with holdfast.connect(client=manager.master_for(SERVICE)) as locks:
        locks.lock(key, ttl=LONG_S).acquire(timeout=30).release()
        until(lambda: in_sync(first) == 2, "the replicas have the release, too")  # else the failover may undo it
        first.kill()
        second = deployment.wait_for_primary_after(first)
        locks.lock(key, ttl=LONG_S).acquire(timeout=30).release()
        assert second.cli("GET", f"{NAMESPACE}:fence")
    with pytest.raises(BadInput, match=r"client: reads from replicas; give the client of `Sentinel.master_for`"):
        holdfast.connect(client=manager.slave_for(SERVICE))


def test_sentinels_that_hang_or_are_gone_are_passed_over(deployment: SentinelDeployment, play: Play) -> None:
    deployment.sentinels[0].pause()
    deployment.sentinels[1].kill()

    async def scenario(store: Any) -> None:
        assert isinstance(await store.acquire(ask(name()), 5 * NS), Grant)

    play(deployment.url, scenario)


def test_a_name_that_no_sentinel_monitors_is_unavailable_with_the_fix(
    deployment: SentinelDeployment, play: Play
) -> None:
    async def scenario(store: Any) -> None:
        with pytest.raises(
            Unavailable, match=r"no Sentinel knows a primary 'unknown' now .*the name that `sentinel monitor`"
        ):
            await store.ping(SOON)

    play(deployment.url.replace(SERVICE, "unknown"), scenario)


def test_no_sentinel_at_all_is_unavailable(play: Play) -> None:
    async def scenario(store: Any) -> None:
        with pytest.raises(Unavailable, match=r"no Sentinel of 'leases' answered \(127.0.0.1:\d+, 127.0.0.1:\d+\)"):
            await store.ping(SOON)

    play(f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/leases", scenario)


def test_a_server_that_is_no_sentinel_is_a_permanent_error(play: Play, redis_server: RedisServer) -> None:
    async def scenario(store: Any) -> None:
        with pytest.raises(Misconfigured, match="SENTINEL"):
            await store.ping(SOON)

    play(f"redis+sentinel://127.0.0.1:{redis_server.port}/leases", scenario)


def test_an_acquire_without_enough_replicas_is_undone(own_redis: StartRedis, play: Play) -> None:
    primary = own_redis(args=["--repl-diskless-sync-delay", "0"])
    with start_redis(primary.executable, args=["--replicaof", "127.0.0.1", str(primary.port)]) as replica:
        until(lambda: in_sync(primary) == 1, "the replica follows")

        async def scenario(store: Any) -> None:
            granted = ask(name())
            assert isinstance(await store.acquire(granted, SOON), Grant)
            assert replica.cli("GET", granted.key)
            refused = ask(name())
            replica.pause()
            with pytest.raises(Unavailable, match="0 of 1 replicas had the lock in time, so it was released"):
                await store.acquire(refused, SOON)
            assert primary.cli("EXISTS", refused.key) == 0
            assert primary.cli("EXISTS", granted.key) == 1
            replica.resume()
            until(lambda: in_sync(primary) == 1, "the replica follows")
            assert [type(each) for each in await store.acquire_many([ask(name()), ask(name())], SOON)] == [Grant] * 2

        play(f"{primary.url}?wait_replicas=1&wait_timeout=3s", scenario)


def test_an_engine_that_is_closed_leaves_no_thread(deployment: SentinelDeployment) -> None:
    engine = open_engine(deployment.url)
    with holdfast.connect(engine=engine) as locks:
        locks.ping()
        until(lambda: any(each.name == "holdfast-sentinel" for each in threading.enumerate()), "it listens")
    assert not any(each.name == "holdfast-sentinel" for each in threading.enumerate())
