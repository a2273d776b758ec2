"""What the memory store promises beyond the contract that every store keeps: colors, loops, names and forks."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from holdfast.core.ports import Store
from holdfast.errors import BadInput
from holdfast.runtime.run_sync import run_now
from holdfast.stores.memory.store import MemoryEngine, MemoryStore, MemoryTable, open_engine
from holdfast.types import NS, AcquireRequest, Busy, Grant

LONG = 60 * NS


def ask(key: str = "k", token: str = "t" * 32, ttl_ns: int = LONG, ticket: str | None = None) -> AcquireRequest:
    return AcquireRequest(key, token, f"owner-of-{token[:4]}", "family", ttl_ns, ticket, LONG if ticket else 0)


def granted(answer: Grant | Busy) -> Grant:
    assert isinstance(answer, Grant)
    return answer


def refused(answer: Grant | Busy) -> Busy:
    assert isinstance(answer, Busy)
    return answer


def test_inspect_counts_those_who_listen() -> None:
    table = MemoryTable()
    store = MemoryStore(table)
    granted(table.acquire(ask()))
    watches = [run_now(store.watch("k")) for _ in range(2)]
    holding = table.inspect("k")
    assert holding is not None
    assert holding.waiters == 2
    for watch in watches:
        run_now(watch.close())
    holding = table.inspect("k")
    assert holding is not None
    assert holding.waiters == 0
    assert table._listeners == {}


# Colors: one table, threads and loops together.


def test_a_blocking_and_an_asyncio_store_of_one_engine_exclude_each_other() -> None:
    engine = MemoryEngine()
    grant = granted(run_now(engine.blocking.acquire(ask(), 0)))

    async def other_colour() -> None:
        store = engine.asynchronous()
        refused(await store.acquire(ask(token="u" * 32), 0))
        assert await store.release("k", grant.token, None, 0, 0)

    asyncio.run(other_colour())
    granted(run_now(engine.blocking.acquire(ask(token="u" * 32), 0)))
    engine.close()


def test_a_release_on_another_thread_wakes_a_waiting_event_loop() -> None:
    engine = MemoryEngine()
    grant = granted(run_now(engine.blocking.acquire(ask(), 0)))
    waiting = threading.Event()

    async def wait() -> bool:
        watch = await engine.asynchronous().watch("k")
        asyncio.get_running_loop().call_soon(waiting.set)  # runs once the wait below has suspended
        heard = await watch.wait(30 * NS)
        await watch.close()
        return heard

    def release() -> None:
        waiting.wait(30)
        run_now(engine.blocking.release("k", grant.token, None, 0, 0))

    thread = threading.Thread(target=release)
    thread.start()
    assert asyncio.run(wait())
    thread.join(30)


def test_a_release_on_an_event_loop_wakes_a_waiting_thread() -> None:
    engine = MemoryEngine()
    grant = granted(run_now(engine.blocking.acquire(ask(), 0)))
    heard: list[bool] = []
    watch = run_now(engine.blocking.watch("k"))
    thread = threading.Thread(target=lambda: heard.append(run_now(watch.wait(30 * NS))))
    thread.start()

    async def release() -> None:
        assert await engine.asynchronous().release("k", grant.token, None, 0, 0)

    asyncio.run(release())
    thread.join(30)
    assert heard == [True]


def test_a_waiter_whose_loop_was_closed_is_forgotten_and_blocks_no_release() -> None:
    engine = MemoryEngine()
    grant = granted(run_now(engine.blocking.acquire(ask(), 0)))

    async def abandon() -> None:
        await engine.asynchronous().watch("k")

    asyncio.run(abandon())
    assert run_now(engine.blocking.release("k", grant.token, None, 0, 0))
    assert engine.table._listeners == {}


@pytest.mark.asyncio
async def test_a_cancelled_wait_keeps_the_hint_that_comes_later() -> None:
    engine = MemoryEngine()
    store = engine.asynchronous()
    grant = granted(await store.acquire(ask(), 0))
    watch = await store.watch("k")
    task = asyncio.ensure_future(watch.wait(60 * NS))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.release("k", grant.token, None, 0, 0)
    assert await watch.wait(0)
    assert not await watch.wait(0)
    await watch.close()


def test_threads_that_race_for_one_key_never_hold_it_together() -> None:
    store: Store = MemoryStore()
    inside: list[int] = []
    fences: list[int] = []
    overlaps: list[int] = []

    def work(number: int) -> None:
        token = f"{number:032x}"
        done = 0
        while done < 50:
            answer = run_now(store.acquire(ask(token=token), 0))
            if isinstance(answer, Grant):
                inside.append(number)
                if len(inside) > 1:
                    overlaps.append(number)
                fences.append(answer.fence)
                inside.remove(number)
                done += 1
                assert run_now(store.release("k", token, None, 0, 0))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert overlaps == []
    assert fences == sorted(set(fences))
    assert len(fences) == 300


# Names and forks.


def test_a_nameless_url_is_private_and_a_name_is_shared() -> None:
    first, second = open_engine("memory://"), open_engine("memory://")
    assert first.table is not second.table
    name = f"memory://shared-{os.urandom(4).hex()}"
    one, two = open_engine(name), open_engine(name)
    assert one.table is two.table
    assert one.url == name
    granted(run_now(one.blocking.acquire(ask(), 0)))
    one.close()
    refused(run_now(open_engine(name).blocking.acquire(ask(token="u" * 32), 0)))


@pytest.mark.parametrize(
    "url", ["memory://name/path", "memory:///path", "memory://a?b=c", "memory://a#b", "memory://a b"]
)
def test_a_memory_url_with_more_than_a_name_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="url"):
        open_engine(url)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this host cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_an_empty_table_even_if_the_mutex_was_held() -> None:
    table = MemoryTable()
    fence = granted(table.acquire(ask())).fence
    with table._mutex:  # as if another thread were in the middle of a step
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                answer = table.acquire(ask(token="c" * 32))
                code = 0 if isinstance(answer, Grant) and answer.fence > fence else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    refused(table.acquire(ask(token="u" * 32)))
