"""Closing a `Locks` refuses all callers that wait for one of its locks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import holdfast
from holdfast import Closed, aio
from holdfast.core.timer_wheel import TimerWheel
from holdfast.testing.proxy import HELD_LIMIT_S as LIMIT_S
from holdfast.testing.proxy import FaultProxy
from support.servers.redis import RedisServer


def wait_until_waiting(locks: holdfast.Locks, number: int) -> None:
    """Wait until that many are queued; the suite's own time limit bounds this."""
    event = threading.Event()
    while locks.statistics().waiting < number:
        event.wait(0.001)


def test_waiting_threads_are_sent_away_when_the_locks_are_closed() -> None:
    locks = holdfast.connect("memory://")
    lease = locks.lock("k", ttl=30).acquire()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            locks.lock("k", ttl=30).acquire()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until_waiting(locks, 3)
    locks.close()
    for thread in threads:
        thread.join(30)
    assert [type(error) for error in raised] == [Closed] * 3
    assert lease.lost.reason == "revoked"


async def waiting_tasks(locks: aio.Locks, number: int) -> list[asyncio.Task[object]]:
    tasks = [asyncio.ensure_future(locks.lock("k", ttl=30).acquire()) for _ in range(number)]
    while locks.statistics().waiting < number:  # noqa: ASYNC110 - there is no notification; the suite's time limit bounds this
        await asyncio.sleep(0)
    return list(tasks)


@pytest.mark.asyncio
async def test_waiting_tasks_are_sent_away_when_the_locks_are_closed() -> None:
    locks = aio.connect("memory://")
    lease = await locks.lock("k", ttl=30).acquire()
    tasks = await waiting_tasks(locks, 3)
    await locks.close()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Closed] * 3
    assert lease.lost.reason == "revoked"


@pytest.mark.asyncio
async def test_the_one_who_asks_the_store_is_sent_away_too() -> None:
    one, other = aio.connect("memory://closing"), aio.connect("memory://closing")
    lease = await one.lock("k", ttl=30).acquire()
    task = asyncio.ensure_future(other.lock("k", ttl=30).acquire())
    while not other.statistics().busy:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    await other.close()
    with pytest.raises(Closed, match="connect again"):
        await task
    assert await lease.release()
    await one.close()


def test_a_closed_locks_says_so() -> None:
    locks = holdfast.connect("memory://")
    lock = locks.lock("k", ttl=30)
    locks.close()
    with pytest.raises(Closed):
        lock.acquire()
    with pytest.raises(Closed):
        locks.lock("other", ttl=30)


@pytest.mark.asyncio
async def test_a_cancelled_close_closes_all_the_same(redis_server: RedisServer, redis_url: str) -> None:
    """Cancelled while it waits for the cleanup of an acquire that a hung server has not answered."""
    with FaultProxy(redis_server.port) as proxy:
        locks = aio.connect(f"redis://{proxy.address}?{redis_url.partition('?')[2]}")
        lease = await locks.lock("held", ttl=30).acquire()
        proxy.stall("to_client")
        asking = asyncio.create_task(locks.lock("k", ttl=30).acquire())
        await asyncio.to_thread(proxy.wait_held, "to_client")
        asking.cancel()
        await asyncio.wait([asking])
        closing = asyncio.create_task(locks.close())
        await asyncio.sleep(0)  # it waits now
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        proxy.resume()
        keeper: Any = locks.manager.renewer
        for ticker in (keeper._alarms, keeper._renewals, keeper._orphans):
            if ticker._thread is not None:
                await asyncio.to_thread(ticker._thread.join, LIMIT_S)
                assert not ticker._thread.is_alive(), "a thread of the closed locks still runs"
        assert lease.lost.reason == "revoked"
        await locks.close()


def test_a_lease_on_its_way_through_a_timer_queue_is_not_missed() -> None:
    """The timer thread moves new items to its calendar. `close()` asks for all items meanwhile."""
    with holdfast.connect("memory://") as locks:
        ticker: Any = locks.manager.renewer._alarms
        seen: list[bool] = []

        class Watched(TimerWheel[Any]):
            def put(self, item: Any, due_ns: int) -> bool:
                seen.append(item in ticker.items())
                return super().put(item, due_ns)

        ticker._timer_wheel = Watched()
        ticker._fresh["a lease"] = 1
        ticker._sort_in()
        assert seen == [True]
        ticker.drop("a lease")
