"""The asynchronous color of the SQLite store: order, cancellation, time limits, and a loop that is never blocked."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.errors import Timeout, Unavailable
from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite import colors
from holdfast.stores.sqlite.engine import SqliteEngine, SqliteStore
from holdfast.types import MS, NS, Busy, Grant, Renewal
from support.load.sqlite_processes import CALL, LONG, acquire, ask, rows, until


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(str(tmp_path / "leases.db"))
    yield engine
    run_now(engine.blocking.close())


@pytest_asyncio.fixture
async def store(engine: SqliteEngine) -> AsyncIterator[SqliteStore]:
    store = engine.asynchronous()
    yield store
    await store.close()


@contextlib.contextmanager
def locked(engine: SqliteEngine) -> Iterator[sqlite3.Connection]:
    """Another connection holds the write lock of the file until the block ends, or until it commits."""
    run_now(engine.blocking.ping(CALL))
    other = sqlite3.connect(engine.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield other
    finally:
        other.close()


@pytest.mark.asyncio
async def test_both_colours_see_the_same_leases(engine: SqliteEngine, store: SqliteStore) -> None:
    grant = await store.acquire(ask("a"), CALL)
    assert isinstance(grant, Grant)
    assert isinstance(acquire(engine.blocking, ask("b")), Busy)
    assert run_now(engine.blocking.renew_many([Renewal("k", "a", "", LONG)], CALL)) == [True]
    assert await store.release("k", "a", grant.claim, 0, CALL)
    assert isinstance(acquire(engine.blocking, ask("b")), Grant)


@pytest.mark.asyncio
async def test_the_loop_goes_on_while_a_call_waits_for_another_writer(engine: SqliteEngine, store: SqliteStore) -> None:
    with locked(engine) as other:
        call = asyncio.create_task(store.acquire(ask("a"), CALL))
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert not call.done()
        other.execute("COMMIT")
        assert isinstance(await call, Grant)


@pytest.mark.asyncio
async def test_undoing_a_cancelled_acquire_is_ordered_after_it(engine: SqliteEngine, store: SqliteStore) -> None:
    """Whatever became of the acquire, the release that follows it sees the end of it, and nothing is left behind."""
    for pause in range(12):
        call = asyncio.create_task(store.acquire(ask(f"t{pause}"), CALL))
        for _ in range(pause):
            await asyncio.sleep(0)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await store.release("k", f"t{pause}", None, 0, CALL)
        assert await store.inspect("k", CALL) is None


@pytest.mark.asyncio
async def test_a_call_that_was_cancelled_while_it_was_queued_is_not_done(
    engine: SqliteEngine, store: SqliteStore
) -> None:
    with locked(engine) as other:
        first = asyncio.create_task(store.ping(CALL))
        await asyncio.sleep(0)
        second = asyncio.create_task(store.acquire(ask("a"), CALL))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        other.execute("COMMIT")
        await first
    assert second.cancelled()
    assert await store.inspect("k", CALL) is None


@pytest.mark.asyncio
async def test_a_call_that_is_still_queued_at_its_deadline_has_no_effect(
    engine: SqliteEngine, store: SqliteStore
) -> None:
    with locked(engine) as other:
        first = asyncio.create_task(store.ping(60 * NS))
        await asyncio.sleep(0)
        with pytest.raises((Timeout, Unavailable)):
            await store.acquire(ask("a"), 5 * MS)
        other.execute("COMMIT")
        await first
    assert await store.inspect("k", CALL) is None


@pytest.mark.asyncio
async def test_a_locked_file_is_unavailable_when_the_time_is_over(engine: SqliteEngine, store: SqliteStore) -> None:
    with locked(engine), pytest.raises(Unavailable, match="nothing was changed"):
        await store.acquire(ask("a"), 10 * MS)
    assert isinstance(await store.acquire(ask("b"), CALL), Grant)


@pytest.mark.asyncio
async def test_a_disk_that_does_not_answer_is_a_timeout_and_later_calls_still_come_after_it(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.ping(CALL)
    started, hangs, order = threading.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()
    alarms: list[Callable[[], object]] = []

    def hang(_left: int) -> None:
        started.set()
        assert hangs.wait(60)
        order.append("first")

    def set_alarm(_delay: float, ring: Callable[..., object], *about: object) -> asyncio.Handle:
        alarms.append(lambda: ring(*about))
        return loop.call_soon(lambda: None)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_later", set_alarm)  # the time is over when the test says so
        first = asyncio.create_task(store._color.run(hang, CALL))
        await asyncio.to_thread(started.wait, 60)
        for alarm in alarms:  # its time, and then the grace of what has begun
            alarm()
    with pytest.raises(Timeout, match="may take effect yet"):
        await first
    later = asyncio.create_task(store._color.run(lambda _left: order.append("second"), CALL))
    hangs.set()
    await later
    assert order == ["first", "second"]


@pytest.mark.asyncio
async def test_many_concurrent_tasks_get_their_own_answers(store: SqliteStore) -> None:
    async def pair(number: int) -> bool:
        grant = await store.acquire(ask(f"t{number}", f"k{number}"), CALL)
        assert isinstance(grant, Grant)
        assert grant.key == f"k{number}"
        return await store.release(f"k{number}", f"t{number}", None, 0, CALL)

    assert await asyncio.gather(*map(pair, range(200))) == [True] * 200


@pytest.mark.asyncio
async def test_waiting_tasks_are_woken_one_after_the_other(store: SqliteStore) -> None:
    await store.acquire(ask("holder"), CALL)
    fences: list[int] = []
    listening = asyncio.Barrier(11)

    async def wait(number: int) -> None:
        watch = await store.watch("k")
        await listening.wait()
        try:
            while not isinstance(answer := await store.acquire(ask(f"t{number}"), CALL), Grant):
                assert await watch.wait(CALL), "no notification came"
        finally:
            await watch.close()
        fences.append(answer.fence)
        assert await store.release("k", f"t{number}", None, 0, CALL)

    tasks = [asyncio.create_task(wait(number)) for number in range(10)]
    await listening.wait()
    await store.release("k", "holder", None, 0, CALL)
    await asyncio.gather(*tasks)
    assert len(fences) == 10
    assert fences == sorted(fences)
    assert rows(store, "holdfast_listener") == 0


@pytest.mark.asyncio
async def test_a_release_in_a_thread_wakes_a_task(engine: SqliteEngine, store: SqliteStore) -> None:
    acquire(engine.blocking, ask("threads"))
    watch = await store.watch("k")
    waiting = asyncio.create_task(watch.wait(CALL))
    await asyncio.to_thread(lambda: run_now(engine.blocking.release("k", "threads", None, 0, CALL)))
    assert await waiting
    await watch.close()


@pytest.mark.asyncio
async def test_a_cancelled_wait_leaves_a_watch_that_can_be_closed(store: SqliteStore) -> None:
    watch = await store.watch("k")
    waiting = asyncio.create_task(watch.wait(LONG))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    for _ in range(2):
        await watch.close()
    assert rows(store, "holdfast_listener") == 0


@pytest.mark.asyncio
async def test_a_watch_that_is_cancelled_while_it_is_made_takes_no_hints_of_others(
    engine: SqliteEngine, store: SqliteStore
) -> None:
    acquire(engine.blocking, ask("ours"))
    with locked(engine) as other:
        making = asyncio.create_task(store.watch("k"))
        await asyncio.sleep(0.01)  # it is on the worker now, or will be: both must end well
        making.cancel()
        await asyncio.wait([making])
        other.execute("COMMIT")
    await store.ping(CALL)  # everything before it is done
    assert rows(store, "holdfast_listener") == 0


@pytest.mark.asyncio
async def test_a_task_that_gives_up_hands_on_the_hint_it_has_not_read(engine: SqliteEngine, store: SqliteStore) -> None:
    acquire(engine.blocking, ask("ours"))
    first, second = await store.watch("k"), await store.watch("k")
    run_now(engine.blocking.release("k", "ours", None, 0, CALL))
    assert await first.wait(CALL)
    acquire(engine.blocking, ask("ours"))
    run_now(engine.blocking.release("k", "ours", None, 0, CALL))
    while not first._hint.is_set():  # type: ignore[attr-defined]  # noqa: ASYNC110 - a socket sets it, not a task
        await asyncio.sleep(0)
    await first.close()
    assert await second.wait(CALL)
    await second.close()


@pytest.mark.asyncio
async def test_a_wait_that_outlasts_its_registration_renews_it(
    engine: SqliteEngine, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(colors, "_REFRESH_NS", 5 * MS)
    watch = await store.watch("k")
    waiting = asyncio.create_task(watch.wait(CALL))
    blocking = engine.blocking
    acquire(blocking, ask("ours"))
    blocking.leases.file.run(lambda each: each.execute("DELETE FROM holdfast_listener"), CALL)  # as a sweep would
    await asyncio.to_thread(until, lambda: rows(blocking, "holdfast_listener") == 1)
    run_now(blocking.release("k", "ours", None, 0, CALL))
    assert await waiting
    await watch.close()


@pytest.mark.asyncio
async def test_a_closed_store_can_be_used_again(store: SqliteStore) -> None:
    await store.acquire(ask("a"), CALL)
    for _ in range(2):
        await store.close()
    assert await store.release("k", "a", None, 0, CALL)


def test_every_loop_has_its_own_store_over_the_same_leases(engine: SqliteEngine) -> None:
    async def once(token: str) -> Grant | Busy:
        store = engine.asynchronous()
        try:
            return await store.acquire(ask(token), CALL)
        finally:
            await store.close()

    assert isinstance(asyncio.run(once("a")), Grant)
    assert isinstance(asyncio.run(once("b")), Busy)


def test_closing_leaves_no_thread_and_no_open_file_behind(engine: SqliteEngine) -> None:
    before = set(threading.enumerate())

    async def use() -> None:
        store = engine.asynchronous()
        watch = await store.watch("k")
        await store.acquire(ask("a"), CALL)
        await store.release("k", "a", None, 0, CALL)
        await watch.close()
        await store.close()

    asyncio.run(use())
    gc.collect()  # what was left open would be reported here, and warnings are errors
    assert engine.blocking.leases.file._connection is None
    ours = [thread for thread in set(threading.enumerate()) - before if thread.name == "holdfast-sqlite"]
    for thread in ours:
        thread.join(60)
    assert not any(thread.is_alive() for thread in ours)
