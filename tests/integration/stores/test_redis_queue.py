"""A release wakes one waiter, and a hint is never lost on the way: between engines, as between processes.

The floor of polling is made so long here that a hint which went missing would fail the test by its timeout.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Protocol

import pytest
import redis

import holdfast
from holdfast import aio, backoff
from holdfast.core.ports import Store
from holdfast.errors import Timeout
from holdfast.runtime.run_sync import run_now
from holdfast.stores.redis import asyncio_subscriber, sync_subscriber
from holdfast.stores.redis.engine import RedisEngine, open_engine
from holdfast.types import MS, Grant
from support.fixtures.redis import Play, StartRedis
from support.harness.redis_requests import SOON, ask, aux_name, give_back, lock_name, meet, queue_name, take

pytestmark = pytest.mark.server

KEY = "job"
TTL_S, POLL_S, PATIENCE_S = 180, 40, 30
Entered = Callable[[int], None]


class Relay(Protocol):
    """So many engines that want one key, each `turns` times, in one color. `entered` is called by the holder."""

    def __call__(self, url: str, engines: int, turns: int, entered: Entered, *, fair: bool = False) -> int: ...


def _settings(fair: bool) -> dict[str, Any]:
    return {"ttl": TTL_S, "retry": backoff.fixed(POLL_S), "timeout": PATIENCE_S, "fair": fair}


def _raw(url: str) -> Any:
    """A plain client of the server. Any: redis-py's types cover both colors."""
    return redis.Redis.from_url(url.partition("?")[0])


def _calls(url: str) -> int:
    """How many scripts the server was asked to run."""
    with _raw(url) as raw:
        return int(raw.info("commandstats")["cmdstat_evalsha"]["calls"])


def _queued(url: str) -> int:
    """How many wait for a hint."""
    with _raw(url) as raw:
        return int(raw.zcard(queue_name(url, "ears", KEY)))


def blocking_relay(url: str, engines: int, turns: int, entered: Entered, *, fair: bool = False) -> int:
    """Threads, each with an engine of its own."""
    trouble: list[BaseException] = []

    def work(locks: Any, number: int) -> None:
        try:
            for _ in range(turns):
                with locks.lock(KEY, **_settings(fair)):
                    entered(number)
        except BaseException as error:
            trouble.append(error)

    with ExitStack() as stack:
        boss = stack.enter_context(holdfast.connect(url))
        crew = [stack.enter_context(holdfast.connect(url)) for _ in range(engines)]
        first = boss.lock(KEY, **_settings(False)).acquire()
        threads = [threading.Thread(target=work, args=(locks, n)) for n, locks in enumerate(crew)]
        for n, thread in enumerate(threads, 1):
            thread.start()
            while _queued(url) < n:
                pass
        before = _calls(url)
        first.release()
        for thread in threads:
            thread.join(60)
        after = _calls(url)
    assert trouble == []
    return after - before


def asyncio_relay(url: str, engines: int, turns: int, entered: Entered, *, fair: bool = False) -> int:
    """Tasks, each with an engine of its own."""

    async def work(locks: Any, number: int) -> None:
        for _ in range(turns):
            async with locks.lock(KEY, **_settings(fair)):
                entered(number)

    async def main() -> int:
        async with AsyncExitStack() as stack, asyncio.timeout(60):
            boss = await stack.enter_async_context(aio.connect(url))
            crew = [await stack.enter_async_context(aio.connect(url)) for _ in range(engines)]
            first = await boss.lock(KEY, **_settings(False)).acquire()
            tasks = []
            for n, locks in enumerate(crew, 1):
                tasks.append(asyncio.create_task(work(locks, n - 1)))
                while _queued(url) < n:  # noqa: ASYNC110 - only the server knows
                    await asyncio.sleep(0)
            before = _calls(url)
            await first.release()
            await asyncio.gather(*tasks)
            return _calls(url) - before

    return asyncio.run(main())


@pytest.fixture(params=[blocking_relay, asyncio_relay], ids=["blocking", "asyncio"])
def relay(request: pytest.FixtureRequest) -> Relay:
    """One color, then the other."""
    chosen: Relay = request.param
    return chosen


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(redis_url: str, redis_raw: Any) -> Iterator[None]:
    yield
    left = {key.removeprefix(aux_name(redis_url, "")) for key in redis_raw.keys(f"{aux_name(redis_url, '')}*")}
    assert left <= {"fence", "audit"}
    assert redis_raw.keys(f"{lock_name(redis_url, '')}*") == []


@pytest.fixture
def other(redis_url: str) -> Iterator[RedisEngine]:
    """Another process, as far as the server can tell."""
    engine = open_engine(redis_url)
    yield engine
    engine.close()


@pytest.mark.parametrize("fair", [False, True], ids=["unfair", "fair"])
@pytest.mark.parametrize("engines", [2, 20])
def test_a_hand_over_costs_two_requests_however_many_processes_wait(
    relay: Relay, redis_url: str, engines: int, fair: bool
) -> None:
    order: list[int] = []
    asked = relay(redis_url, engines, 1, order.append, fair=fair)
    assert order == [*range(engines)]  # first come, first woken; with no caller to barge in, first served
    # Each releases once and is granted immediately, without asking in vain; and the first holder released.
    assert asked == 2 * engines + 1


def test_no_hint_goes_missing_in_hundreds_of_hand_overs_with_barging(relay: Relay, redis_url: str) -> None:
    seen: list[int] = []
    relay(redis_url, 4, 60, seen.append)
    assert sorted(seen) == sorted([*range(4)] * 60)


def test_fair_engines_take_turns_without_waiting_for_polls(relay: Relay, redis_url: str) -> None:
    seen: list[int] = []
    relay(redis_url, 5, 1, seen.append, fair=True)
    assert seen == [0, 1, 2, 3, 4]
    seen.clear()
    relay(redis_url, 5, 20, seen.append, fair=True)
    assert sorted(seen) == sorted([*range(5)] * 20)


async def _wait_queued(store: Store, **options: object) -> Any:
    watch = await store.watch(KEY)
    await meet(store, KEY, **options)
    return watch


def test_of_two_who_wait_a_release_wakes_the_first_alone(play: Play, redis_url: str, other: RedisEngine) -> None:
    async def scenario(store: Store) -> None:
        holder = open_engine(redis_url)
        grant = run_now(take(holder.blocking, KEY))
        first = await _wait_queued(store)
        second = run_now(_wait_queued(other.blocking))
        await meet(store, KEY)  # asking again does not cost the place
        await give_back(store, grant)
        grant = run_now(take(holder.blocking, KEY))  # another caller barges in
        assert await first.wait(SOON)
        assert not run_now(second.wait(MS))
        await meet(store, KEY)  # woken in vain, it stands in front again
        await give_back(store, grant)
        assert await first.wait(SOON)
        assert not run_now(second.wait(MS))
        await give_back(store, await take(store, KEY))
        assert run_now(second.wait(SOON))
        await first.close()
        run_now(second.close())
        holder.close()

    play(redis_url, scenario)


def test_a_dead_waiter_does_not_cost_the_next_one_its_hint(
    play: Play, redis_url: str, redis_raw: Any, other: RedisEngine
) -> None:
    async def scenario(store: Store) -> None:
        grant = await take(store, KEY)
        dead = [run_now(_wait_queued(other.blocking)) for _ in range(3)]
        while redis_raw.execute_command("PUBSUB", "CHANNELS", aux_name(redis_url, "ear:*")):
            redis_raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")  # they die without a word
        assert _queued(redis_url) == 3
        watch = await _wait_queued(store)
        await give_back(store, grant)
        assert await watch.wait(SOON)
        assert _queued(redis_url) == 0
        await watch.close()
        for each in dead:
            run_now(each.close())

    play(redis_url, scenario)


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "unread"])
def test_a_woken_waiter_that_gives_up_passes_the_hint_on(
    play: Play, redis_url: str, other: RedisEngine, heard: bool
) -> None:
    async def scenario(store: Store) -> None:
        grant = run_now(take(other.blocking, KEY))
        first = await _wait_queued(store)
        second = run_now(_wait_queued(other.blocking))
        run_now(give_back(other.blocking, grant))
        if heard:
            assert await first.wait(SOON)
        assert not run_now(second._subscription.wait(MS))
        await first.close()
        assert run_now(second.wait(SOON))
        run_now(second.close())

    play(redis_url, scenario)


def test_a_cancelled_waiter_passes_its_hint_on(redis_url: str) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            locks = [await stack.enter_async_context(aio.connect(redis_url)) for _ in range(3)]
            for _ in range(30):
                lease = await locks[0].lock(KEY, **_settings(False)).acquire()
                tasks = []
                for n in (1, 2):
                    tasks.append(asyncio.create_task(locks[n].lock(KEY, **_settings(False)).acquire()))
                    while _queued(redis_url) < n:  # noqa: ASYNC110 - only the server knows
                        await asyncio.sleep(0)
                await lease.release()
                tasks[0].cancel()  # its hint is on the way, or has just arrived
                await asyncio.wait(tasks[:1])
                await (await tasks[1]).release()

    asyncio.run(main())


def test_a_waiter_whose_ask_may_still_take_effect_gives_up_its_ear(play: Play, own_redis: StartRedis) -> None:
    server = own_redis()

    async def scenario(store: Store) -> None:
        grant = await take(store, KEY)
        watch: Any = await store.watch(KEY)
        channel = watch.entry.split()[0]
        server.pause()
        with pytest.raises(Timeout):
            await store.acquire(ask(KEY), 50 * MS)
        server.resume()
        await watch.close()
        while channel in server.cli("PUBSUB", "CHANNELS"):
            pass  # the end of a subscription is not confirmed to any client
        again: Any = await store.watch(KEY)
        assert again.entry.split()[0] != channel
        await again.close()
        await give_back(store, grant)

    play(server.url, scenario)


def test_waiters_that_come_back_reuse_their_subscription_and_ignore_old_hints(
    play: Play, redis_url: str, redis_raw: Any, other: RedisEngine
) -> None:
    async def scenario(store: Store) -> None:
        words = []
        for _ in range(3):
            grant = run_now(take(other.blocking, KEY))
            watch = await _wait_queued(store)
            words.append(watch.entry)
            redis_raw.publish(words[-1].split()[0], words[0])  # for an earlier waiter, but for the first
            assert await watch.wait(MS) == (len(words) == 1)
            await watch.close()
            run_now(give_back(other.blocking, grant))
        assert len({word.split()[0] for word in words}) == 1
        assert len(set(words)) == 3

    play(redis_url, scenario)


@pytest.mark.parametrize("ticket", [None, "ticket"], ids=["unfair", "fair"])
@pytest.mark.parametrize("repeated", [False, True], ids=["once", "repeated"])
def test_a_waiter_that_gets_the_key_without_a_hint_leaves_the_queue_with_the_same_request(
    play: Play, redis_url: str, redis_raw: Any, ticket: str | None, repeated: bool
) -> None:
    async def scenario(store: Store) -> None:
        await take(store, KEY)
        watch = await _wait_queued(store, ticket=ticket)
        assert _queued(redis_url) == 1
        redis_raw.delete(lock_name(redis_url, KEY))  # its time has ended
        wish = ask(KEY, ticket=ticket)
        grant = await store.acquire(wish, SOON)
        assert isinstance(grant, Grant)
        assert _queued(redis_url) == 0
        if repeated:
            redis_raw.zadd(queue_name(redis_url, "ears", KEY), {watch.entry: 1})  # as if the first answer was lost
            assert await store.acquire(wish, SOON) == grant
            assert _queued(redis_url) == 0
        before = _calls(redis_url)
        await watch.close()
        assert _calls(redis_url) == before
        await give_back(store, grant)

    play(redis_url, scenario)


def test_an_ear_that_was_idle_for_long_is_confirmed_before_it_is_trusted(
    play: Play, redis_url: str, redis_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_subscriber, "DOUBT_NS", 0)
    monkeypatch.setattr(asyncio_subscriber, "DOUBT_S", 0)

    async def scenario(store: Store) -> None:
        for _ in range(3):
            await (await store.watch(KEY)).close()
            redis_raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            grant = await take(store, KEY)
            watch = await store.watch(KEY)
            while await watch.wait(MS):
                pass  # the hints of coming back
            assert len(redis_raw.execute_command("PUBSUB", "CHANNELS", aux_name(redis_url, "ear:*"))) == 1
            await give_back(store, grant)
            assert await watch.wait(SOON)
            await watch.close()

    play(redis_url, scenario)


def test_a_queue_that_all_waiters_left_silently_expires(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        grant = await take(store, KEY)
        watch = await _wait_queued(store)
        assert 0 < redis_raw.pttl(queue_name(redis_url, "ears", KEY)) <= 600_000
        await watch.close()
        await give_back(store, grant)

    play(redis_url, scenario)


def test_a_fair_waiter_that_was_woken_in_the_heads_stead_passes_the_hint_on(
    play: Play, redis_url: str, redis_raw: Any, other: RedisEngine
) -> None:
    async def scenario(store: Store) -> None:
        grant = await take(store, KEY, ticket="holder")
        await meet(store, KEY, ticket="head")
        behind = run_now(_wait_queued(other.blocking, ticket="behind"))
        await give_back(store, grant)  # the head is not queued yet, so the one behind it is woken
        assert run_now(behind.wait(SOON))
        head = await store.watch(KEY)
        redis_raw.set(lock_name(redis_url, KEY), "foreign")
        await meet(store, KEY, ticket="head")
        redis_raw.delete(lock_name(redis_url, KEY))  # gone without a word
        run_now(meet(other.blocking, KEY, ticket="behind"))
        assert await head.wait(SOON)
        grant = await take(store, KEY, ticket="head")
        await head.close()
        await give_back(store, grant)
        assert run_now(behind.wait(SOON))
        run_now(give_back(other.blocking, run_now(take(other.blocking, KEY, ticket="behind"))))
        run_now(behind.close())

    play(redis_url, scenario)
