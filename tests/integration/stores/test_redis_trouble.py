"""When the server, the network or the answers go wrong: no crossed replies, no invented grants, honest errors."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast.core.ports import Store
from holdfast.errors import BackendError, Timeout, Unavailable
from holdfast.stores.redis.engine import open_engine
from holdfast.testing.proxy import FaultProxy
from holdfast.types import MS, NS, Grant, Renewal
from support.fixtures.redis import Play, StartRedis
from support.harness.redis_requests import OWNER, SOON, ask, give_back, meet, renewal, take
from support.servers.redis import RedisServer, free_port

pytestmark = pytest.mark.server
BRIEF = 150 * MS  # for requests that are meant to go unanswered


def test_a_server_that_is_not_there_is_unavailable(play: Play) -> None:
    async def scenario(store: Store) -> None:
        for call in (
            store.acquire(ask("job"), SOON),
            store.release("job", "t", None, 0, SOON),
            store.renew_many([Renewal("job", "t", "c t", NS)], SOON),
            store.ping(SOON),
            store.watch("job"),
        ):
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+"):
                await call

    play(f"redis://127.0.0.1:{free_port()}", scenario)


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".example"])
def test_a_host_name_that_cannot_exist_is_named(play: Play, host: str) -> None:
    async def scenario(store: Store) -> None:
        with pytest.raises(BackendError, match=host[:10]):
            await store.ping(SOON)

    play(f"redis://{host}", scenario)


def test_a_lost_answer_is_unknown_and_the_token_cleans_up(
    play: Play, redis_server: RedisServer, redis_url: str
) -> None:
    query = redis_url.partition("?")[2]

    async def scenario(store: Store) -> None:
        await give_back(store, await take(store, "warm"))  # so that the server knows the scripts
        lost = ask("job")
        proxy.stall("to_client")
        with pytest.raises(Timeout) as caught:
            await store.acquire(lost, BRIEF)
        assert not isinstance(caught.value, Unavailable)
        assert lost.token not in str(caught.value)
        proxy.wait_held("to_client")  # so it did take effect
        proxy.resume()
        assert await store.release("job", lost.token, None, 0, SOON)
        assert isinstance(await store.acquire(ask("job"), SOON), Grant)

    with FaultProxy(redis_server.port) as proxy:
        play(f"redis://{proxy.address}?{query}", scenario)


def test_a_request_that_hangs_ends_at_its_deadline_and_the_next_gets_its_own_answer(
    play: Play, redis_server: RedisServer, redis_url: str
) -> None:
    query = redis_url.partition("?")[2]

    async def scenario(store: Store) -> None:
        first = await take(store, "first")
        proxy.stall("to_client")
        with pytest.raises(Timeout):
            await store.inspect("first", BRIEF)
        for _ in range(3):
            with pytest.raises(BackendError):  # a new connection is not even greeted: then it is certain
                await store.inspect("first", BRIEF)
        proxy.resume()
        for n in range(20):
            grant = await take(store, f"next:{n}")
            assert grant.key == f"next:{n}"
            assert grant.token in grant.claim
        assert await give_back(store, first)

    with FaultProxy(redis_server.port) as proxy:
        play(f"redis://{proxy.address}?{query}", scenario)


def test_a_connection_cut_after_sending_is_asked_again_with_the_same_token(
    play: Play, redis_server: RedisServer, redis_url: str
) -> None:
    query = redis_url.partition("?")[2]

    async def scenario(store: Store) -> None:
        await store.ping(SOON)
        for n in range(5):
            proxy.reset()
            grant = await take(store, f"cut:{n}")
            proxy.reset()
            assert await store.renew_many([renewal(grant)], SOON) == [True]

    with FaultProxy(redis_server.port) as proxy:
        play(f"redis://{proxy.address}?{query}", scenario)


def test_a_release_whose_first_answer_was_lost_is_never_reported_as_not_owned(
    redis_server: RedisServer, redis_url: str
) -> None:
    """The first request deletes the key and its answer is cut off; the second finds nothing: was it ours?"""
    query = redis_url.partition("?")[2]

    async def main() -> None:
        with FaultProxy(redis_server.port) as proxy:
            store = open_engine(f"redis://{proxy.address}?{query}").asynchronous()
            await give_back(store, await take(store, "warm"))  # so that the server knows the scripts
            grant = await take(store, "job")
            proxy.stall("to_client")
            releasing = asyncio.create_task(store.release("job", grant.token, grant.claim, 0, SOON))
            await asyncio.to_thread(proxy.wait_held, "to_client")
            proxy.resume_after_reset()
            with pytest.raises(Timeout):
                await releasing
            assert await store.inspect("job", SOON) is None
            await store.close()

    asyncio.run(main())


def test_a_doubt_about_the_first_try_survives_a_second_that_could_not_be_sent(
    redis_server: RedisServer, redis_url: str
) -> None:
    query = redis_url.partition("?")[2]

    async def main() -> None:
        with FaultProxy(redis_server.port) as proxy:
            store = open_engine(f"redis://{proxy.address}?{query}").asynchronous()
            await give_back(store, await take(store, "warm"))  # so that the server knows the scripts
            proxy.stall("to_client")
            lost = ask("job")
            acquiring = asyncio.create_task(store.acquire(lost, SOON))
            await asyncio.to_thread(proxy.wait_held, "to_client")
            proxy.refuse()
            proxy.resume_after_reset()
            with pytest.raises(Timeout):  # and not Unavailable, which would say: certainly no effect
                await acquiring
            proxy.refuse(False)
            assert await store.release("job", lost.token, None, 0, SOON)
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(4))
def test_cancelled_tasks_never_leave_their_answers_to_others(
    redis_server: RedisServer, redis_url: str, seed: int
) -> None:
    query = redis_url.partition("?")[2]
    chance = random.Random(seed)

    async def one(store: Store, n: int) -> None:
        key = f"key:{n}"
        grant = await take(store, key)
        assert (grant.key, grant.token in grant.claim) == (key, True)
        holding = await store.inspect(key, SOON)
        assert holding is not None
        assert holding.fence == grant.fence
        assert await store.renew_many([renewal(grant), renewal(grant)._replace(key="absent")], SOON) == [True, False]
        assert await give_back(store, grant)

    async def main() -> None:
        with FaultProxy(redis_server.port) as proxy:
            proxy.slow("to_client", 0.002)
            store = open_engine(f"redis://{proxy.address}?{query}").asynchronous()
            tasks = [asyncio.create_task(one(store, n)) for n in range(300)]
            for task in chance.sample(tasks, 150):
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                if chance.random() < 0.2:
                    await asyncio.sleep(0.001)
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
            assert results.count(None) >= 150
            await store.close()

    asyncio.run(main())


def test_a_cancelled_acquire_is_undone_in_order_on_the_same_connection(
    redis_server: RedisServer, redis_url: str
) -> None:
    async def main() -> None:
        store = open_engine(redis_url).asynchronous()
        await store.ping(SOON)
        for n in range(50):
            request = ask(f"job:{n}")
            task = asyncio.create_task(store.acquire(request, SOON))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await store.release(request.key, request.token, None, 0, SOON)
            assert await store.inspect(request.key, SOON) is None
        await store.close()

    asyncio.run(main())


def test_a_server_that_comes_back_empty_refuses_the_old_lease_and_goes_on_with_the_fences(
    play: Play, own_redis: StartRedis
) -> None:
    server = own_redis()

    async def scenario(store: Store) -> None:
        before = await take(store, "job")
        server.restart(empty=True)
        assert await store.renew_many([renewal(before)], SOON) == [False]
        after = await take(store, "job")
        assert after.fence > before.fence
        assert not await give_back(store, before)
        assert await give_back(store, after)

    play(server.url, scenario)


def test_a_flush_does_not_bring_the_fences_back(play: Play, own_redis: StartRedis) -> None:
    server = own_redis()

    async def scenario(store: Store) -> None:
        fences = []
        for _ in range(20):
            fences.append((await take(store, "job")).fence)
            server.cli("FLUSHALL")
        assert fences == sorted(set(fences))

    play(server.url, scenario)


def test_a_lease_survives_a_restart_of_a_server_that_persists(play: Play, own_redis: StartRedis) -> None:
    server = own_redis(persistent=True)

    async def scenario(store: Store) -> None:
        grant = await take(store, "job", ttl_ns=60 * NS)
        server.restart(empty=False)
        assert (await meet(store, "job")).owner == OWNER
        assert await store.renew_many([renewal(grant)], SOON) == [True]
        assert await give_back(store, grant)

    play(server.url, scenario)


def test_a_paused_server_is_unknown_and_serves_again_when_it_wakes(play: Play, own_redis: StartRedis) -> None:
    server = own_redis()

    async def scenario(store: Store) -> None:
        grant = await take(store, "job")
        server.pause()
        try:
            with pytest.raises(Timeout):
                await store.renew_many([renewal(grant)], BRIEF)
        finally:
            server.resume()
        assert await store.renew_many([renewal(grant)], SOON) == [True]

    play(server.url, scenario)


def test_a_silent_connection_is_given_up_and_the_next_call_gets_a_new_one(redis_server: RedisServer) -> None:
    async def main() -> None:
        with FaultProxy(redis_server.port) as proxy:
            store = open_engine(f"redis://{proxy.address}").asynchronous()
            await store.ping(SOON)
            proxy.stall("to_client")
            with pytest.raises(Timeout):
                await store.ping(1100 * MS)
            accepted = proxy.accepted
            proxy.resume_for_new()
            await store.ping(SOON)
            assert proxy.accepted == accepted + 1
            await store.close()

    asyncio.run(main())


def test_a_primary_that_became_a_replica_is_unavailable(play: Play, own_redis: StartRedis) -> None:
    server = own_redis()

    async def scenario(store: Store) -> None:
        grant = await take(store, "job")
        server.cli("REPLICAOF", "127.0.0.1", free_port())
        with pytest.raises(Unavailable):
            await store.acquire(ask("other"), SOON)
        with pytest.raises(Unavailable):
            await store.renew_many([renewal(grant)], SOON)
        server.cli("REPLICAOF", "NO", "ONE")
        assert await give_back(store, grant)

    play(server.url, scenario)


def test_a_full_server_grants_nothing_but_lets_go_and_renews(play: Play, own_redis: StartRedis) -> None:
    server = own_redis()

    async def scenario(store: Store) -> None:
        grant, other = await take(store, "job"), await take(store, "other")
        assert await store.renew_many([renewal(other)], SOON) == [True]
        assert await give_back(store, other)
        server.cli("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Unavailable, match="cannot serve now"):
            await store.acquire(ask("new"), SOON)
        assert await store.renew_many([renewal(grant)], SOON) == [True]
        assert await give_back(store, grant)

    play(server.url, scenario)
