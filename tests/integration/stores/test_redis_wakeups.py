"""A waiter hears of a release: across engines and colors, after a reconnect, and never by anything it must trust."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from holdfast.core.ports import Store
from holdfast.errors import Unavailable
from holdfast.runtime.run_sync import run_now
from holdfast.stores.redis import sync_subscriber
from holdfast.stores.redis.engine import RedisEngine, open_engine
from holdfast.types import MS, NS
from support.fixtures.redis import Play, StartRedis
from support.harness.redis_requests import SOON, give_back, meet, take
from support.servers.redis import RedisServer

pytestmark = pytest.mark.server


@pytest.fixture
def other(redis_url: str) -> Iterator[RedisEngine]:
    """Another process, as far as the server can tell."""
    engine = open_engine(redis_url)
    yield engine
    engine.close()


def test_a_release_elsewhere_wakes_the_waiter(play: Play, redis_url: str, other: RedisEngine) -> None:
    async def scenario(store: Store) -> None:
        grant = run_now(take(other.blocking, "job"))
        run_now(take(other.blocking, "unrelated"))
        watch = await store.watch("job")
        deaf = await store.watch("unrelated")
        assert not await watch.wait(MS)
        run_now(give_back(other.blocking, grant))
        assert await watch.wait(SOON)
        assert await watch.wait(MS)  # it is still free
        run_now(take(other.blocking, "job"))
        assert not await watch.wait(MS)
        assert not await deaf.wait(MS)
        await watch.close()
        await watch.close()
        await deaf.close()

    play(redis_url, scenario)


@pytest.mark.parametrize("how", ["forced", "kept", "left"])
def test_every_way_to_free_a_key_wakes_the_waiter(play: Play, redis_url: str, other: RedisEngine, how: str) -> None:
    async def scenario(store: Store) -> None:
        grant = run_now(take(other.blocking, "job", ticket="holder"))
        if how == "left":
            run_now(meet(other.blocking, "job", ticket="head"))
            run_now(give_back(other.blocking, grant))
        watch = await store.watch("job")
        if how == "left":
            await meet(store, "job", ticket="behind")
        else:
            assert not await watch.wait(MS)  # it is queued now
        if how == "forced":
            assert run_now(other.blocking.force_release("job", "ops", "why", SOON)) is not None
        elif how == "kept":
            assert run_now(other.blocking.release("job", grant.token, grant.claim, NS, SOON))
        else:
            run_now(other.blocking.leave("job", "head", SOON))
        assert await watch.wait(SOON)
        await watch.close()

    play(redis_url, scenario)


def test_hints_between_two_waits_are_not_lost(play: Play, redis_url: str, other: RedisEngine) -> None:
    async def scenario(store: Store) -> None:
        watch = await store.watch("job")
        for _ in range(3):
            run_now(give_back(other.blocking, run_now(take(other.blocking, "job"))))
            assert await watch.wait(SOON)
        await watch.close()

    play(redis_url, scenario)


def test_those_who_listen_are_counted_and_those_who_stopped_are_not(play: Play, redis_url: str) -> None:
    async def scenario(store: Store) -> None:
        await take(store, "job")
        watches = [await store.watch("job") for _ in range(3)]
        assert await _waiters(store) == 0
        for count, watch in enumerate(watches, 1):
            assert not await watch.wait(MS)
            assert await _waiters(store) == count
        for count, watch in enumerate(watches, 1):
            await watch.close()
            assert await _waiters(store) == 3 - count

    play(redis_url, scenario)


async def _waiters(store: Store) -> int:
    holding = await store.inspect("job", SOON)
    assert holding is not None
    return holding.waiters


def test_a_waiter_that_comes_back_listens_again(play: Play, redis_url: str, other: RedisEngine) -> None:
    async def scenario(store: Store) -> None:
        for n in range(30):
            watch = await store.watch(f"job:{n % 3}")
            run_now(give_back(other.blocking, run_now(take(other.blocking, f"job:{n % 3}"))))
            assert await watch.wait(SOON)
            await watch.close()

    play(redis_url, scenario)


def test_a_lost_connection_wakes_the_waiter_and_listening_goes_on(play: Play, own_redis: StartRedis) -> None:
    server = own_redis()

    async def scenario(store: Store) -> None:
        watch = await store.watch("job")
        server.restart()
        assert await watch.wait(SOON)  # something may have been missed
        engine = open_engine(server.url)
        try:
            for _ in range(2):
                grant = run_now(take(engine.blocking, "job"))
                while await watch.wait(MS) or not server.cli("PUBSUB", "CHANNELS", "holdfast:ear:*"):
                    pass  # the hints of coming back
                assert server.cli("ZCARD", "holdfast:ears:{job}") == 1
                run_now(give_back(engine.blocking, grant))
                assert await watch.wait(SOON)
        finally:
            engine.close()
        await watch.close()

    play(server.url, scenario)


def test_a_waiter_is_woken_when_the_connection_is_lost_and_again_when_it_is_back(
    play: Play, own_redis: StartRedis
) -> None:
    server = own_redis()

    async def scenario(store: Store) -> None:
        watch = await store.watch("job")
        server.kill()
        assert await watch.wait(SOON)
        server.start()
        assert await watch.wait(SOON)
        await watch.close()

    play(server.url, scenario)


def test_waiting_while_the_server_is_away_sleeps_and_does_not_raise(play: Play, own_redis: StartRedis) -> None:
    server = own_redis()

    async def scenario(store: Store) -> None:
        watch = await store.watch("job")
        server.kill()
        assert await watch.wait(SOON)
        assert not await watch.wait(20 * MS)
        with pytest.raises(Unavailable):
            await store.watch("other")
        await watch.close()
        server.start()

    play(server.url, scenario)


def test_many_tasks_share_one_listening_connection(
    redis_server: RedisServer, redis_url: str, other: RedisEngine
) -> None:
    async def main() -> None:
        store = open_engine(redis_url).asynchronous()
        watches = await asyncio.gather(*[store.watch(f"job:{n % 10}") for n in range(200)])
        assert run_now(other.blocking.release("x", "y", None, 0, SOON)) is False
        grants = [run_now(take(other.blocking, f"job:{n}")) for n in range(10)]
        run_now(give_back(other.blocking, grants[3]))
        heard = await asyncio.gather(*[watch.wait(SOON if n % 10 == 3 else MS) for n, watch in enumerate(watches)])
        assert heard == [n % 10 == 3 for n in range(200)]
        for watch in watches:
            await watch.close()
        await store.close()

    asyncio.run(main())


def test_a_subscription_that_is_closed_and_opened_again_immediately_is_notified(
    redis_url: str, other: RedisEngine
) -> None:
    async def main() -> None:
        store = open_engine(redis_url).asynchronous()
        for _ in range(30):
            hasty = asyncio.create_task(store.watch("job"))
            await asyncio.sleep(0)
            hasty.cancel()
            watch = await store.watch("job")
            run_now(give_back(other.blocking, run_now(take(other.blocking, "job"))))
            assert await watch.wait(SOON)
            await watch.close()
            await asyncio.wait([hasty])
        await store.close()

    asyncio.run(main())


def test_beyond_the_bound_a_blocking_waiter_is_told_to_poll(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_subscriber, "SUBSCRIPTIONS_MAX", 3)
    engine = open_engine(redis_url)
    watches = [run_now(engine.blocking.watch(f"job:{n}")) for n in range(3)]
    with pytest.raises(Unavailable, match="poll"):
        run_now(engine.blocking.watch("one more"))
    for watch in watches:
        run_now(watch.close())
    run_now(run_now(engine.blocking.watch("one more")).close())
    engine.close()


def test_threads_hear_each_other(redis_url: str) -> None:
    engine = open_engine(redis_url)
    listening, heard = threading.Barrier(9), []

    def listen() -> None:
        watch = run_now(engine.blocking.watch("job"))
        listening.wait(20)
        heard.append(run_now(watch.wait(SOON)))
        run_now(watch.close())

    threads = [threading.Thread(target=listen) for _ in range(8)]
    for thread in threads:
        thread.start()
    listening.wait(20)
    run_now(give_back(engine.blocking, run_now(take(engine.blocking, "job"))))
    for thread in threads:
        thread.join(20)
    assert heard == [True] * 8
    engine.close()
