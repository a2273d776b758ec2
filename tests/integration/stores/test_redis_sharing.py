"""One engine for many threads, many loops and forked children: connections are shared, answers never mixed up."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable

import pytest

from holdfast.core.ports import Store
from holdfast.errors import Unavailable
from holdfast.runtime.run_sync import run_now
from holdfast.stores.redis.engine import open_engine
from holdfast.stores.redis.store import RedisStore
from holdfast.stores.redis.sync_driver import RedisConnectionPool
from holdfast.stores.redis.sync_subscriber import SyncSubscriber
from holdfast.stores.redis.url import parse_redis_url
from holdfast.types import MS, NS, Busy
from support.harness.redis_requests import SOON, ask, give_back, meet, renewal, take
from support.servers.redis import RedisServer

pytestmark = pytest.mark.server


def _together(count: int, work: Callable[[int], None]) -> None:
    """Run `work` in so many concurrent threads, and show what went wrong in any of them."""
    start, trouble = threading.Barrier(count), []

    def run(n: int) -> None:
        try:
            start.wait(20)
            work(n)
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert trouble == []


def test_thirty_two_threads_each_get_their_own_answers(redis_url: str) -> None:
    engine = open_engine(redis_url)

    def work(n: int) -> None:
        for turn in range(30):
            grant = run_now(take(engine.blocking, f"key:{n}:{turn}"))
            assert grant.key == f"key:{n}:{turn}"
            assert run_now(engine.blocking.renew_many([renewal(grant)], SOON)) == [True]
            holding = run_now(engine.blocking.inspect(grant.key, SOON))
            assert holding is not None
            assert holding.fence == grant.fence
            assert run_now(give_back(engine.blocking, grant))

    _together(32, work)
    engine.close()


@pytest.mark.requires("R86")
def test_thirty_two_threads_on_one_key_are_never_inside_together(redis_url: str) -> None:
    engine = open_engine(redis_url)
    inside, fences = [], []

    def work(n: int) -> None:
        got = 0
        while got < 10:
            answer = run_now(engine.blocking.acquire(ask("hot"), SOON))
            if isinstance(answer, Busy):
                continue
            inside.append(n)
            assert inside == [n]
            fences.append(answer.fence)
            inside.remove(n)
            assert run_now(give_back(engine.blocking, answer))
            got += 1

    _together(8, work)
    assert fences == sorted(set(fences))
    engine.close()


def test_more_callers_than_connections_wait_their_turn(redis_server: RedisServer, redis_url: str) -> None:
    address = parse_redis_url(redis_url)
    pool = RedisConnectionPool(address, most=3)
    store = RedisStore(address, pool, SyncSubscriber(address))

    def work(n: int) -> None:
        for turn in range(20):
            assert run_now(give_back(store, run_now(take(store, f"key:{n}:{turn}"))))

    _together(16, work)
    assert pool.statistics()["open"] <= 3
    pool.close_idle()
    assert pool.statistics() == {"open": 0, "idle": 0, "waiting": 0, "most": 3}


def test_no_free_connection_within_the_time_is_unavailable(redis_url: str) -> None:
    pool = RedisConnectionPool(parse_redis_url(redis_url), most=1)
    connection = pool.take(pool.deadline(SOON))
    with pytest.raises(Unavailable, match="all 1 connections were busy"):
        pool.take(pool.deadline(20 * MS))
    pool.put_back(connection)
    assert pool.take(pool.deadline(SOON)) is connection
    pool.put_back(connection)
    pool.close_idle()


def test_a_connection_that_the_server_closed_while_idle_is_replaced_before_it_is_used(
    redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that even a forced release, which is never asked for twice, succeeds."""
    monkeypatch.setattr(RedisConnectionPool, "doubt_ns", 0)
    engine = open_engine(redis_url)
    grant = run_now(take(engine.blocking, "job"))
    redis_server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert run_now(engine.blocking.force_release(grant.key, "ops", "why", SOON)) is not None
    engine.close()


def test_an_interrupted_call_does_not_leave_its_answer_to_the_next(redis_url: str) -> None:
    engine = open_engine(redis_url)
    address = parse_redis_url(redis_url)
    pool = RedisConnectionPool(address, most=1)
    store = RedisStore(address, pool, SyncSubscriber(address))
    run_now(store.ping(SOON))
    connection = pool.take(pool.deadline(SOON))
    pool.put_back(connection)

    class Interrupted(BaseException):
        pass

    def interrupt(_size: int, _flags: int = 0) -> bytes:
        raise Interrupted

    connection._recv = interrupt
    with pytest.raises(Interrupted):
        run_now(store.acquire(ask("job"), SOON))
    try:
        assert run_now(take(store, "other")).key == "other"
    finally:
        pool.close_idle()
        engine.close()


def test_a_store_can_be_used_again_after_it_was_closed(redis_url: str) -> None:
    async def twice(store: Store) -> None:
        for turn in range(2):
            grant = await take(store, f"key:{turn}")
            await store.close()
            await store.close()
            assert await give_back(store, grant)
        await store.close()

    engine = open_engine(redis_url)
    run_now(twice(engine.blocking))
    asyncio.run(twice(engine.asynchronous()))
    engine.close()


def test_an_asyncio_store_moves_to_a_new_loop_when_its_own_is_closed(redis_url: str) -> None:
    store = open_engine(redis_url).asynchronous()

    async def use() -> None:
        assert await give_back(store, await take(store, "job"))
        await store.close()

    asyncio.run(use())
    asyncio.run(use())


def test_an_asyncio_store_refuses_a_second_loop_at_the_same_time(redis_url: str) -> None:
    store = open_engine(redis_url).asynchronous()

    async def use() -> None:
        await store.ping(SOON)

    async def main() -> None:
        await store.ping(SOON)
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, use())
        await store.close()

    asyncio.run(main())


def test_thousands_of_tasks_share_one_connection(redis_server: RedisServer, redis_url: str) -> None:
    async def one(store: Store, n: int) -> int:
        grant = await take(store, f"key:{n}")
        assert await give_back(store, grant)
        return grant.fence

    async def main() -> None:
        store = open_engine(redis_url).asynchronous()
        before = redis_server.cli("INFO", "stats")["total_connections_received"]
        fences = await asyncio.gather(*[one(store, n) for n in range(2000)])
        assert len(set(fences)) == 2000
        after = redis_server.cli("INFO", "stats")["total_connections_received"]
        assert after - before <= 2  # the store's own, and this question's
        await store.close()

    asyncio.run(main())


def _fork(work: Callable[[], None]) -> int:
    """Run `work` in a child; returns its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def _exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_has_connections_of_its_own(redis_url: str) -> None:
    engine = open_engine(redis_url)
    grant = run_now(take(engine.blocking, "parents"))
    watch = run_now(engine.blocking.watch("parents"))
    spare = run_now(engine.blocking.watch("spare"))
    run_now(spare.close())

    def child() -> None:
        run_now(watch.close())
        for n in range(200):
            assert run_now(give_back(engine.blocking, run_now(take(engine.blocking, f"child:{n}"))))
        run_now(meet(engine.blocking, "parents"))
        own = run_now(engine.blocking.watch("spare"))
        run_now(give_back(engine.blocking, run_now(take(engine.blocking, "spare"))))
        assert run_now(own.wait(SOON))
        engine.close()

    pid = _fork(child)
    for n in range(200):  # at the same time as the child: on a shared connection answers would be mixed up
        assert run_now(give_back(engine.blocking, run_now(take(engine.blocking, f"parent:{n}"))))
    assert _exit_code(pid) == 0
    assert run_now(give_back(engine.blocking, grant))
    assert run_now(watch.wait(SOON))
    run_now(watch.close())
    engine.close()


def test_an_asyncio_store_survives_a_fork_in_both_processes(redis_url: str) -> None:
    store = open_engine(redis_url).asynchronous()

    async def use(name: str) -> None:
        for n in range(100):
            assert await give_back(store, await take(store, f"{name}:{n}"))

    def child() -> None:
        # In a thread of its own, because the forked one still counts as running the parent's loop.
        _together(1, lambda _n: asyncio.run(use("child")))

    async def main() -> None:
        await use("before")
        await take(store, "job")
        watch = await store.watch("job")
        pid = _fork(child)
        await use("after")  # at the same time as the child
        assert _exit_code(pid) == 0
        assert not await watch.wait(MS)
        await watch.close()
        await store.close()

    asyncio.run(main())


def test_deadlines_hold_for_every_call(redis_url: str) -> None:
    engine = open_engine(redis_url)
    with pytest.raises(Unavailable, match="no time was left"):
        run_now(engine.blocking.ping(0))
    run_now(engine.blocking.ping(NS))
    with pytest.raises(Unavailable, match="no time was left"):
        run_now(engine.blocking.ping(0))
    engine.close()
