"""Closing a `Locks` sends everybody away who waits for one of its locks."""

from __future__ import annotations

import asyncio
import threading

import pytest

import holdfast
from holdfast import Closed, aio


def wait_until_waiting(locks: holdfast.Locks, number: int) -> None:
    """Until that many stand in line; the suite's own time limit bounds this."""
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
    while locks.statistics().waiting < number:  # noqa: ASYNC110 - nobody tells us; the suite's time limit bounds this
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
