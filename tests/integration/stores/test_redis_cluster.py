"""Redis Cluster: every lock at its node, slots that move while leases are held, and a primary that fails."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.cluster

import holdfast
from holdfast.errors import BadInput, Unavailable
from holdfast.stores.redis.slots import SLOTS, slot_of, tag_of
from holdfast.types import MS, NS, Busy, Grant
from support.fixtures.redis import Play
from support.harness.redis_requests import SOON, ask, renewal, take
from support.load.processes import until
from support.servers.redis import RedisExecutable, redis_executables
from support.servers.redis_cluster import RedisClusterServers, start_cluster

pytestmark = [pytest.mark.server, pytest.mark.slow]
EXECUTABLES = [each for each in redis_executables() if each.product == "valkey"][-1:] + [
    each for each in redis_executables() if each.product == "redis"
][:1]


@pytest.fixture(scope="module", params=EXECUTABLES, ids=str)
def cluster(request: pytest.FixtureRequest) -> Iterator[RedisClusterServers]:
    with start_cluster(request.param) as started:
        yield started


def name() -> str:
    return f"job:{secrets.token_hex(4)}"


def counter(key: str) -> str:
    return f"holdfast:slot-fence:{{{tag_of(slot_of(key))}}}"


def test_every_lock_lies_at_its_node_with_the_counter_of_its_slot(cluster: RedisClusterServers, play: Play) -> None:
    async def scenario(store: Any) -> None:
        for _ in range(12):
            grant = await take(store, name())
            owner = cluster.owner(slot_of(grant.key))
            assert owner.cli("GET", grant.key).split(" ")[-2] == str(grant.fence)
            assert int(owner.cli("GET", counter(grant.key)).partition(".")[0]) >= grant.fence
            assert isinstance(await store.acquire(ask(grant.key), SOON), Busy)

    play(cluster.url, scenario)


def test_many_locks_are_taken_renewed_listed_and_released_over_all_nodes(
    cluster: RedisClusterServers, play: Play
) -> None:
    prefix = f"many-{secrets.token_hex(4)}:"

    async def scenario(store: Any) -> None:
        asks = [ask(f"{prefix}{number:03}") for number in range(60)]
        grants = await store.acquire_many(asks, SOON)
        assert {type(each) for each in grants} == {Grant}
        assert {cluster.owner(slot_of(each.key)).port for each in grants} == {each.port for each in cluster.primaries}
        assert {type(each) for each in await store.acquire_many([ask(each.key) for each in grants], SOON)} == {Busy}
        stolen = renewal(grants[0])._replace(token="0" * 32, claim="")
        answers = await store.renew_many([stolen, *map(renewal, grants[1:])], SOON)
        assert answers == [False, *[True] * 59]
        found = await store.holdings(prefix, 25, SOON, after=f"{prefix}009")
        assert [each.key for each in found] == [f"{prefix}{number:03}" for number in range(10, 35)]
        assert await store.release_many(grants, SOON) == [True] * 60
        assert await store.release_many(grants[:3], SOON) == [False] * 3
        assert await store.holdings(prefix, 25, SOON) == []

    play(cluster.url, scenario)


def test_forced_releases_of_all_slots_are_one_audit(cluster: RedisClusterServers, play: Play) -> None:
    async def scenario(store: Any) -> None:
        keys = [name() for _ in range(5)]
        for key in keys:
            await take(store, key)
            assert (await store.force_release(key, "ada", "a test", SOON)).key == key
        assert [each.key for each in await store.audit(5, SOON)] == keys[::-1]

    play(cluster.url, scenario)


def test_a_slot_moves_while_its_lease_is_held_and_fences_go_on_rising(cluster: RedisClusterServers, play: Play) -> None:
    async def scenario(store: Any) -> None:
        grant = await take(store, name())
        slot = slot_of(grant.key)
        target = cluster.other(cluster.owner(slot))
        source = cluster.begin_to_move(slot, target)
        assert await store.renew_many([renewal(grant)], SOON) == [True]  # still at its node
        cluster.move_keys(slot, source, target, only=grant.key)
        assert await store.renew_many([renewal(grant)], SOON) == [True]  # ASK: at the other already
        cluster.move_keys(slot, source, target)
        assert isinstance(await store.acquire(ask(grant.key), SOON), Busy)
        cluster.end_move(slot, source, target)
        assert await store.renew_many([renewal(grant)], SOON) == [True]  # MOVED
        assert target.cli("GET", grant.key).endswith(grant.token)
        assert await store.release(grant.key, grant.token, grant.claim, 0, SOON)
        again = await take(store, grant.key)
        assert again.fence > grant.fence
        assert int(target.cli("GET", counter(grant.key)).partition(".")[0]) >= again.fence

    play(cluster.url, scenario)


def test_a_free_key_of_a_moving_slot_is_granted_when_the_move_ends_and_not_twice(
    cluster: RedisClusterServers, play: Play
) -> None:
    async def scenario(store: Any) -> None:
        first = await take(store, name())  # so that there is a counter
        assert await store.release(first.key, first.token, first.claim, 0, SOON)
        slot = slot_of(first.key)
        target = cluster.other(cluster.owner(slot))
        source = cluster.begin_to_move(slot, target)
        with pytest.raises(Unavailable, match=rf"slot {slot} is moving"):
            await store.acquire(ask(first.key), 150 * MS)
        assert first.key not in source.cli("CLUSTER", "GETKEYSINSLOT", slot, 1000)

        def end() -> None:
            cluster.move_keys(slot, source, target)
            cluster.end_move(slot, source, target)

        ending = threading.Timer(0.1, end)
        ending.start()
        again = await take(store, first.key)
        ending.join()
        assert again.fence > first.fence

    play(cluster.url, scenario)


def test_waiters_get_the_lock_of_a_slot_that_moved(cluster: RedisClusterServers) -> None:
    key = name()
    with holdfast.connect(cluster.url) as locks, holdfast.connect(cluster.url) as others:
        lease = locks.lock(key, ttl=120).acquire(timeout=30)
        fences: list[int] = []

        def wait() -> None:
            with others.lock(key, ttl=120).acquire(timeout=100) as mine:
                fences.append(mine.fence)

        async def wait_too() -> None:
            async with (
                holdfast.aio.connect(cluster.url) as awaited,
                await awaited.lock(key, ttl=120).acquire(timeout=100) as mine,
            ):
                fences.append(mine.fence)

        threads = [threading.Thread(target=wait), threading.Thread(target=lambda: asyncio.run(wait_too()))]
        for thread in threads:
            thread.start()
        until(lambda: locks.inspect(key).waiters == 2, "both wait", 30)
        slot = slot_of(key)
        cluster.move(slot, cluster.other(cluster.owner(slot)))
        lease.release()
        for thread in threads:
            thread.join(60)
        assert len(fences) == 2
        assert min(fences) > lease.fence


def test_fair_locks_and_windows_work_on_a_cluster(cluster: RedisClusterServers) -> None:
    with holdfast.connect(cluster.url) as locks:
        with locks.lock(name(), ttl=30, fair=True) as lease:
            assert lease.fence
        window = name()
        assert locks.once(window, window=3600) is not None
        assert locks.once(window, window=3600) is None


def test_a_url_of_one_node_says_that_it_is_a_cluster(cluster: RedisClusterServers, play: Play) -> None:
    async def scenario(store: Any) -> None:
        elsewhere = next(key for key in iter(name, "") if cluster.owner(slot_of(key)) is not cluster.primaries[0])
        with pytest.raises(holdfast.Misconfigured, match=r"write redis\+cluster:// instead"):
            await store.acquire(ask(elsewhere), SOON)

    play(f"redis://127.0.0.1:{cluster.primaries[0].port}", scenario)


@pytest.mark.parametrize("kind", [redis.cluster.RedisCluster, redis.asyncio.RedisCluster], ids=["redis", "asyncio"])
def test_a_client_of_a_cluster_brings_its_nodes(cluster: RedisClusterServers, kind: Any) -> None:
    async def made() -> Any:
        return kind(host="127.0.0.1", port=cluster.primaries[1].port)

    client = asyncio.run(made())
    with holdfast.connect(client=client) as locks, locks.lock(name(), ttl=30) as lease:
        assert cluster.owner(slot_of(lease.key)).cli("GET", lease.key)


@pytest.mark.parametrize("executable", EXECUTABLES[:1], ids=str)
def test_a_failed_primary_is_replaced_and_leases_are_confirmed_by_its_replica(executable: RedisExecutable) -> None:
    with start_cluster(executable, replicas=True) as own:
        key = name()
        with holdfast.connect(f"{own.url}?wait_replicas=1&wait_timeout=5s") as locks:
            first = own.owner(slot_of(key))
            lease = locks.lock(key, ttl=60).acquire(timeout=30)
            renewed = locks.statistics().renewed
            first.kill()
            until(lambda: own.owner(slot_of(key)) is not first, "a replica takes over", 60)
            until(lambda: locks.statistics().renewed > renewed, "it confirms the lease", 60)
            assert lease.held
            lease.release()
            with pytest.raises(Unavailable, match="0 of 1 replicas had the lock in time, so it was released"):
                locks.lock(key, ttl=60).try_acquire()  # its replica is the primary now, and has none
        with holdfast.connect(own.url) as locks, locks.lock(key, ttl=60) as again:
            assert again.fence > lease.fence


def test_no_node_at_all_is_unavailable(play: Play) -> None:
    async def scenario(store: Any) -> None:
        with pytest.raises(Unavailable):
            await store.acquire(ask(name()), NS)

    play("redis+cluster://127.0.0.1:1,127.0.0.1:2", scenario)


def test_a_wrong_url_names_the_part() -> None:
    for url, says in (
        ("redis+cluster://a,,b", "url host: a node has no name"),
        ("redis+cluster://a,a:6379", "url host: a node is named twice"),
        ("redis+cluster://a/1", "url db: a cluster has database 0 only"),
        ("redis+cluster://a?nonsense=1", "url option"),
    ):
        with pytest.raises(BadInput, match=says):
            holdfast.connect(url)


def test_the_tag_of_a_slot_is_the_smallest_number_in_it() -> None:
    assert (slot_of("123456789"), slot_of("{user}.a"), slot_of("a{}b"), slot_of("{}")) == (
        12739,
        slot_of("user"),
        slot_of("a{}b"),
        15257,
    )
    assert slot_of("foo") == 12182
    for slot in (0, 1, 8000, SLOTS - 1):
        tag = tag_of(slot)
        assert slot_of(f"holdfast:slot-fence:{{{tag}}}") == slot
        assert all(slot_of(str(number)) != slot for number in range(int(tag)))
